"""Which changes of alerts others may know of: pure, the time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfd.model import Alert

_ANNOUNCED_AFTER_S = 30.0
"""So long after its round a change is announced although neither database nor NATS took it: longer than the
elections of either. Chosen."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    changes: Sequence[Alert]
    stored: Callable[[], bool]
    since_s: float


class Announcements:
    """Holds changes back, in order, until they are stored.

    An alert that is announced and not stored would be announced again, with another start, by whoever
    continues after a kill.
    """

    def __init__(self, held: Callable[[], bool] | None = None) -> None:
        """Without `held`, whether a lease is held, no other one continues, and nothing is held back."""
        self._held = held
        self._waiting: deque[_Waiting] = deque()

    def __len__(self) -> int:
        """How many rounds' changes wait."""
        return len(self._waiting)

    def add(self, changes: Sequence[Alert], stored: Callable[[], bool], now_s: float) -> None:
        """Note changes that were just handed to history; `stored` is whether it has them."""
        if changes:
            self._waiting.append(_Waiting(changes, stored, now_s))

    def due(self, now_s: float) -> list[Alert]:
        """The changes that may be announced now, which then no longer wait."""
        found: list[Alert] = []
        while self._waiting:
            first = self._waiting[0]
            late = now_s - first.since_s >= _ANNOUNCED_AFTER_S
            if self._held is not None and not first.stored() and not (late and self._held()):
                break
            found += first.changes
            self._waiting.popleft()
        return found

    def known(self, active: Sequence[Alert]) -> Sequence[Alert]:
        """Of alerts that are active now, those whose start does not wait."""
        if not self._waiting:
            return active
        waiting = {alert.firing_identity for one in self._waiting for alert in one.changes if alert.firing}
        return [alert for alert in active if alert.firing_identity not in waiting]
