"""How long captures are kept, by the time for which agents watched their folder.

File times and the wall clock are not used: a clock that is set to 2038 and back makes nothing older. The
folder has a ledger of the seconds that agents watched it, and each capture's first appearance in this count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from perfd.errors import ConfigError

LOOK_EVERY_S = 600.0
"""An agent that lives for one job must see some of it pass."""
DAY_S = 86400.0
_SHORTEST_S = 3600.0
"""Longer than any capture takes, with everything that follows it."""
_NAME = ".perfd-retention"

OnRemoved: TypeAlias = Callable[[str, Sequence[Path], str], None]
"""Records for the aggregator that these files of a capture are about to be removed, and why."""


def keep_s(days: float | None, option: str) -> float | None:
    """How long an option keeps captures; None for forever. Raises `ConfigError`."""
    if days is not None and not days * DAY_S >= _SHORTEST_S:
        raise ConfigError(f"{option}: it must be at least an hour, {_SHORTEST_S / DAY_S:.3g} days, or null.")
    return None if days is None else days * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLedger:
    """The ages of the captures in a folder."""

    watched_s: float = 0.0
    seen_s: Mapping[str, float] = field(default_factory=dict)
    """By capture: the count when it was first seen."""


def looked(ledger: RetentionLedger, there: Collection[str]) -> RetentionLedger:
    """The ledger after exactly these captures were seen."""
    now_s = ledger.watched_s
    return RetentionLedger(
        watched_s=now_s, seen_s={name: min(ledger.seen_s.get(name, now_s), now_s) for name in sorted(there)}
    )


def expired(ledger: RetentionLedger, keep_s: float) -> Sequence[str]:
    """The captures that have been there for `keep_s`, the oldest first."""
    old = [(seen_s, name) for name, seen_s in ledger.seen_s.items() if ledger.watched_s - seen_s >= keep_s]
    return [name for _, name in sorted(old)]


class FolderWatch:
    """Keeps the ledger of a folder. Several agents may watch one folder: an hour counts once.

    One agent may overwrite another's entry for a new capture; the next scan adds it again. After a loss of
    the ledger every capture's age starts over.
    """

    def __init__(self, directory: Path, keep_s: float, *, who: str, option: str) -> None:
        """`who` is one of these agents, `option` the configuration key of `keep_s`."""
        self._path = directory / f"{_NAME}.json"
        self._fresh = directory / f"{_NAME}.{who}.new"
        self._keep_s = keep_s
        self.why = f"Removed after {keep_s / DAY_S:g} days ({option})."
        self._watched_s = 0.0
        self._looked_s: float | None = None

    def look(self, there: Collection[str], monotonic_s: float) -> Sequence[str]:
        """The expired ones of these captures, the oldest first; raises `OSError`.

        Works even if the ledger cannot be written: removal helps against a full disk.
        """
        stored = self._read()
        passed_s = 0.0 if self._looked_s is None else max(0.0, monotonic_s - self._looked_s)
        self._looked_s = monotonic_s
        # Other agents count the same hours: counts are never added.
        self._watched_s = max(stored.watched_s, self._watched_s + passed_s)
        ledger = looked(RetentionLedger(watched_s=self._watched_s, seen_s=stored.seen_s), there)
        if ledger != stored:
            self._write(ledger)
        return expired(ledger, self._keep_s)

    def _read(self) -> RetentionLedger:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=RetentionLedger)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # This agent's count continues, and every capture is new.
            return RetentionLedger()

    def _write(self, ledger: RetentionLedger) -> None:
        try:
            self._fresh.touch(mode=0o600)
            self._fresh.write_bytes(msgspec.json.encode(ledger))
            self._fresh.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                self._fresh.unlink(missing_ok=True)
