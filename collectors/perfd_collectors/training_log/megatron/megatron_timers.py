"""Megatron's timer blocks, in each shape that `--timing-log-option` and the versions give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfd.model import PhaseTime
from perfd_collectors.training_log.number_text import number

_HEADER = re.compile(r"(?:\(min, max\) time|max time|times) across ranks \(ms\):\s*$")
# Rows: four spaces, the name, dots up to 48 columns, a colon. Forks differ in the width.
_ROW = re.compile(r"\s*([\w/.-]*\w) \.*: *(?:\(([\d.]+), ([\d.]+)\)|([\d.]+))\s*$", re.ASCII)
_NAME = re.compile(r"\s*([\w/.-]*\w):\s*$", re.ASCII)
_RANK = re.compile(r"\s*rank +(\d+): +([\d.]+)\s*$", re.ASCII)
_MAX_FOREIGN_LINES = 20

_NOT_OF_A_STEP = frozenset(
    {
        "model-and-optimizer-setup",
        "train/valid/test-data-iterators-setup",
        "load-checkpoint",
        "save-checkpoint",
        "save-checkpoint-non-persistent",
        "evaluate",
        "eval-time",
        "interval-time",
        "all-reduce-start-timestamps-tensor",
    }
)
"""Timers that are printed on occasions of their own, never once a step."""


@dataclass(slots=True)
class _Block:
    phases: dict[str, PhaseTime] = field(default_factory=dict)
    by_rank: dict[str, dict[int, float]] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    name: str | None = None
    foreign: int = 0
    contested: bool = False
    """Rows of another block came in between, and nobody can tell whose they are."""

    @property
    def empty(self) -> bool:
        return not self.phases and not self.by_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerBlock:
    """A block that has ended: timers of a step, and those of an occasion (a checkpoint, the start)."""

    of_step: Mapping[str, PhaseTime]
    occasional: Mapping[str, PhaseTime]


class TimerBlocks:
    """Collects rows into blocks. A block is open from its header until something that is no row ends it."""

    def __init__(self) -> None:
        self._block: _Block | None = None
        self._cut_short = False
        """The last block ended before its first row: its rows may come in the next one."""

    @property
    def open(self) -> bool:
        """Whether the next line may be a row."""
        return self._block is not None

    def header(self, text: str) -> bool:
        """Open a block if the text ends in a header. One that is open must be closed first."""
        if not _HEADER.search(text):
            return False
        self._block = _Block(contested=self._cut_short)
        return True

    def row(self, text: str) -> bool:
        """Take in a row of the open block; False when the text is no row."""
        block = self._block
        if block is None:
            return False
        if not (self._total(block, text) or self._of_rank(block, text)):
            block.foreign += bool(text.strip())
            return False
        return True

    @property
    def overdue(self) -> bool:
        """Whether so much else came that the block must have ended."""
        return self._block is not None and self._block.foreign > _MAX_FOREIGN_LINES

    def close(self) -> TimerBlock | None:
        """Hand over the open block."""
        block, self._block = self._block, None
        if block is None:
            return None
        self._cut_short = block.empty
        if block.contested:
            return None
        phases = {name: phase for name, phase in block.phases.items() if name not in block.doubtful}
        for name, by_rank in block.by_rank.items():
            if name not in block.doubtful and by_rank:
                # No extremes: nobody says that all ranks are there.
                phases[name] = PhaseTime(by_rank=by_rank)
        return TimerBlock(
            of_step={name: phase for name, phase in phases.items() if not _occasional(name)},
            occasional={name: phase for name, phase in phases.items() if _occasional(name)},
        )

    def _total(self, block: _Block, text: str) -> bool:
        match = _ROW.match(text)
        if match is None:
            return False
        name, low, high, single = match.groups()
        if low is not None:
            min_s, max_s = _seconds(low), _seconds(high)
        else:
            # Before core 0.5 rows of `max` came under the header of `minmax`.
            min_s, max_s = None, _seconds(single)
        if max_s is None or (low is not None and min_s is None):
            return False
        if name in block.phases:
            # Two blocks at once, of two jobs in one stream: nobody can tell whose row this is.
            block.doubtful.add(name)
        block.phases[name] = PhaseTime(min_s=min_s, max_s=max_s)
        return True

    def _of_rank(self, block: _Block, text: str) -> bool:
        if match := _RANK.match(text):
            if block.name is None:
                block.contested = True
                return False
            value = _seconds(match[2])
            by_rank = block.by_rank.setdefault(block.name, {})
            if value is None:
                return False
            if by_rank and int(match[1]) <= max(by_rank):
                block.doubtful.add(block.name)
            by_rank[int(match[1])] = value
            return True
        if match := _NAME.match(text):
            if block.name is not None and block.name not in block.by_rank:
                block.contested = True
            block.name = match[1]
            if match[1] in block.by_rank:
                block.doubtful.add(match[1])
            return True
        return False


def _occasional(name: str) -> bool:
    return name in _NOT_OF_A_STEP or name.startswith("startup-")


def _seconds(milliseconds: str) -> float | None:
    return number(milliseconds, -3)


_ONE_LINE = re.compile(r"time \(ms\) \|(.*)$")


def one_line_timers(text: str) -> dict[str, float] | None:
    """Seconds by timer of a line `time (ms) | name: value | ...`; None when the text holds none.

    The line's end is the last value's terminator, so the text must be a complete line.
    """
    match = _ONE_LINE.search(text)
    if match is None:
        return None
    timers: dict[str, float] = {}
    for piece in match[1].split("|"):
        name, _, value = piece.rpartition(":")
        seconds = _seconds(value)
        if seconds is not None and re.fullmatch(r"[\w/ .-]+", name.strip(), re.ASCII):
            timers[name.strip()] = seconds
    return timers
