"""Growable tables of one job's progress lines and phase timers, ordered by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.limits import Limits
from perfd.analysis.data.job_data import Floats, PhaseTable, StepTable
from perfd.model import PhaseTime, StepPhases, TrainingStep

_FIRST_ROWS = 64
"""Of a new table, which doubles when it is full."""
_FLOAT_COLUMNS = (
    "time_unix_s",
    "step_time_s",
    "flops_per_s_per_gpu",
    "tokens_per_s",
    "samples_per_s",
    "global_batch_size",
    "loss",
    "learning_rate",
)
_LOSS_NAMES = ("lm loss", "loss", "train_loss")


class Placed(Enum):
    """What became of a progress line."""

    APPENDED = "appended"
    INSERTED = "inserted"
    """Its step is below the newest and was not there yet: it came late."""
    MERGED = "merged"
    """Its step was there; the line only filled what the first one left open."""


class StepRows:
    """Progress lines by step; at most `limit` of them, the oldest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows = 0
        self._step: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        self._covered: NDArray[np.int64] = np.ones(_FIRST_ROWS, np.int64)
        self._warmup: NDArray[np.bool_] = np.zeros(_FIRST_ROWS, np.bool_)
        self._floats: NDArray[np.float64] = np.full((len(_FLOAT_COLUMNS), _FIRST_ROWS), np.nan)

    def __len__(self) -> int:
        return self._rows

    @property
    def last_step(self) -> int | None:
        """The highest step, or None before the first line."""
        return int(self._step[self._rows - 1]) if self._rows else None

    @property
    def one_a_line(self) -> bool:
        """Whether lines show steps one by one. In many logs only the first covers a single step."""
        return self._rows > 1 and self._covered[self._rows - 1] == 1

    @property
    def first_unix_s(self) -> float | None:
        """When the line of the lowest step was printed, or None before the first line."""
        return float(self._floats[0, 0]) if self._rows else None

    @property
    def last_unix_s(self) -> float | None:
        """When the line of the highest step was printed, or None before the first line."""
        return float(self._floats[0, self._rows - 1]) if self._rows else None

    @property
    def last_step_time_s(self) -> float | None:
        """How long the highest step took, or None where its line does not say."""
        took_s = float(self._floats[1, self._rows - 1]) if self._rows else math.nan
        return None if math.isnan(took_s) else took_s

    def unix_s(self, step: int) -> float | None:
        """When the line of a step was printed, or None where there is no such line."""
        row = int(np.searchsorted(self._step[: self._rows], step))
        known = row < self._rows and self._step[row] == step
        return float(self._floats[0, row]) if known else None

    def put(self, line: TrainingStep, fallback_unix_s: float) -> Placed:
        """Add one line; `fallback_unix_s` is its time if it has none."""
        values = _floats_of(line, fallback_unix_s)
        row = int(np.searchsorted(self._step[: self._rows], line.step))
        if row < self._rows and self._step[row] == line.step:
            current = self._floats[:, row]
            np.copyto(current, values, where=np.isnan(current))
            self._warmup[row] |= line.warmup
            return Placed.MERGED
        row -= self._make_room()
        if row < 0:
            return Placed.MERGED
        placed = Placed.APPENDED if row == self._rows else Placed.INSERTED
        if placed is Placed.INSERTED:
            self._shift(row)
        self._step[row] = line.step
        self._covered[row] = max(1, line.steps_covered)
        self._warmup[row] = line.warmup
        self._floats[:, row] = values
        self._rows += 1
        return placed

    def same_line(self, line: TrainingStep) -> bool:
        """Whether the step is already there with the same time and loss: the same line, read twice."""
        row = int(np.searchsorted(self._step[: self._rows], line.step))
        if row >= self._rows or self._step[row] != line.step:
            return False
        step_time_s, loss = self._floats[1, row], self._floats[6, row]
        return _same(step_time_s, _number(line.step_time_s)) and _same(loss, _first_loss(line.losses))

    def lost_by(self, line: TrainingStep, fallback_unix_s: float) -> dict[str, float]:
        """What a job lost that started again and now shows `line`: steps, their lines, and time in seconds.

        `lost_s` is since the job had reached that step before, or its newest one, without the time that the
        line says its own steps took.
        """
        if not self._rows:
            return {"lost_steps": 0.0, "lost_lines": 0.0, "lost_s": 0.0}
        row = int(np.searchsorted(self._step[: self._rows], line.step))
        at_unix_s = fallback_unix_s if line.time_unix_ns is None else line.time_unix_ns / 1e9
        took_s = 0.0 if row < self._rows else (line.step_time_s or 0.0) * line.steps_covered
        reached_unix_s = float(self._floats[0, min(row, self._rows - 1)])
        return {
            "lost_steps": float(max(0, int(self._step[self._rows - 1]) - line.step + 1)),
            "lost_lines": float(self._rows - row),
            "lost_s": max(0.0, at_unix_s - reached_unix_s - took_s),
        }

    def cut_from(self, step: int) -> None:
        """Forget the lines of `step` and later, as a resumed job does."""
        self._rows = int(np.searchsorted(self._step[: self._rows], step))

    def table(self) -> StepTable:
        """A copy that later lines do not change."""
        rows = self._rows
        floats = dict(zip(_FLOAT_COLUMNS, self._floats[:, :rows].copy(), strict=True))
        return StepTable(
            step=self._step[:rows].copy(),
            steps_covered=self._covered[:rows].copy(),
            warmup=self._warmup[:rows].copy(),
            **floats,
        )

    def _make_room(self) -> int:
        """Room for one more row; returns how many of the oldest rows went for it."""
        capacity = len(self._step)
        if self._rows < capacity:
            return 0
        if capacity >= self._limit:
            dropped = max(1, self._limit // 8)
            for array in (self._step, self._covered, self._warmup, self._floats):
                array[..., : self._rows - dropped] = array[..., dropped : self._rows].copy()
            self._rows -= dropped
            return dropped
        added = min(capacity * 2, self._limit) - capacity
        self._step = np.pad(self._step, (0, added))
        self._covered = np.pad(self._covered, (0, added))
        self._warmup = np.pad(self._warmup, (0, added))
        self._floats = np.pad(self._floats, ((0, 0), (0, added)), constant_values=np.nan)
        return 0

    def _shift(self, row: int) -> None:
        for array in (self._step, self._covered, self._warmup, self._floats):
            array[..., row + 1 : self._rows + 1] = array[..., row : self._rows].copy()


@dataclass(frozen=True, slots=True)
class _Phase:
    min_s: float
    max_s: float
    by_rank_s: Floats | None

    @property
    def cells(self) -> int:
        return 2 + (0 if self.by_rank_s is None else len(self.by_rank_s))


class PhaseRows:
    """Phase timers by step; bounded by rows, names, ranks, and by cells (rows times ranks of all names).

    When it is full, an eighth of the rows goes, the oldest steps first.
    """

    def __init__(self, *, rows: int, names: int, ranks: int, cells: int) -> None:
        self._max_rows = rows
        self._max_names = names
        self._max_ranks = ranks
        self._max_cells = cells
        self._rows: dict[int, dict[str, _Phase]] = {}
        self._names: dict[str, None] = {}
        self._cells = 0

    @classmethod
    def within(cls, limits: Limits) -> PhaseRows:
        """Those of a job, bounded by the limits of one."""
        return cls(
            rows=limits.steps_per_job,
            names=limits.phases_per_job,
            ranks=limits.ranks_per_job,
            cells=limits.phase_cells_per_job,
        )

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, block: StepPhases) -> int:
        """Add one block of timers; returns how many new names and ranks the bounds refused."""
        row = self._rows.setdefault(block.step, {})
        refused = 0
        for name, phase in block.phases.items():
            if name not in self._names and len(self._names) >= self._max_names:
                refused += 1
                continue
            self._names[name] = None
            beyond = sum(rank >= self._max_ranks for rank in phase.by_rank)
            refused += beyond
            new = _phase(phase, self._max_ranks)
            old = row.get(name)
            row[name] = new if old is None else _merged(old, new)
            self._cells += row[name].cells - (old.cells if old else 0)
        while len(self._rows) > self._max_rows or (self._cells > self._max_cells and len(self._rows) > 1):
            for oldest in sorted(self._rows)[: max(1, len(self._rows) // 8)]:
                self._forget(oldest)
        return refused

    def cut_from(self, step: int) -> None:
        """Forget the blocks of `step` and later."""
        for gone in [known for known in self._rows if known >= step]:
            self._forget(gone)

    def table(self, *, first_step: int = 0, ranks: int = 0) -> PhaseTable:
        """The blocks from `first_step` on, as arrays of their own, at least `ranks` wide."""
        steps = sorted(step for step in self._rows if step >= first_step)
        blocks = [self._rows[step] for step in steps]
        columns = {name: [block.get(name) for block in blocks] for name in self._names}
        columns = {name: column for name, column in columns.items() if any(column)}
        return PhaseTable(
            step=np.array(steps, np.int64),
            min_s={name: _column(column, "min_s") for name, column in columns.items()},
            max_s={name: _column(column, "max_s") for name, column in columns.items()},
            by_rank_s={
                name: _by_rank(column, ranks)
                for name, column in columns.items()
                if any(phase is not None and phase.by_rank_s is not None for phase in column)
            },
        )

    def _forget(self, step: int) -> None:
        self._cells -= sum(phase.cells for phase in self._rows.pop(step).values())


def _floats_of(line: TrainingStep, fallback_unix_s: float) -> Floats:
    time_unix_s = fallback_unix_s if line.time_unix_ns is None else line.time_unix_ns / 1e9
    return np.array(
        [
            time_unix_s,
            _number(line.step_time_s),
            _number(line.flops_per_s_per_gpu),
            _number(line.tokens_per_s),
            _number(line.samples_per_s),
            _number(line.global_batch_size),
            _first_loss(line.losses),
            _number(line.learning_rate),
        ]
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


def _first_loss(losses: Mapping[str, float]) -> float:
    # The order of a protobuf map is not the line's, so the main loss is known by its name.
    name = next((name for name in _LOSS_NAMES if name in losses), None)
    return losses[name if name is not None else min(losses)] if losses else math.nan


def _phase(phase: PhaseTime, max_ranks: int) -> _Phase:
    by_rank = {rank: seconds for rank, seconds in phase.by_rank.items() if rank < max_ranks}
    if not by_rank:
        return _Phase(_number(phase.min_s), _number(phase.max_s), None)
    ranks = np.fromiter(by_rank, np.int64, len(by_rank))
    seconds = np.fromiter(by_rank.values(), np.float64, len(by_rank))
    dense = np.full(int(ranks.max()) + 1, np.nan)
    dense[ranks] = seconds
    least, greatest = (phase.min_s, phase.max_s)
    return _Phase(
        float(seconds.min()) if least is None else least,
        float(seconds.max()) if greatest is None else greatest,
        dense,
    )


def _merged(old: _Phase, new: _Phase) -> _Phase:
    """What two reports of one timer of one step say together; ranks may have reported apart."""
    if old.by_rank_s is None or new.by_rank_s is None:
        by_rank = new.by_rank_s if old.by_rank_s is None else old.by_rank_s
    else:
        by_rank = np.full(max(len(old.by_rank_s), len(new.by_rank_s)), np.nan)
        for part in (old.by_rank_s, new.by_rank_s):
            np.copyto(by_rank[: len(part)], part, where=~np.isnan(part))
    return _Phase(float(np.fmin(old.min_s, new.min_s)), float(np.fmax(old.max_s, new.max_s)), by_rank)


def _column(column: list[_Phase | None], name: str) -> Floats:
    return np.array([math.nan if phase is None else getattr(phase, name) for phase in column], np.float64)


def _by_rank(column: list[_Phase | None], ranks: int) -> Floats:
    present = [
        (row, phase.by_rank_s) for row, phase in enumerate(column) if phase and phase.by_rank_s is not None
    ]
    array = np.full((len(column), max([ranks, *(len(dense) for _, dense in present)])), np.nan)
    for row, dense in present:
        array[row, : len(dense)] = dense
    return array
