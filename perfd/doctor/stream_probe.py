"""Probes the stream that an aggregator reads from NATS, without changing anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfd.config import NatsListenConfig, NatsUplinkConfig
from perfd.doctor.stream_facts import ConsumerFacts, StreamFacts
from perfd.errors import PerfdError
from perfd.net import PUBLISHED_HEADER_BYTES, NatsConnector
from perfd.wire import subjects

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import ClusterInfo, ConsumerInfo, StreamConfig, StreamInfo

_BETWEEN_LOOKS_S = 2.0
"""In which a consumer whose reader is there delivers something: aggregators read at once. Chosen."""
_ANSWER_WITHIN_S = 5.0
"""For a request about the stream; without a leader there is no answer. Chosen."""


def probe_stream(config: NatsListenConfig) -> StreamFacts:
    """What its servers say of it, at two looks 2 s apart; failures are facts, too."""
    servers = ", ".join(config.servers)
    try:
        connector = NatsConnector(config, key="nats", name="perfd doctor")
        return asyncio.run(_looked(connector, config, servers))
    except PerfdError as error:
        return StreamFacts(servers=servers, name=config.stream, error=str(error))


async def _looked(connector: NatsConnector, config: NatsListenConfig, servers: str) -> StreamFacts:
    from nats.errors import Error, NoRespondersError  # noqa: PLC0415  (with the extra only)
    from nats.errors import TimeoutError as NatsTimeoutError  # noqa: PLC0415
    from nats.js.errors import NotFoundError, ServiceUnavailableError  # noqa: PLC0415

    client = await connector.connect(inbox="_INBOX_perfd", ended=lambda _reason: None)
    payload = client.max_payload
    needed = NatsUplinkConfig(servers=config.servers).max_message_bytes + PUBLISHED_HEADER_BYTES
    unread = StreamFacts(
        servers=servers, name=config.stream, max_payload_bytes=payload, needed_payload_bytes=needed
    )
    try:
        found = await client.jetstream(timeout=_ANSWER_WITHIN_S).stream_info(config.stream)
        if found.cluster is not None and not found.cluster.leader:
            # A leader that lost its followers steps down, and answers all the same.
            return replace(unread, answers=False)
        first = await _consumers(client, config.stream)
        if any(one.num_pending for one in first.known):
            await asyncio.sleep(_BETWEEN_LOOKS_S)
        second = await _consumers(client, config.stream)
    except NotFoundError:
        return replace(unread, exists=False)
    except NoRespondersError as error:
        raise PerfdError("JetStream is off on these servers.") from error
    except (NatsTimeoutError, ServiceUnavailableError):
        return replace(unread, answers=False)
    except Error as error:
        raise PerfdError(str(error)) from error
    finally:
        await client.close()
    return _facts(unread, config, found, first, second)


@dataclass(frozen=True, slots=True)
class _Consumers:
    known: Sequence[ConsumerInfo]
    silent: Sequence[str]
    """Those for which no server answers."""


async def _consumers(client: Client, stream: str) -> _Consumers:
    from nats.js.api import ConsumerInfo  # noqa: PLC0415  (with the extra only)

    # The client's own method leaves out those without a leader.
    answer = await client.request(f"$JS.API.CONSUMER.LIST.{stream}", timeout=_ANSWER_WITHIN_S)
    listed = json.loads(answer.data)
    return _Consumers(
        [ConsumerInfo.from_response(one) for one in listed.get("consumers") or ()],
        listed.get("missing") or (),
    )


def _facts(
    unread: StreamFacts,
    config: NatsListenConfig,
    found: StreamInfo,
    first: _Consumers,
    second: _Consumers,
) -> StreamFacts:
    before = {one.name: one for one in first.known}
    copies = (found.cluster.replicas or []) if found.cluster else []
    return replace(
        unread,
        leader=found.cluster.leader if found.cluster else None,
        behind=[one.name or "" for one in copies if one.offline or not one.current],
        replicas=found.config.num_replicas or 1,
        configured_replicas=config.replicas,
        messages=found.state.messages,
        bytes=found.state.bytes,
        max_bytes=-1 if found.config.max_bytes is None else found.config.max_bytes,
        loses=tuple(_loses(found.config)),
        subjects_missing=subjects.ALL_OF_AGENTS not in (found.config.subjects or ()),
        consumers=[
            *(_consumer(one, before.get(one.name)) for one in second.known),
            *(ConsumerFacts(name=name, leader=None) for name in second.silent),
        ],
    )


def _loses(config: StreamConfig) -> Iterator[str]:
    if config.retention != "workqueue":
        yield f"the retention is {config.retention}, not workqueue"
    if config.discard != "new":
        yield f"the discard policy is {config.discard}, not new"
    if config.max_age:
        yield f"max_age is {config.max_age:g} s"
    if (config.max_msgs_per_subject or 0) > 0 and not config.discard_new_per_subject:
        yield f"max_msgs_per_subject is {config.max_msgs_per_subject}"


def _consumer(now: ConsumerInfo, before: ConsumerInfo | None) -> ConsumerFacts:
    most = now.config.max_ack_pending or 0
    return ConsumerFacts(
        name=now.name,
        leader=_leader(now.cluster),
        waiting=now.num_pending or 0,
        unstored=now.num_ack_pending or 0,
        most_unstored=max(0, most),
        delivers=before is None or _delivered(now) != _delivered(before),
    )


def _leader(cluster: ClusterInfo | None) -> str | None:
    """The server that leads; one that is alone is not in a cluster."""
    return "the server" if cluster is None else cluster.leader or None


def _delivered(consumer: ConsumerInfo) -> int:
    return consumer.delivered.consumer_seq if consumer.delivered else 0
