"""Opens a stream for an agent that says who it is: whether it may, and which batches it still has to send."""

from __future__ import annotations

import logging

from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.history import HistoryStore, agent_row
from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AgentState, AggregatorState
from perfd.clock import Clock
from perfd.errors import PerfdError, WireError
from perfd.model import Hello, Welcome
from perfd.wire.service import REVISION

log = logging.getLogger(__name__)
MAX_SEQUENCE = 1 << 62
"""Of a batch."""


def check_hello(hello: Hello, credential: AgentCredential, limits: Limits, audit: AuditLog) -> None:
    """Raises `WireError` if it is malformed, and `RefusedError` if the credential is not for its node."""
    if hello.revision != REVISION:
        raise WireError(
            f"The agent speaks revision {hello.revision} of the protocol and this aggregator {REVISION}: "
            "install the same major version of perfd on both."
        )
    if not hello.agent_id or not hello.node:
        raise WireError("A Hello must name the agent and its node.")
    if max(len(hello.agent_id), len(hello.node)) > limits.name_chars:
        raise WireError(f"The names of an agent and its node have at most {limits.name_chars} characters.")
    if hello.first_sequence > MAX_SEQUENCE:
        raise WireError(f"The sequence {hello.first_sequence} is out of range.")
    if not credential.may_be(hello.node):
        sentence = "The credential of this agent is not for the node that it names."
        raise audit.refusal(Refusal.AGENT_CREDENTIAL, sentence, actor=credential.principal, about=hello.node)


def greet(
    hello: Hello,
    stream: int,
    credential: AgentCredential,
    *,
    state: AggregatorState,
    clock: Clock,
    history: HistoryStore | None,
    of_partition: bool,
) -> tuple[AgentState | None, Welcome]:
    """Open a stream for an agent; no agent when this one has to take a new identity first.

    `of_partition`: this aggregator has some of the jobs, and gets the batches of these only. Raises
    `WireError` if the Hello is malformed, `RefusedError` if the sender may not use that identity, and
    `PerfdError` if there is no room.
    """
    check_hello(hello, credential, state.fleet.limits, state.audit)
    unix_ns = clock.unix_ns()
    with state.lock:
        known = state.agents.get(hello.agent_id)
        if known is not None and hello.first_sequence - known.last_sequence > state.fleet.limits.hello_jump:
            sentence = "An agent's first sequence is too far ahead of the newest one that is stored."
            raise state.audit.refusal(Refusal.SEQUENCE_JUMP, sentence, actor=hello.node)
        new = known is None or known.left
        known_epoch = known.epoch if known is not None else ""
        greeting = state.agents.greet(
            hello,
            stream,
            clock.monotonic_s(),
            unix_ns,
            principal=credential.principal,
            namespace=credential.namespace,
            # A partition knows only the lives in which the agent's node ran its jobs.
            every_life=not of_partition,
        )
        if greeting is None:
            raise PerfdError("This aggregator is at its limit of agents; start another one.")
        if greeting.agent is None:
            state.audit.refused(
                Refusal.AGENT_IDENTITY,
                "Two agents have one spool identity, as on a copied disk: this one must renew it.",
                actor=credential.principal or hello.node,
            )
            return None, Welcome(last_sequence=0, sent_unix_ns=unix_ns, renew_identity=True)
        if not of_partition:
            state.counters.lost_batches += greeting.lost
        agent = greeting.agent
        if known_epoch != agent.epoch and known_epoch and history is not None:
            # Otherwise a spool that was opened again would be a stranger to the next aggregator.
            # The epoch of a new agent is stored with its first batch.
            history.submit([agent_row(agent, agent.stored_sequence, unix_ns / 1e9)])
    if greeting.warning:
        log.warning(greeting.warning, extra={"node": hello.node, "shown_as": greeting.agent.node})
    if new:
        log.info("An agent connected.", extra={"node": agent.node, "version": agent.perfd_version})
    return agent, Welcome(
        last_sequence=agent.stored_sequence,
        received_sequence=agent.kept_sequence,
        known_sequence=agent.last_sequence,
        sent_unix_ns=unix_ns,
    )
