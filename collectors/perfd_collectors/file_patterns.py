"""Files that match a pattern, in folders that users may have filled or linked as they like."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator
from pathlib import Path

_MOST_ENTRIES = 100_000
"""Looked at for one pattern, about 0.3 s: a user can make folders without end. Chosen, not measured."""


class _Budget:
    """Entries of folders that may still be looked at."""

    def __init__(self, entries: int) -> None:
        self._left = entries

    def entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """Those of a folder, until the budget is spent; none of one that cannot be read."""
        try:
            with os.scandir(folder or os.curdir) as found:
                for entry in found:
                    if self._left <= 0:
                        return
                    self._left -= 1
                    yield entry
        except OSError:
            return


def matching_paths(pattern: str, *, most_entries: int = _MOST_ENTRIES) -> list[str]:
    """Paths that match `*`, `?`, `[...]` and `**`, sorted; those that were found in time.

    As `glob.glob` finds them, but `**` follows no links: two that lead to their own folder would keep it
    busy for hours.
    """
    parts = Path(pattern).parts
    begin = Path(pattern).anchor
    return sorted(set(_matching(begin, parts[1:] if begin else parts, _Budget(most_entries))))


def _matching(folder: str, parts: tuple[str, ...], budget: _Budget) -> Iterator[str]:
    if not parts:
        yield folder
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _below(folder, rest, budget)
    elif glob.has_magic(first):
        for entry in budget.entries(folder):
            hidden = entry.name.startswith(".") and not first.startswith(".")
            if not hidden and fnmatch.fnmatch(entry.name, first):
                yield from _matching(os.path.join(folder, entry.name), rest, budget)  # noqa: PTH118  (text is faster)
    else:
        path = os.path.join(folder, first)  # noqa: PTH118
        if rest or os.path.lexists(path):
            yield from _matching(path, rest, budget)


def _below(folder: str, rest: tuple[str, ...], budget: _Budget) -> Iterator[str]:
    """Matches in a folder and in all below it."""
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if rest:
            yield from _matching(here, rest, budget)
        for entry in budget.entries(here):
            if entry.name.startswith("."):
                continue
            path = os.path.join(here, entry.name)  # noqa: PTH118
            if not rest:
                yield path
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
