"""Checks of the streams in NATS that an aggregator reads; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfd.doctor.check_result import CheckResult, Level, check, fail, ok, warn
from perfd.doctor.node_facts import NodeFacts
from perfd.doctor.stream_facts import ConsumerFacts, StreamFacts
from perfd.formatting import data_size

_ALMOST_FULL = 0.8
"""Of `max_bytes`: there is time left to look for what does not read. Chosen."""
_ELECTION = (
    "Elections take up to 10 s. If it lasts, restart the servers one by one (docs/scale.md, nats-server)."
)


@check("stream", "stream in NATS")
def check_stream(node: NodeFacts) -> CheckResult:
    """Whether the stream takes batches, loses none, and is read."""
    facts = node.stream
    if facts is None:
        return ok("not checked without nats in --aggregator-config")
    found = list(_problems(facts))
    of_level = [one for one in found if one.level is Level.FAIL] or found
    if of_level:
        worst = of_level[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return replace(worst, what=worst.what + more)
    if not facts.exists:
        return ok(f"{facts.name} does not exist yet: the aggregator creates it")
    limit = "no limit" if facts.max_bytes < 0 else data_size(facts.max_bytes)
    leads = f", led by {facts.leader}" if facts.leader else ""
    return ok(
        f"{facts.name}{leads}: {data_size(facts.bytes)} of {limit}, {facts.messages} messages, "
        f"{facts.replicas} copies, {len(facts.consumers)} consumers"
    )


def _problems(facts: StreamFacts) -> Iterator[CheckResult]:
    if facts.error:
        yield fail(
            f"{facts.servers} cannot be used: {facts.error}",
            "Start the servers, or correct nats in the aggregator's configuration.",
        )
        return
    if not facts.answers:
        yield fail(f"no server answers for the stream {facts.name}: it has no leader", _ELECTION)
        return
    if facts.exists:
        yield from _of_configuration(facts)
        yield from _of_state(facts)
        for one in facts.consumers:
            yield from _of_consumer(one)
    if facts.max_payload_bytes < facts.needed_payload_bytes:
        yield warn(
            f"{facts.servers} take messages of at most {data_size(facts.max_payload_bytes)}",
            f"Set max_payload of the servers to {facts.needed_payload_bytes}, or a smaller "
            "uplink.nats.max_message_bytes on the agents.",
        )


def _of_configuration(facts: StreamFacts) -> Iterator[CheckResult]:
    if facts.loses:
        yield fail(
            f"the stream {facts.name} may lose batches: {', '.join(facts.loses)}",
            "Correct it with `nats stream edit`, or delete it if it holds nothing you need.",
        )
    if facts.subjects_missing:
        yield fail(
            f"the stream {facts.name} does not take what agents publish",
            "Name another one in nats.stream, or delete it and perfd creates it.",
        )
    if facts.replicas < facts.configured_replicas:
        yield warn(
            f"{facts.replicas} servers store the stream, and nats.replicas is {facts.configured_replicas}",
            f"Set it: `nats stream edit {facts.name} --replicas {facts.configured_replicas}`.",
        )


def _of_state(facts: StreamFacts) -> Iterator[CheckResult]:
    if facts.behind:
        yield warn(
            f"copies of the stream {facts.name} are offline or behind: {', '.join(facts.behind)}",
            "Start these servers, and wait until they are healthy (/healthz) before others are restarted.",
        )
    if facts.max_bytes > 0 and facts.bytes >= facts.max_bytes * _ALMOST_FULL:
        full = facts.bytes >= facts.max_bytes
        what = f"the stream {facts.name} holds {data_size(facts.bytes)} of {data_size(facts.max_bytes)}"
        fix = "Start what reads it or stores history, or enlarge it: `nats stream edit --max-bytes`. "
        fix += "If it is full, batches stay in the agents' spools."
        yield fail(what, fix) if full else warn(what, fix)
    if facts.messages and not facts.consumers:
        yield fail(
            f"nothing reads the stream {facts.name}, which holds {facts.messages} messages",
            "Start an aggregator with this configuration.",
        )


def _of_consumer(one: ConsumerFacts) -> Iterator[CheckResult]:
    if one.leader is None:
        yield fail(f"the consumer {one.name} has no leader", _ELECTION)
    elif one.most_unstored and one.unstored >= one.most_unstored:
        yield fail(
            f"the consumer {one.name} delivers no more: {one.unstored} messages are not stored",
            "See why history takes nothing: the check of history, and the aggregator's log.",
        )
    elif one.waiting and not one.delivers:
        yield warn(
            f"the consumer {one.name} delivers none of {one.waiting} messages",
            "See whether the aggregator that reads it runs. perfd has another server lead it after 10 s; if "
            "that does not help, restart the servers one by one.",
        )
