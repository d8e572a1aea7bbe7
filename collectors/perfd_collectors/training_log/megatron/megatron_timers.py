"""Megatron's timer blocks, in all variants of `--timing-log-option` and versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfd.model import PhaseTime
from perfd_collectors.training_log.printed_fields import number

_HEADER = re.compile(r"(?:\(min, max\) time|max time|times) across ranks \(ms\):\s*$")
# Rows: four spaces, name, dots up to column 48, colon. Forks use another width.
_ROW = re.compile(r"\s*([\w/.-]*\w) \.*: *(?:\(([\d.]+), ([\d.]+)\)|([\d.]+))\s*$", re.ASCII)
_NAME = re.compile(r"\s*([\w/.-]*\w):\s*$", re.ASCII)
_RANK = re.compile(r"\s*rank +(\d{1,15}): +([\d.]+)\s*$", re.ASCII)
_MAX_FOREIGN_LINES = 20
"""Lines of other writers inside a block; after more, the block must have ended. Chosen, not measured."""

_EVENT_TIMERS = frozenset(
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
"""Timers of events such as checkpoints, not of steps."""


@dataclass(slots=True)
class _Block:
    phases: dict[str, PhaseTime] = field(default_factory=dict)
    by_rank: dict[str, dict[int, float]] = field(default_factory=dict)
    ambiguous: set[str] = field(default_factory=set)
    name: str | None = None
    foreign: int = 0
    interleaved: bool = False
    """Another block is interleaved, so that rows cannot be assigned."""

    @property
    def empty(self) -> bool:
        return not self.phases and not self.by_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerBlock:
    """A complete block: timers of a step, and those of events such as checkpoints."""

    of_step: Mapping[str, PhaseTime]
    of_event: Mapping[str, PhaseTime]


class TimerBlocks:
    """Collects rows into blocks. A block is open from its header until a line that ends it."""

    def __init__(self) -> None:
        self._block: _Block | None = None
        self._cut_short = False
        """The last block ended before its first row: its rows may follow in the next one."""

    @property
    def open(self) -> bool:
        """Whether the next line may be a row."""
        return self._block is not None

    def header(self, text: str) -> bool:
        """Open a block if the text ends with a header; an open one must be closed first."""
        if not _HEADER.search(text):
            return False
        self._block = _Block(interleaved=self._cut_short)
        return True

    def row(self, text: str) -> bool:
        """Add a row to the open block; returns False when the text is not a row."""
        block = self._block
        if block is None:
            return False
        if not (self._total(block, text) or self._of_rank(block, text)):
            block.foreign += bool(text.strip())
            return False
        return True

    @property
    def overdue(self) -> bool:
        """Whether so many other lines came that the block must have ended."""
        return self._block is not None and self._block.foreign > _MAX_FOREIGN_LINES

    def close(self) -> TimerBlock | None:
        """Close and return the open block; None if there is none or it is unusable."""
        block, self._block = self._block, None
        if block is None:
            return None
        self._cut_short = block.empty
        if block.interleaved:
            return None
        phases = {name: phase for name, phase in block.phases.items() if name not in block.ambiguous}
        for name, by_rank in block.by_rank.items():
            if name not in block.ambiguous and by_rank:
                # No minimum and maximum: ranks may be missing.
                phases[name] = PhaseTime(by_rank=by_rank)
        return TimerBlock(
            of_step={name: phase for name, phase in phases.items() if not _is_event_timer(name)},
            of_event={name: phase for name, phase in phases.items() if _is_event_timer(name)},
        )

    def _total(self, block: _Block, text: str) -> bool:
        match = _ROW.match(text)
        if match is None:
            return False
        name, low, high, single = match.groups()
        if low is not None:
            min_s, max_s = _seconds(low), _seconds(high)
        else:
            # Before core 0.5 rows of `max` have the header of `minmax`.
            min_s, max_s = None, _seconds(single)
        if max_s is None or (low is not None and min_s is None):
            return False
        if name in block.phases:
            # Interleaved blocks of two jobs in one stream: the row cannot be assigned.
            block.ambiguous.add(name)
        block.phases[name] = PhaseTime(min_s=min_s, max_s=max_s)
        return True

    def _of_rank(self, block: _Block, text: str) -> bool:
        if match := _RANK.match(text):
            if block.name is None:
                block.interleaved = True
                return False
            value = _seconds(match[2])
            by_rank = block.by_rank.setdefault(block.name, {})
            if value is None:
                return False
            if by_rank and int(match[1]) <= max(by_rank):
                block.ambiguous.add(block.name)
            by_rank[int(match[1])] = value
            return True
        if match := _NAME.match(text):
            if block.name is not None and block.name not in block.by_rank:
                block.interleaved = True
            block.name = match[1]
            if match[1] in block.by_rank:
                block.ambiguous.add(match[1])
            return True
        return False


def _is_event_timer(name: str) -> bool:
    return name in _EVENT_TIMERS or name.startswith("startup-")


def _seconds(milliseconds: str) -> float | None:
    return number(milliseconds, -3)


_ONE_LINE = re.compile(r"time \(ms\) \|(.*)$")


def one_line_timers(text: str) -> dict[str, float] | None:
    """Seconds by timer of a line `time (ms) | name: value | ...`; None when the text is not one.

    The text must be a complete line, because its end terminates the last value.
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
