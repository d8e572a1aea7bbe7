"""The polling clients, their next polls, and the answers: no I/O, time as an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from perfd.capture.kineto.kineto_protocol import ConfigPoll

POLL_PERIOD_S = 5.0
"""What libkineto does unless it is configured otherwise."""
_MAX_PERIOD_S = 15.0
"""A longer pause was a stall, as without a daemon, and does not predict the next poll."""
_FORGOTTEN_AFTER_S = 60.0
"""A process that polls does so every few seconds; one that was silent for so long has ended."""
_MAX_CLIENTS = 4096
"""Processes of one node that poll; beyond it the one that was silent longest is forgotten."""
_KEPT_INTERVALS = 4
"""Newest times between polls, from which the next one is expected."""

Key: TypeAlias = tuple[int, int]
"""A client: the host's pid, 0 if the kernel does not know it, and its pid in its own namespace."""


class ConfigDelivery(Enum):
    """The state of an order."""

    WAITING = "waiting"
    """Its process did not poll yet."""
    DELIVERED = "delivered"
    ACCEPTED = "accepted"
    """Delivered, and the process reported later that its profiler is busy."""
    MISSED = "missed"
    """It polled too late to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoClient:
    """The current state of a polling process."""

    key: Key
    pids: Sequence[int]
    """Itself and its ancestors, in its own namespace."""
    idle: bool
    silent_s: float
    period_s: float

    @property
    def host_pid(self) -> int:
        """The process as this node's /proc names it; 0 if unknown."""
        return self.key[0]

    @property
    def next_poll_s(self) -> float:
        """Time until its next poll, if it continues as before."""
        return max(0.0, self.period_s - self.silent_s)


@dataclass(slots=True, kw_only=True)
class _Seen:
    pids: Sequence[int]
    idle: bool
    last_s: float
    intervals_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_INTERVALS))


@dataclass(slots=True, kw_only=True)
class _Order:
    text: str
    before_s: float
    delivery: ConfigDelivery = ConfigDelivery.WAITING


class ClientRegistry:
    """The clients of one endpoint. Not thread-safe: the endpoint holds a lock."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._orders: dict[Key, _Order] = {}

    def poll(self, poll: ConfigPoll, host_pid: int, now_s: float) -> str:
        """Record a poll; returns the answer, empty for clients that have nothing to trace now."""
        key = (host_pid, poll.pids[0])
        self._note(key, poll, now_s)
        order = self._orders.get(key)
        if order is None:
            return ""
        if order.delivery is ConfigDelivery.DELIVERED and not poll.idle:
            order.delivery = ConfigDelivery.ACCEPTED
        if order.delivery is not ConfigDelivery.WAITING:
            return ""
        if now_s > order.before_s or not poll.idle:
            order.delivery = ConfigDelivery.MISSED
            return ""
        order.delivery = ConfigDelivery.DELIVERED
        return order.text

    def undelivered(self, key: Key) -> None:
        """The answer could not be sent: give it at the next poll."""
        if (order := self._orders.get(key)) is not None:
            order.delivery = ConfigDelivery.WAITING

    def clients(self, now_s: float) -> list[KinetoClient]:
        """The clients that polled within the last minute."""
        self._forget(now_s)
        return [
            KinetoClient(
                key=key,
                pids=seen.pids,
                idle=seen.idle,
                silent_s=now_s - seen.last_s,
                period_s=max(seen.intervals_s, default=POLL_PERIOD_S),
            )
            for key, seen in self._seen.items()
        ]

    def order(self, key: Key, text: str, *, before_s: float) -> None:
        """Give a client this configuration when it polls, but not after `before_s`."""
        self._orders[key] = _Order(text=text, before_s=before_s)

    def delivery(self, key: Key) -> ConfigDelivery:
        """The state of a client's order; `MISSED` if there is none."""
        order = self._orders.get(key)
        return order.delivery if order is not None else ConfigDelivery.MISSED

    def withdraw_all(self) -> None:
        """Withdraw all orders."""
        self._orders.clear()

    def _note(self, key: Key, poll: ConfigPoll, now_s: float) -> None:
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _MAX_CLIENTS:
                self._forget(now_s)
                self._drop_oldest()
            self._seen[key] = _Seen(pids=poll.pids, idle=poll.idle, last_s=now_s)
            return
        interval_s = now_s - seen.last_s
        if interval_s <= _MAX_PERIOD_S:
            seen.intervals_s.append(interval_s)
        seen.pids, seen.idle, seen.last_s = poll.pids, poll.idle, now_s

    def _forget(self, now_s: float) -> None:
        gone = [key for key, seen in self._seen.items() if now_s - seen.last_s > _FORGOTTEN_AFTER_S]
        for key in gone:
            del self._seen[key]

    def _drop_oldest(self) -> None:
        while len(self._seen) >= _MAX_CLIENTS:
            del self._seen[min(self._seen, key=lambda key: self._seen[key].last_s)]
