"""The stream that agents publish to, and the consumer through which one aggregator at a time reads it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfd.config import NatsListenConfig
from perfd.errors import PerfdError
from perfd.wire import subjects

if TYPE_CHECKING:
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
"""Between two attempts to become the reader."""
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
    ) -> None:
        """A consumer of the same `subject` that is not read for `take_over_after_s` is removed."""
        self._may_read = may_read
        self._config = config
        self._subject = subject
        self._take_over_after_s = take_over_after_s
        self._prefix = f"perfd-{subjects.token(config.cluster)}-"
        self._own: str | None = None
        self._waits = False

    async def open(self, js: JetStreamContext) -> str:
        """Create a consumer once no other aggregator reads; its name. Raises `PerfdError` without a lease."""
        from nats.js import api  # noqa: PLC0415  (with the extra only)

        if not self._may_read():
            raise PerfdError("The lease of this partition has ended.")
        known: dict[str, tuple[int, int]] = {}
        still_since_s = time.monotonic()
        while others := await self._others(js):
            positions = {one.name: _position(one) for one in others}
            reads = positions != known or any(one.num_waiting for one in others)
            if reads and self._take_over_after_s:
                known, still_since_s = positions, time.monotonic()
            elif time.monotonic() - still_since_s >= self._take_over_after_s:
                for one in others:
                    await self._remove(js, one.name)
                break
            if not self._waits:
                self._waits = True
                log.info(
                    "Another aggregator reads the messages of this cluster: this one waits.",
                    extra={"cluster": self._config.cluster},
                )
            await asyncio.sleep(_LOOK_EVERY_S)
        self._waits = False
        if self._own is not None:
            await self._remove(js, self._own)
        self._own = name = f"{self._prefix}{secrets.token_hex(8)}"
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
        return name

    async def close(self, js: JetStreamContext) -> None:
        """Let the next aggregator read at once."""
        if self._own is not None:
            await self._remove(js, self._own)

    async def _others(self, js: JetStreamContext) -> list[ConsumerInfo]:
        found = await js.consumers_info(self._config.stream)
        strangers = [one.name for one in found if not one.name.startswith("perfd-")]
        if strangers:
            raise PerfdError(
                f"The stream {self._config.stream} is read by {', '.join(strangers)} too: messages that it "
                "takes are missing here. Remove that consumer, or name another stream."
            )
        return [one for one in found if one.config.filter_subject == self._subject and one.name != self._own]

    async def _remove(self, js: JetStreamContext, name: str) -> None:
        from nats.js.errors import NotFoundError  # noqa: PLC0415  (with the extra only)

        try:
            await js.delete_consumer(self._config.stream, name)
        except NotFoundError:
            return


def _position(consumer: ConsumerInfo) -> tuple[int, int]:
    delivered, floor = consumer.delivered, consumer.ack_floor
    return (delivered.consumer_seq if delivered else 0, floor.consumer_seq if floor else 0)
