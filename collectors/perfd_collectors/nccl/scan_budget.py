"""Which files to open next: any user may put thousands into a world-writable directory."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class ScanBudget:
    """Bounds how many files are opened at a time: each gets one turn per window, new ones first."""

    def __init__(self, max_files: int) -> None:
        self._max_files = max_files
        self._known: set[str] = set()
        """Names of files that had a turn in any window."""
        self._scanned: set[str] = set()
        """Names of files that need no turn in this window."""

    def next(self, present: Sequence[str]) -> list[str]:
        """The files to open now, of those present."""
        waiting = [name for name in present if name not in self._scanned]
        waiting.sort(key=self._known.__contains__)
        chosen = waiting[: self._max_files]
        self._known.update(chosen)
        self._scanned.update(chosen)
        return chosen

    def begin_window(self, present: Collection[str], skipped: Collection[str]) -> None:
        """Start a new window once each file had its turn; those to be `skipped` need none."""
        self._known.intersection_update(present)
        if self._scanned.issuperset(present):
            self._scanned = set(skipped)
        else:
            self._scanned.intersection_update(present)
