"""Which agents there are, what of theirs is stored, and how far their clocks are off."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from perfd.aggregator.limits import Limits
from perfd.aggregator.state.batch_repeats import BatchSequence
from perfd.model import CaptureTool, Hello

_CLOCK_SAMPLES = 32
"""Newest batches, by the quickest of which an agent's clock is judged. Chosen."""
_DAY_S = 86_400.0
"""An agent's rows in history are counted per day."""


@dataclass(slots=True)
class DayQuota:
    """What an agent wrote to history in the day that began with its first row of it."""

    used_bytes: int = 0
    since_s: float = -math.inf

    def take(self, size_bytes: int, now_s: float, limits: Limits) -> bool:
        """Whether so much more may be written; then it counts."""
        if now_s - self.since_s >= _DAY_S:
            self.used_bytes, self.since_s = 0, now_s
        if self.used_bytes + size_bytes > limits.history_bytes_per_agent_and_day:
            return False
        self.used_bytes += size_bytes
        return True


@dataclass(slots=True, kw_only=True)
class AgentState(BatchSequence):
    """One agent, by the identity of its spool."""

    agent_id: str
    node: str
    """The node's name, made unique when two live agents claim the same one."""
    principal: str = ""
    """The name in its credential; empty without one."""
    namespace: str | None = None
    """The namespace that its credential limits it to; None: any."""
    epoch: str = ""
    """A hash of the secret of its spool's present life; empty as long as it is not known."""
    perfd_version: str = ""
    restored: bool = False
    """What is known of its batches is from history only: since the start none was delivered by a stream."""
    history: DayQuota = field(default_factory=DayQuota)
    stream: int | None = None
    """The number of the stream that represents the agent now; None when none is open."""
    left: bool = False
    """It said goodbye, and has not come back since."""
    capture_tools: tuple[CaptureTool, ...] = ()
    dropped_records: int = 0
    unknown_records: int = 0
    malformed_messages: int = 0
    """Left out because they could not be decoded."""
    batches: int = 0
    received_s: float = 0.0
    """Monotonic time of the newest message."""
    ahead_s: deque[float] = field(default_factory=lambda: deque(maxlen=_CLOCK_SAMPLES))

    @property
    def clock_offset_s(self) -> float | None:
        """How far the agent's clock is ahead of ours, at least: the delay of the fastest batch is in it."""
        return max(self.ahead_s) if self.ahead_s else None

    @property
    def lag_s(self) -> float | None:
        """How much longer the newest batch took to arrive than the fastest recent one."""
        return max(self.ahead_s) - self.ahead_s[-1] if self.ahead_s else None

    def saw_clock(self, sent_unix_ns: int, received_unix_ns: int) -> None:
        """Note when a message left by the agent's clock and arrived by ours."""
        ahead_s = (sent_unix_ns - received_unix_ns) / 1e9
        # After a step of either clock the old differences say nothing.
        if self.ahead_s and abs(ahead_s - self.ahead_s[-1]) > 60:
            self.ahead_s.clear()
        self.ahead_s.append(ahead_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The outcome of a Hello."""

    agent: AgentState | None
    """None: another spool has this identity, and the agent has to take a new one."""
    lost: int = 0
    """Batches that the agent can no longer send and that never came."""
    warning: str = ""
    """Said once: what an operator should look at."""


class AgentRegistry:
    """All agents; bounded, and those without a stream that are silent longest go first."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._agents: dict[str, AgentState] = {}
        self._warned: set[str] = set()

    def __iter__(self) -> Iterator[AgentState]:
        return iter(list(self._agents.values()))

    def __len__(self) -> int:
        return len(self._agents)

    def get(self, agent_id: str) -> AgentState | None:
        """The agent of that identity, or None."""
        return self._agents.get(agent_id)

    def connected(self) -> int:
        """How many have an open stream."""
        return sum(agent.stream is not None for agent in self._agents.values())

    def of_node(self, node: str) -> AgentState | None:
        """The agent that represents a node now, or None."""
        return next((a for a in self._agents.values() if a.node == node and a.stream is not None), None)

    def restore(
        self,
        agent_id: str,
        node: str,
        last_sequence: int,
        received_s: float,
        epoch: str = "",
        *,
        left: bool = False,
    ) -> None:
        """Know an agent from history, to recognize its repeats."""
        agent = AgentState(
            agent_id=agent_id, node=node, received_s=received_s, epoch=epoch, restored=True, left=left
        )
        agent.skip_to(last_sequence)
        self._agents[agent_id] = agent

    def greet(
        self,
        hello: Hello,
        stream: int,
        now_s: float,
        received_unix_ns: int,
        *,
        principal: str = "",
        namespace: str | None = None,
        every_life: bool = True,
    ) -> Greeting | None:
        """Open a stream for an agent; None when there are too many agents.

        `principal` and `namespace` are what its credential says. Without `every_life` the agent may have been
        restarted several times since it last sent something here.
        """
        agent = self._agents.get(hello.agent_id)
        if agent is not None and not _is_same(agent, hello, principal, every_life=every_life):
            return Greeting(agent=None)
        lost, warning = 0, ""
        if agent is None:
            if not self._make_room():
                return None
            node, warning = self._unique_node(hello)
            agent = AgentState(agent_id=hello.agent_id, node=node)
            # What the spool held before we knew the agent was acknowledged by someone else.
            agent.skip_to(max(0, hello.first_sequence - 1))
            self._agents[hello.agent_id] = agent
        elif hello.first_sequence > agent.kept_sequence + 1:
            lost = hello.first_sequence - 1 - agent.kept_sequence
            agent.skip_to(hello.first_sequence - 1)
        agent.stream = stream
        agent.epoch = _hashed(hello.spool_epoch) or agent.epoch
        agent.principal, agent.namespace = principal, namespace
        agent.left = agent.refused = False
        # It becomes the value of a label.
        agent.perfd_version = hello.perfd_version[: self._limits.name_chars]
        agent.capture_tools = tuple(hello.capture_tools)
        agent.received_s = now_s
        agent.saw_clock(hello.sent_unix_ns, received_unix_ns)
        return Greeting(agent=agent, lost=lost, warning=warning)

    def left(self, agent: AgentState, stream: int) -> None:
        """Close a stream, unless a newer one of the same agent has taken its place."""
        if agent.stream == stream:
            agent.stream = None

    def _unique_node(self, hello: Hello) -> tuple[str, str]:
        rival = self.of_node(hello.node)
        if rival is None:
            return hello.node, ""
        node = f"{hello.node}~{hello.agent_id[:8]}"
        if hello.node in self._warned:
            return node, ""
        self._warned.add(hello.node)
        return node, "Two agents have the same node name: give each its own name, or stop one."

    def _make_room(self) -> bool:
        if len(self._agents) < self._limits.agents:
            return True
        idle = [agent for agent in self._agents.values() if agent.stream is None]
        if not idle:
            return False
        del self._agents[min(idle, key=lambda agent: agent.received_s).agent_id]
        return True


def _is_same(agent: AgentState, hello: Hello, principal: str, *, every_life: bool) -> bool:
    """Whether a Hello with the identity of a known agent comes from that agent's spool.

    It shows the epoch that the aggregator knows, as that of this life or as the one before. Within one life
    the node stays the same: otherwise two agents opened copies of a spool that no aggregator knew yet. An
    agent that history knows without an epoch is taken at its word, unless its credential is for another node.
    Where not every life is known, the node alone has to be the same.
    """
    if agent.principal and agent.principal != principal:
        return False
    if agent.epoch and agent.epoch == _hashed(hello.spool_epoch):
        return hello.node in {agent.node, agent.node.rpartition("~")[0]}
    if agent.epoch and not every_life:
        return hello.node in {agent.node, agent.node.rpartition("~")[0]}
    if agent.epoch:
        # An agent that was downgraded has no epoch; its credential is enough while no other stream is open.
        downgraded = not hello.spool_epoch and bool(principal) and agent.stream is None
        return agent.epoch in {_hashed(hello.spool_epoch), _hashed(hello.previous_epoch)} or downgraded
    return not principal or bool(agent.principal) or agent.node.partition("~")[0] == hello.node


def _hashed(epoch: str) -> str:
    """What is kept of an epoch, so that who reads the history cannot pretend to be an agent."""
    return hashlib.sha256(epoch.encode()).hexdigest() if epoch else ""
