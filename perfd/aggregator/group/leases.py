"""Partition leases in a NATS JetStream key-value bucket, renewed by a separate thread.

The server removes a key that is not renewed for `lease_s`. A renewal must name the key's previous revision,
so at most one aggregator holds a lease, regardless of clock differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfd.aggregator.group.sharing import GroupView, Holder, Holding, has_lease_time, is_valid, wanted
from perfd.config import NatsGroupConfig, NatsListenConfig
from perfd.errors import PerfdError
from perfd.net import LoopThread, NatsConnector
from perfd.wire.subjects import lease_bucket

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.kv import KeyValue

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
"""Interval at which the group is checked for partitions to claim."""
_RENEWALS_PER_LEASE = 4
"""A lease survives a late or failed renewal."""
_RETRY_S = 0.5
_STOP_WITHIN_S = 3.0
_MEMBER, _PARTITION = "member", "partition"


@dataclass(frozen=True, slots=True)
class _Entry:
    value: dict[str, str]
    revision: int
    seen_s: float


class Leases:
    """Holds this aggregator's share of the partitions, from `start` to `stop`. Thread-safe.

    Its thread calls `changed` when a partition is gained or lost, or should be released.
    """

    def __init__(self, config: NatsListenConfig, group: NatsGroupConfig, changed: Callable[[], None]) -> None:
        self._group = group
        self._connector = NatsConnector(config, key="nats", name="perfd aggregator group")
        self._cluster = config.cluster
        self._replicas = config.replicas
        self._changed = changed
        self.member = secrets.token_hex(4)
        self._address = ""
        self._view = GroupView()
        self._holdings: dict[int, Holding] = {}
        self._releasing: set[int] = set()
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._complained = False
        self._released: set[int] = set()
        self._renewed_s = 0.0
        self._thread = LoopThread(self._run, name="perfd-leases")

    def start(self, address: str) -> None:
        """Join the group; other members reach this one at `address`."""
        self._address = address
        self._thread.start()

    def stop(self) -> None:
        """Leave the group. Partitions still held are free for others at once."""
        self._thread.stop(_STOP_WITHIN_S)

    @property
    def view(self) -> GroupView:
        """The current state of the group."""
        return self._view

    def held(self, partition: int, epoch: int) -> bool:
        """Whether the lease that began with `epoch` is still valid."""
        return is_valid(self._holdings.get(partition), epoch, time.monotonic())

    def mine(self) -> dict[int, int]:
        """Epochs of the partitions that this aggregator should serve."""
        now_s = time.monotonic()
        with self._lock:
            return {
                number: holding.epoch
                for number, holding in self._holdings.items()
                if number not in self._releasing and now_s < holding.valid_until_s
            }

    def releasing(self) -> set[int]:
        """Partitions that this aggregator holds and should release."""
        with self._lock:
            return set(self._releasing)

    def released(self, partition: int) -> None:
        """Report that a partition in `releasing` is no longer in use here."""
        with self._lock:
            if partition in self._releasing:
                self._released.add(partition)

    async def _run(self) -> None:
        inbox = f"_INBOX_perfd_{secrets.token_hex(8)}"
        # A lease is over after a few retries, so waits must not grow.
        await self._connector.keep_connected(inbox, self._take_part, self._note_lost, last_retry_s=_RETRY_S)

    def _note_lost(self, reason: str) -> None:
        self._view = replace(self._view, connected=False)
        if not self._complained:
            self._complained = True
            log.warning("Leases of partitions cannot be renewed now.", extra={"reason": reason})

    async def _take_part(self, client: Client) -> None:
        bucket = await self._bucket(client)
        self._entries.clear()
        watcher = await bucket.watchall()
        known = asyncio.Event()
        watching = asyncio.create_task(self._watch(watcher, known))
        turns: asyncio.Task[None] | None = None
        try:
            # Learn the members and holders before claiming anything.
            async with asyncio.timeout(self._group.lease_s):
                await known.wait()
            turns = asyncio.create_task(self._turns(bucket))
            await asyncio.wait({turns, watching}, return_when=asyncio.FIRST_COMPLETED)
            if turns.done():
                turns.result()
            raise PerfdError("The group is not watched any more.")
        finally:
            if turns is not None and self._thread.stopping:
                # A turn that is cut off may have claimed a lease that would not be given up.
                await asyncio.wait({turns}, timeout=_STOP_WITHIN_S / 3)
                async with asyncio.timeout(_STOP_WITHIN_S / 3):
                    await self._leave(bucket)
            tasks = [task for task in (turns, watching) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turns(self, bucket: KeyValue) -> None:
        while not self._thread.stopping:
            await self._turn(bucket)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _bucket(self, client: Client) -> KeyValue:
        from nats.js import api  # noqa: PLC0415  (with the extra only)
        from nats.js.errors import BucketNotFoundError, NotFoundError  # noqa: PLC0415

        js, name = client.jetstream(timeout=self._group.lease_s / 2), lease_bucket(self._cluster)
        try:
            bucket = await js.key_value(name)
        except (BucketNotFoundError, NotFoundError):
            return await js.create_key_value(
                api.KeyValueConfig(
                    bucket=name,
                    description="The perfd aggregator that holds each partition.",
                    ttl=self._group.lease_s,
                    replicas=self._replicas,
                )
            )
        ttl_s = (await bucket.status()).ttl
        if not has_lease_time(ttl_s, self._group.lease_s):
            raise PerfdError(
                f"The bucket {name} has leases of {ttl_s} s, and nats.group.lease_s is "
                f"{self._group.lease_s}: set the same on all aggregators; to change it, stop all of them "
                "and delete the bucket."
            )
        return bucket

    async def _watch(self, watcher: KeyValue.KeyWatcher, known: asyncio.Event) -> None:
        async for entry in watcher:
            if entry is None:
                known.set()
                self._complained = False
                self._view = replace(self._view, connected=True)
            elif entry.operation is None and entry.value is not None:
                with contextlib.suppress(ValueError):
                    seen = _Entry(json.loads(entry.value), entry.revision or 0, time.monotonic())
                    self._entries[entry.key] = seen
            else:
                self._entries.pop(entry.key, None)

    async def _turn(self, bucket: KeyValue) -> None:
        before = self.mine()
        now_s = time.monotonic()
        if now_s - self._renewed_s >= self._group.lease_s / _RENEWALS_PER_LEASE:
            await self._renew(bucket)
            self._renewed_s = now_s
        for number in tuple(self._released):
            await self._give_up(bucket, number)
        self._look()
        holders = {number: holder.member for number, holder in self._view.holders.items()}
        do = wanted(self._group.partitions, self._view.members, holders, self.member)
        for number in do.claim:
            await self._claim(bucket, number)
        with self._lock:
            self._releasing |= set(do.release) & self._holdings.keys()
        if self.mine() != before:
            self._look()
            self._changed()

    def _look(self) -> None:
        """Update the view from keys seen within `lease_s`: the server does not announce expired keys."""
        now_s = time.monotonic()
        for key in [key for key, one in self._entries.items() if now_s - one.seen_s > self._group.lease_s]:
            del self._entries[key]
        members = {self.member: self._address}
        holders: dict[int, Holder] = {}
        for key, entry in self._entries.items():
            kind, _, name = key.partition(".")
            member, address = entry.value.get("member", ""), entry.value.get("address", "")
            if kind == _MEMBER:
                members[name] = address
            elif kind == _PARTITION and name.isdecimal() and member != self.member:
                epoch = int(entry.value.get("epoch") or entry.revision)
                holders[int(name)] = Holder(member=member, address=address, epoch=epoch)
        for number, holding in self._holdings.items():
            holders[number] = Holder(member=self.member, address=self._address, epoch=holding.epoch)
        self._view = replace(self._view, members=members, holders=holders)

    async def _renew(self, bucket: KeyValue) -> None:
        from nats.js.errors import KeyWrongLastSequenceError  # noqa: PLC0415  (with the extra only)

        await bucket.put(f"{_MEMBER}.{self.member}", self._value())
        for number, holding in tuple(self._holdings.items()):
            sent_s = time.monotonic()
            try:
                revision = await bucket.update(
                    f"{_PARTITION}.{number}", self._value(holding.epoch), last=holding.revision
                )
            except KeyWrongLastSequenceError:
                log.warning("The lease of a partition is lost.", extra={"partition": number})
                self._drop(number)
                continue
            renewed = replace(holding, revision=revision, valid_until_s=sent_s + self._group.lease_s)
            self._holdings[number] = renewed

    async def _claim(self, bucket: KeyValue, number: int) -> None:
        from nats.js.errors import KeyWrongLastSequenceError  # noqa: PLC0415  (with the extra only)

        sent_s = time.monotonic()
        try:
            revision = await bucket.create(f"{_PARTITION}.{number}", self._value())
        except KeyWrongLastSequenceError:
            return
        with self._lock:
            self._holdings[number] = Holding(
                epoch=revision, revision=revision, valid_until_s=sent_s + self._group.lease_s
            )

    async def _give_up(self, bucket: KeyValue, number: int) -> None:
        from nats.js.errors import APIError  # noqa: PLC0415  (with the extra only)

        if (holding := self._holdings.get(number)) is not None:
            with contextlib.suppress(APIError):
                await bucket.delete(f"{_PARTITION}.{number}", last=holding.revision)
        self._drop(number)

    async def _leave(self, bucket: KeyValue) -> None:
        for number in tuple(self._holdings):
            await self._give_up(bucket, number)
        await bucket.delete(f"{_MEMBER}.{self.member}")

    def _drop(self, number: int) -> None:
        with self._lock:
            self._holdings.pop(number, None)
            self._releasing.discard(number)
            self._released.discard(number)
            self._entries.pop(f"{_PARTITION}.{number}", None)

    def _value(self, epoch: int | None = None) -> bytes:
        value = {"member": self.member, "address": self._address}
        if epoch is not None:
            value["epoch"] = str(epoch)
        return json.dumps(value).encode()
