"""When to reconnect to the aggregator: a policy without I/O.

Backoff with full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_STABLE_AFTER_S = 10.0
"""After a connection this long, the next failure counts as the first. A shorter one does not reset the
backoff: otherwise an aggregator that welcomes and then drops its agents would be called without a pause."""
_MAX_DOUBLINGS = 16
"""Bounds the power, which grows past any float during a long outage."""


@dataclass(frozen=True, slots=True)
class Started:
    """The agent should be connected from now on."""


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The aggregator answered."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection ended or failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The time of a `Wait` has passed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The agent ends."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect now; `Welcomed` or `Lost` follow."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for this long; `WaitOver` follows."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ReportConnection:
    """Log the first connection."""


@dataclass(frozen=True, slots=True)
class ReportOutage:
    """Log an outage, once."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportRecovery:
    """Log the end of an outage."""

    outage_s: float


Event: TypeAlias = Started | Welcomed | Lost | WaitOver | Stopped
Action: TypeAlias = Connect | Wait | ReportConnection | ReportOutage | ReportRecovery


class ReconnectPolicy:
    """Returns the actions for each event. `random` returns numbers from 0 to below 1."""

    def __init__(self, *, initial_s: float, max_s: float, random: Callable[[], float]) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._random = random
        self._failures = 0
        self._welcomed_s: float | None = None
        self._outage_since_s: float | None = None
        self._connected_before = False
        self._stopped = False

    def handle(self, event: Event, now_s: float) -> Sequence[Action]:
        """The actions for `event`, in order; none after `Stopped`."""
        if self._stopped:
            return ()
        match event:
            case Started() | WaitOver():
                return (Connect(),)
            case Welcomed():
                return self._welcomed(now_s)
            case Lost(reason):
                return self._lost(reason, now_s)
            case Stopped():
                self._stopped = True
                return ()

    def _welcomed(self, now_s: float) -> Sequence[Action]:
        self._welcomed_s = now_s
        since_s, self._outage_since_s = self._outage_since_s, None
        first, self._connected_before = not self._connected_before, True
        if since_s is not None:
            return (ReportRecovery(now_s - since_s),)
        return (ReportConnection(),) if first else ()

    def _lost(self, reason: str, now_s: float) -> Sequence[Action]:
        if self._welcomed_s is not None and now_s - self._welcomed_s >= _STABLE_AFTER_S:
            self._failures = 0
        self._welcomed_s = None
        ceiling_s = min(self._max_s, self._initial_s * 2 ** min(self._failures, _MAX_DOUBLINGS))
        self._failures += 1
        wait = Wait(self._random() * ceiling_s)
        if self._outage_since_s is not None:
            return (wait,)
        self._outage_since_s = now_s
        return (ReportOutage(reason), wait)
