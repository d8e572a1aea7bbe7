"""When to connect to the aggregator again: a policy without I/O, so that tests can ask it anything.

Backoff with full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_STABLE_AFTER_S = 10.0
"""A connection that lasted so long makes the next failure a first one again. Without it, an
aggregator that welcomes and then drops its agents would be called without a pause."""
_MAX_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class Started:
    """The agent wants to be connected from now on."""


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The aggregator answered."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection ended, or could not be made."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The time that a `Wait` asked for has passed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The agent ends."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect now; `Welcomed` or `Lost` follow."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so long; `WaitOver` follows."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ReportOutage:
    """Tell the operator, once for an outage."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportRecovery:
    """Tell the operator that an outage is over."""

    outage_s: float


Event: TypeAlias = Started | Welcomed | Lost | WaitOver | Stopped
Action: TypeAlias = Connect | Wait | ReportOutage | ReportRecovery


class ReconnectPolicy:
    """Decides what follows on each event. `random` returns numbers from 0 to below 1."""

    def __init__(self, *, initial_s: float, max_s: float, random: Callable[[], float]) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._random = random
        self._failures = 0
        self._welcomed_s: float | None = None
        self._outage_since_s: float | None = None
        self._stopped = False

    def handle(self, event: Event, now_s: float) -> Sequence[Action]:
        """What to do about `event`, in order; nothing any more after `Stopped`."""
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
        return () if since_s is None else (ReportRecovery(now_s - since_s),)

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
