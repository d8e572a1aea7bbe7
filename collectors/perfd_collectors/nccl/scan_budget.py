"""Which files are looked at next: anybody may put thousands into a directory that is everybody's."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class ScanBudget:
    """Shares out a bounded number of looks: each file gets one a window, and new ones come first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()
        """By name, that were ever looked at."""
        self._settled: set[str] = set()
        """That need no look in this window."""

    def next(self, present: Sequence[str]) -> list[str]:
        """The files to look at now, of those that are there."""
        waiting = [name for name in present if name not in self._settled]
        waiting.sort(key=self._known.__contains__)
        chosen = waiting[: self._most]
        self._known.update(chosen)
        self._settled.update(chosen)
        return chosen

    def begin_window(self, present: Collection[str], settled: Collection[str]) -> None:
        """All may be looked at again, but for those that are `settled`, once each had its turn."""
        self._known.intersection_update(present)
        if self._settled.issuperset(present):
            self._settled = set(settled)
        else:
            self._settled.intersection_update(present)
