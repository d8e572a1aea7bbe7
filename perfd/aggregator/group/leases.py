"""Partition leases in a NATS JetStream key-value bucket, renewed by a separate thread.

A lease that others saw no renewal of for `lease_s` is free. Renewals and claims must name the key's previous
revision, so at most one aggregator holds a lease, regardless of clock differences.
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
from dataclasses import replace
from typing import TYPE_CHECKING

from perfd.aggregator.group.lease_entries import LeaseEntries, lease_value, member_key, partition_key
from perfd.aggregator.group.peers import may_listen
from perfd.aggregator.group.sharing import GroupView, Holder, Holding, has_lease_time, is_valid, wanted
from perfd.config import NatsGroupConfig, NatsListenConfig
from perfd.errors import PerfdError
from perfd.net import LoopThread, NatsConnector, end_tasks
from perfd.wire.subjects import lease_bucket

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.kv import KeyValue

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
"""Interval at which the group is checked for partitions to claim."""
_RENEWALS_PER_LEASE = 4
"""A lease survives a late or failed renewal."""
_KEPT_LEASES = 20
"""How many times `lease_s` the server keeps a key that is not renewed, so that a holder can go on after an
election of the servers, which takes up to 10 s."""
_SETTLED_LEASES = 2
"""After so many leases without another member, partitions move to those that joined: one that was killed
and comes back is often followed by the next, as in an upgrade. Chosen."""
_ANSWERS_FOR_S = 15.0
"""How long a holder whose lease is over answers with its last numbers, while it knows no other one."""
_TRIED_WITHIN_S = 5.0
"""From one attempt to keep the leases to the next, where a server that hangs has to be left first."""
_WATCHER_KEPT_S = 30.0
"""When the server removes the consumer of a connection that is gone."""
_RETRY_S = 0.5
"""Between attempts to reach NATS: a small part of a lease, so that one lost connection loses no lease."""
_STOP_WITHIN_S = 3.0
"""For the release of leases at the end; what is not released expires by itself."""
_MOST_COMPLAINTS = 8
"""Different reasons that are logged during one outage, so that it does not fill the log."""


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
        self._entries = LeaseEntries(self.member, group.lease_s)
        self._lock = threading.Lock()
        self._complaints: set[str] = set()
        self._released: set[int] = set()
        self._renewed_s = 0.0
        self._members_changed_s = float("-inf")
        self._tried_s = float("-inf")
        """When this process last tried to keep its leases, or to reach the servers for that."""
        self._wrote_s = self._writable_since_s = float("-inf")
        """The newest write to the bucket, and the first one after the newest gap."""
        self._writes_failed = True
        self._recovered_s = float("-inf")
        """The first write after some that failed, or after the start: others may have failed, too."""
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

    def answers(self, partition: int, epoch: int) -> bool:
        """Whether this aggregator answers for a partition, although its lease may just have ended."""
        return is_valid(self._holdings.get(partition), epoch, time.monotonic() - _ANSWERS_FOR_S)

    def serves(self, partition: int, epoch: int) -> bool:
        """Whether to make numbers of a partition: also where a lease just ended as it could not be renewed.

        While the bucket has no leader none can be claimed either. A process that was paused did not try.
        """
        tried = time.monotonic() - self._tried_s < _TRIED_WITHIN_S
        return self.held(partition, epoch) or (tried and self.answers(partition, epoch))

    def mine(self) -> dict[int, int]:
        """Epochs of the partitions that this aggregator should serve.

        Its lease may be over, then `held` is false, until a renewal succeeds or finds another holder.
        """
        with self._lock:
            return {
                number: holding.epoch
                for number, holding in self._holdings.items()
                if number not in self._releasing
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
        self._writes_failed = True
        self._tried_s = time.monotonic()
        self._view = replace(self._view, connected=False)
        self._keep_released()
        if reason not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(reason)
            log.warning("Leases of partitions cannot be renewed now.", extra={"reason": reason})

    def _keep_released(self) -> None:
        """Go on with partitions that were to be given up: while none can be claimed no other member would."""
        with self._lock:
            kept = bool(self._releasing)
            self._releasing.clear()
            self._released.clear()
        if kept:
            self._changed()

    async def _take_part(self, client: Client) -> None:
        self._tried_s = time.monotonic()
        bucket = await self._bucket(client)
        self._entries.clear()
        watcher = await bucket.watch(">", inactive_threshold=_WATCHER_KEPT_S)
        known = asyncio.Event()
        watching = asyncio.create_task(self._watch(watcher, known))
        turns: asyncio.Task[None] | None = None
        try:
            # Learn the members and holders before claiming anything.
            async with asyncio.timeout(self._group.lease_s):
                await known.wait()
            await self._require_same_partitions()
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
            await end_tasks(*(task for task in (turns, watching) if task is not None))

    async def _require_same_partitions(self) -> None:
        """Raises `PerfdError` if the bucket's group divides its jobs into another number of partitions."""
        began_s = time.monotonic()
        if not any(self._entries.divided_otherwise(self._group.partitions)):
            return
        # Those of aggregators that are gone are not renewed.
        await asyncio.sleep(self._group.lease_s)
        for one in self._entries.divided_otherwise(self._group.partitions):
            if one.seen_s > began_s:
                raise PerfdError(
                    f"The aggregator at {one.value.get('address')} divides this cluster's jobs into "
                    f"{one.value['partitions']} partitions, and nats.group.partitions is "
                    f"{self._group.partitions}: set the same on all aggregators and agents, "
                    "or another `cluster`."
                )

    async def _turns(self, bucket: KeyValue) -> None:
        while not self._thread.stopping:
            await self._turn(bucket)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _bucket(self, client: Client) -> KeyValue:
        from nats.js import api  # noqa: PLC0415  (with the extra only)
        from nats.js.errors import BucketNotFoundError, NotFoundError  # noqa: PLC0415

        # Without a leader there is no answer: once there is one, it is asked again soon.
        js = client.jetstream(timeout=self._group.lease_s / 2)
        name = lease_bucket(self._cluster)
        try:
            bucket = await js.key_value(name)
        except (BucketNotFoundError, NotFoundError):
            return await js.create_key_value(
                api.KeyValueConfig(
                    bucket=name,
                    description="The perfd aggregator that holds each partition.",
                    ttl=self._group.lease_s * _KEPT_LEASES,
                    replicas=self._replicas,
                )
            )
        ttl_s = (await bucket.status()).ttl
        # An earlier perfd made buckets whose keys end with their lease.
        if not any(has_lease_time(ttl_s, self._group.lease_s * kept) for kept in (_KEPT_LEASES, 1)):
            leases_s = "no end" if ttl_s is None else f"{ttl_s / _KEPT_LEASES:g} s"
            raise PerfdError(
                f"The bucket {name} is for leases of {leases_s}, and nats.group.lease_s is "
                f"{self._group.lease_s}: set the same on all aggregators; to change it, stop all of them "
                "and delete the bucket."
            )
        return bucket

    async def _watch(self, watcher: KeyValue.KeyWatcher, known: asyncio.Event) -> None:
        async for entry in watcher:
            if entry is None:
                known.set()
                self._complaints.clear()
                self._view = replace(self._view, connected=True)
            elif entry.operation is None and entry.value is not None:
                self._see(entry.key, entry.value, entry.revision or 0)
            else:
                self._entries.forget(entry.key)

    def _see(self, key: str, value: bytes, revision: int) -> None:
        self._entries.see(key, lease_value(value), revision, time.monotonic())

    async def _turn(self, bucket: KeyValue) -> None:
        before = self.mine()
        now_s = self._tried_s = time.monotonic()
        if now_s - self._renewed_s >= self._group.lease_s / _RENEWALS_PER_LEASE:
            await self._renew(bucket)
            self._renewed_s = now_s
        for number in tuple(self._released):
            await self._give_up(bucket, number)
        await self._ask_overdue()
        self._look()
        holders = {number: holder.member for number, holder in self._view.holders.items()}
        settled = time.monotonic() - self._members_changed_s > _SETTLED_LEASES * self._group.lease_s
        do = wanted(self._group.partitions, self._view.members, holders, self.member, settled=settled)
        for number in do.claim:
            await self._claim(bucket, number)
        with self._lock:
            self._releasing |= set(do.release) & self._holdings.keys()
        if self.mine() != before:
            self._look()
            self._changed()

    async def _ask_overdue(self) -> None:
        """Find out which of the members that did not renew their leases are dead."""
        overdue = self._entries.overdue(time.monotonic(), self._writable_since_s, self._recovered_s)
        asked = [
            may_listen(address, self._group.lease_s / _RENEWALS_PER_LEASE) for address in overdue.values()
        ]
        for member, lives in zip(overdue, await asyncio.gather(*asked), strict=True):
            if not lives:
                self._entries.gone(member)

    def _look(self) -> None:
        """Update the view from keys seen within `lease_s`."""
        members, holders = self._entries.valid(time.monotonic(), self._writable_since_s, self._recovered_s)
        members[self.member] = self._address
        if members.keys() != self._view.members.keys():
            self._members_changed_s = time.monotonic()
        for number, holding in self._holdings.items():
            holders[number] = Holder(member=self.member, address=self._address, epoch=holding.epoch)
        self._view = replace(self._view, members=members, holders=holders)

    async def _renew(self, bucket: KeyValue) -> None:
        from nats.js.errors import KeyWrongLastSequenceError  # noqa: PLC0415  (with the extra only)

        written = await bucket.put(member_key(self.member), self._value())
        self._entries.wrote(written, time.monotonic())
        self._note_written()
        for number, holding in tuple(self._holdings.items()):
            sent_s = time.monotonic()
            key, value = partition_key(number), self._value(holding.epoch)
            try:
                revision = await bucket.update(key, value, last=holding.revision)
            except KeyWrongLastSequenceError:
                # A renewal whose answer was lost is stored all the same, and the next one must name it.
                stored = await _revision_of(bucket, key, value)
                if stored is None:
                    log.warning("The lease of a partition is lost.", extra={"partition": number})
                    self._drop(number)
                    continue
                revision, sent_s = stored, holding.valid_until_s - self._group.lease_s
            renewed = replace(holding, revision=revision, valid_until_s=sent_s + self._group.lease_s)
            self._holdings[number] = renewed

    def _note_written(self) -> None:
        """Note a write to the bucket; raises `PerfdError` if what is written is not seen."""
        now_s = time.monotonic()
        if now_s - self._wrote_s > self._group.lease_s / 2:
            self._writable_since_s = now_s
        if self._writes_failed:
            self._writes_failed, self._recovered_s = False, now_s
        self._wrote_s = now_s
        seen_s = max(self._writable_since_s, self._entries.seen_s(member_key(self.member)))
        if now_s - seen_s > self._group.lease_s:
            raise PerfdError("NATS: changes of the leases do not arrive.")

    async def _claim(self, bucket: KeyValue, number: int) -> None:
        from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError  # noqa: PLC0415  (the extra's)

        key, sent_s = partition_key(number), time.monotonic()
        ended = self._entries.revision(key)
        try:
            if ended is None:
                revision = await bucket.create(key, self._value())
            else:
                revision = await bucket.update(key, self._value(), last=ended)
        except (KeyWrongLastSequenceError, KeyNotFoundError):
            # Another one was faster, or the server removed the key. The stored lease counts from now on: a
            # holder that is gone sends no renewal, and a claim has to name the revision.
            self._entries.forget(key)
            entry = await _stored(bucket, key)
            if entry is not None and entry.value is not None and self._entries.revision(key) is None:
                self._see(key, entry.value, entry.revision or 0)
            return
        with self._lock:
            self._holdings[number] = Holding(
                epoch=revision, revision=revision, valid_until_s=sent_s + self._group.lease_s
            )

    async def _give_up(self, bucket: KeyValue, number: int) -> None:
        from nats.js.errors import APIError  # noqa: PLC0415  (with the extra only)

        if (holding := self._holdings.get(number)) is not None:
            with contextlib.suppress(APIError):
                await bucket.delete(partition_key(number), last=holding.revision)
        self._drop(number)

    async def _leave(self, bucket: KeyValue) -> None:
        for number in tuple(self._holdings):
            await self._give_up(bucket, number)
        await bucket.delete(member_key(self.member))

    def _drop(self, number: int) -> None:
        with self._lock:
            self._holdings.pop(number, None)
            self._releasing.discard(number)
            self._released.discard(number)
            self._entries.forget_own(number)

    def _value(self, epoch: int | None = None) -> bytes:
        value = {
            "member": self.member,
            "address": self._address,
            "partitions": str(self._group.partitions),
        }
        if epoch is not None:
            value["epoch"] = str(epoch)
        return json.dumps(value).encode()


async def _stored(bucket: KeyValue, key: str) -> KeyValue.Entry | None:
    """What the bucket has of a key; None if it has nothing."""
    from nats.js.errors import KeyNotFoundError  # noqa: PLC0415  (with the extra only)

    try:
        return await bucket.get(key)
    except KeyNotFoundError:
        return None


async def _revision_of(bucket: KeyValue, key: str, value: bytes) -> int | None:
    """The revision of a key if it has this value; None otherwise."""
    entry = await _stored(bucket, key)
    return entry.revision if entry is not None and entry.value == value else None
