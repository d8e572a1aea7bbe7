"""The stream that agents publish to, and the consumer through which one aggregator at a time reads it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from perfd.aggregator.ingest.jetstream.known_consumers import KnownConsumers
from perfd.config import NatsListenConfig
from perfd.errors import PerfdError
from perfd.wire import subjects

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
"""Between two attempts to become the reader."""
_ANSWER_WITHIN_S = 2.0
"""For a request about the stream or its consumers; without a leader there is no answer."""
_REMOVED_WITHIN_S = 0.5
"""For the answer to a removal: the servers carry it out also where the consumer has no leader to answer."""
_NO_STREAM = 10059
_NOT_UNIQUE = 10100
"""A work queue has one consumer for each message."""
_REFUSED_BEFORE_REPAIR, _REFUSED_BEFORE_STEP_DOWN = 2, 3
"""How often a consumer is refused before an earlier one is removed again, and before another server leads the
stream: a removal takes a moment."""
_UNDELIVERED_FOR_S = 10.0
"""Without a message although the stream gets some: another server should lead the consumer. Elections take
as long."""
TAKE_OVER_AFTER_S = 5.0
"""A consumer that is not read for this long is removed. With leases there is no such wait."""
REFUSED_SUBJECTS = "perfd.refused.>"
_REFUSED_BYTES = 256 << 20
"""Of refused messages that are kept, the newest. Chosen."""
_REFUSED_FOR_S = 7 * 86_400.0
"""How long refused messages are kept. Chosen."""
_DUPLICATES_S = 120.0
"""How long the stream recognizes repeats; the aggregator always does."""
_MOST_UNACKNOWLEDGED = 200_000
"""Read and not stored: as many as 1,000 nodes send in 200 s in which history cannot be written."""
_DELIVER_AGAIN_AFTER_S = 3600.0
"""Only what no aggregator ever settled. A new consumer delivers at once what the last one left."""


async def ensure_streams(js: JetStreamContext, config: NatsListenConfig) -> None:
    """Create the streams if they do not exist; raises `PerfdError` if an existing one would lose batches."""
    from nats.js import api  # noqa: PLC0415  (with the extra only)
    from nats.js.errors import NotFoundError  # noqa: PLC0415

    try:
        found = (await js.stream_info(config.stream)).config
    except NotFoundError:
        await js.add_stream(
            api.StreamConfig(
                name=config.stream,
                description="What perfd's agents publish, until an aggregator stored it.",
                subjects=[subjects.ALL_OF_AGENTS],
                retention=api.RetentionPolicy.WORK_QUEUE,
                # Otherwise a full stream would lose what agents no longer have.
                discard=api.DiscardPolicy.NEW,
                max_bytes=config.max_bytes,
                num_replicas=config.replicas,
                duplicate_window=_DUPLICATES_S,
            )
        )
    else:
        if found.retention != api.RetentionPolicy.WORK_QUEUE or found.discard != api.DiscardPolicy.NEW:
            raise PerfdError(
                f"The stream {config.stream} may lose batches: it needs the retention `workqueue` and the "
                "discard policy `new`. If it holds nothing you need, delete it and perfd creates it; "
                "else name another."
            )
    refused = refused_stream(config)
    try:
        await js.stream_info(refused)
    except NotFoundError:
        await js.add_stream(
            api.StreamConfig(
                name=refused,
                description="Messages that perfd's aggregator refused, and why.",
                subjects=[REFUSED_SUBJECTS],
                discard=api.DiscardPolicy.OLD,
                max_bytes=_REFUSED_BYTES,
                max_age=_REFUSED_FOR_S,
                num_replicas=config.replicas,
            )
        )


def refused_stream(config: NatsListenConfig) -> str:
    """The name of the stream with what could not be taken."""
    return f"{config.stream}-refused"


class StreamMissingError(PerfdError):
    """The stream was deleted."""


class Readers:
    """Lets one aggregator at a time read a cluster's messages.

    Each reader creates its own consumer, with a random name. Who takes over removes the one before, so
    that an aggregator that was paused and comes back can neither read nor acknowledge.
    """

    def __init__(
        self,
        config: NatsListenConfig,
        subject: str,
        take_over_after_s: float,
        may_read: Callable[[], bool] = lambda: True,
        *,
        name: str = "",
    ) -> None:
        """A consumer of the same `subject` that is not read for `take_over_after_s` is removed.

        With the `name` of a part of a cluster, whose reader holds its lease, all others of it are removed.
        """
        self._may_read = may_read
        self._config = config
        self._subject = subject
        self._take_over_after_s = take_over_after_s
        self._cluster_prefix = f"perfd-{subjects.token(config.cluster)}-"
        self._prefix = f"{self._cluster_prefix}{name}-" if name else self._cluster_prefix
        self._of_part = bool(name)
        self._own: str | None = None
        self._waits = False
        self._refused = 0
        """How often in a row the stream did not take a consumer because of another one."""
        self._known = KnownConsumers(config.cluster, name)

    async def open(self, client: Client) -> str:
        """Create a consumer once no other aggregator reads; its name. Raises `PerfdError` without a lease."""
        from nats.js.errors import BadRequestError  # noqa: PLC0415  (with the extra only)

        js = client.jetstream(timeout=_ANSWER_WITHIN_S)
        if not self._may_read():
            raise PerfdError("The lease of this partition has ended.")
        if self._of_part:
            await self._remove_all(client, js)
        else:
            await self._wait_for_others(client, js)
            if self._own is not None:
                await self._known.note(js, [self._own])
                await self._remove(client, self._own)
        self._own = name = f"{self._prefix}{secrets.token_hex(8)}"
        # Of a reader that is killed with a server, too, the next one has to know the name.
        await self._known.note(client.jetstream(timeout=_REMOVED_WITHIN_S), [name])
        try:
            await self._create(js, name)
        except BadRequestError as error:
            if error.err_code == _NOT_UNIQUE:
                await self._repair(client, js)
            raise
        self._refused = 0
        return name

    async def _create(self, js: JetStreamContext, name: str) -> None:
        from nats.js import api  # noqa: PLC0415  (with the extra only)

        await js.add_consumer(
            self._config.stream,
            api.ConsumerConfig(
                durable_name=name,
                filter_subject=self._subject,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=_DELIVER_AGAIN_AFTER_S,
                max_ack_pending=_MOST_UNACKNOWLEDGED,
            ),
        )

    async def watch(self, client: Client, received: Callable[[], int]) -> None:
        """Until canceled, have another server lead the consumer if it delivers none of the new messages.

        A nats-server 2.9 that was killed may find no messages of a subject that its stream has. `received` is
        how many messages came.
        """
        before = received(), await self._stored_messages(client)
        while True:
            await asyncio.sleep(_UNDELIVERED_FOR_S)
            now = received(), await self._stored_messages(client)
            if now[0] == before[0] and None not in {now[1], before[1]} and (now[1] or 0) > (before[1] or 0):
                log.warning(
                    "NATS stores messages and delivers none: another server takes the lead of the consumer.",
                    extra={"stream": self._config.stream, "consumer": self._own},
                )
                with contextlib.suppress(Exception):
                    await self._ask(client, "CONSUMER.LEADER.STEPDOWN", {}, consumer=self._own)
            before = now

    async def _stored_messages(self, client: Client) -> int | None:
        """How many messages of this reader's subject the stream has; None without an answer."""
        with contextlib.suppress(Exception):
            answer = await self._ask(client, "STREAM.INFO", {"subjects_filter": self._subject})
            return int(sum((answer["state"].get("subjects") or {}).values()))
        return None

    async def leader(self, client: Client) -> str | None:
        """The name of the server that leads the stream; None if none answers or has a name."""
        with contextlib.suppress(Exception):
            found = (await self._ask(client, "STREAM.INFO", {})).get("cluster", {}).get("leader")
            return None if found is None else str(found)
        return None

    async def step_down(self, client: Client) -> None:
        """Ask the server that leads the stream to leave that to another one."""
        await self._ask(client, "STREAM.LEADER.STEPDOWN", {})

    def silence(self, leader: str | None) -> str:
        """What is wrong with a stream that brings nothing, and what to do, in a sentence."""
        who = f"server {leader}, which leads it" if leader else "the server that leads it"
        return f"The stream {self._config.stream} in NATS takes or delivers nothing: restart {who}."

    async def close(self, client: Client) -> None:
        """Let the next aggregator read at once."""
        if self._own is not None:
            await self._known.note(client.jetstream(timeout=_REMOVED_WITHIN_S), [self._own])
            await self._remove(client, self._own)

    async def _wait_for_others(self, client: Client, js: JetStreamContext) -> None:
        """Wait until no other consumer is read, and remove it."""
        known: dict[str, tuple[int, int]] = {}
        still_since_s = time.monotonic()
        while others := await self._others(js):
            positions = {one.name: _position(one) for one in others}
            if positions != known or any(one.num_waiting for one in others):
                known, still_since_s = positions, time.monotonic()
            elif time.monotonic() - still_since_s >= self._take_over_after_s:
                await self._known.note(js, [one.name for one in others])
                for one in others:
                    await self._remove(client, one.name)
                break
            if not self._waits:
                self._waits = True
                log.info(
                    "Another aggregator reads the messages of this cluster: this one waits.",
                    extra={"cluster": self._config.cluster},
                )
            await asyncio.sleep(_LOOK_EVERY_S)
        self._waits = False

    async def _others(self, js: JetStreamContext) -> list[ConsumerInfo]:
        found = await js.consumers_info(self._config.stream)
        self._require_no_strangers(one.name for one in found)
        return [one for one in found if one.config.filter_subject == self._subject and one.name != self._own]

    async def _remove_all(self, client: Client, js: JetStreamContext) -> None:
        """Remove the consumers of earlier readers by their names.

        Their states would take seconds to collect while a server is away, and those that it led lack.
        """
        names = await self._names(client)
        self._require_no_strangers(names)
        old = []
        for name in names:
            rest = name.removeprefix(self._cluster_prefix)
            if name.startswith(self._prefix) or (
                # Of an earlier perfd, whose names have no part.
                rest != name
                and "-" not in rest
                and (await js.consumer_info(self._config.stream, name)).config.filter_subject == self._subject
            ):
                old.append(name)
        await self._known.note(client.jetstream(timeout=_REMOVED_WITHIN_S), old)
        for name in old:
            await self._remove(client, name)

    def _require_no_strangers(self, names: Iterable[str]) -> None:
        strangers = [name for name in names if not name.startswith("perfd-")]
        if strangers:
            raise PerfdError(
                f"The stream {self._config.stream} is read by {', '.join(strangers)} too: messages that it "
                "takes are missing here. Remove that consumer, or name another stream."
            )

    async def _names(self, client: Client) -> list[str]:
        """The names of all consumers; raises `PerfdError` without an answer."""
        found: list[str] = []
        while True:
            answer = await self._ask(client, "CONSUMER.NAMES", {"offset": len(found)})
            names = answer.get("consumers") or []
            found += names
            if not names or len(found) >= answer.get("total", 0):
                return found

    async def _repair(self, client: Client, js: JetStreamContext) -> None:
        """Have the servers forget a consumer that is not there any more.

        nats-server 2.9 may keep one that was removed, or made, while a server was away: it is in no list,
        cannot be removed, and no other one can take its messages. Created again under its name, it can be.
        Where only the stream's leader counts it, another leader does not.
        """
        from nats.js.errors import APIError  # noqa: PLC0415  (with the extra only)

        self._refused += 1
        if self._refused >= _REFUSED_BEFORE_REPAIR:
            for name in await self._known.names(js):
                # All but the one that is still there are refused as the new one was.
                with contextlib.suppress(APIError):
                    await self._create(js, name)
                    await self._remove(client, name)
                    log.warning(
                        "NATS servers kept a consumer that was removed: it is removed again.",
                        extra={"stream": self._config.stream, "consumer": name},
                    )
                    return
        if self._refused % _REFUSED_BEFORE_STEP_DOWN == 0:
            log.warning(
                "The stream's leader refuses a consumer because of one that was removed: another server "
                "takes the lead.",
                extra={"stream": self._config.stream},
            )
            await self._ask(client, "STREAM.LEADER.STEPDOWN", {})

    async def _ask(
        self, client: Client, what: str, request: dict[str, Any], *, consumer: str | None = None
    ) -> dict[str, Any]:
        subject = f"$JS.API.{what}.{self._config.stream}{'' if consumer is None else f'.{consumer}'}"
        reply = await client.request(subject, json.dumps(request).encode(), timeout=_ANSWER_WITHIN_S)
        answer: dict[str, Any] = json.loads(reply.data)
        if "error" in answer:
            if answer["error"].get("err_code") == _NO_STREAM:
                raise StreamMissingError(f"There is no stream {self._config.stream}.")
            raise PerfdError(f"NATS: {answer['error'].get('description')}.")
        return answer

    async def _remove(self, client: Client, name: str) -> None:
        from nats.errors import TimeoutError as NoAnswerError  # noqa: PLC0415  (with the extra only)
        from nats.js.errors import NotFoundError  # noqa: PLC0415

        with contextlib.suppress(NotFoundError, NoAnswerError):
            js = client.jetstream(timeout=_REMOVED_WITHIN_S)
            await js.delete_consumer(self._config.stream, name)


def _position(consumer: ConsumerInfo) -> tuple[int, int]:
    delivered, floor = consumer.delivered, consumer.ack_floor
    return (delivered.consumer_seq if delivered else 0, floor.consumer_seq if floor else 0)
