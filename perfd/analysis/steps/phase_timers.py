"""Phase timers by what they mean, and which of them lie inside which.

Names and nesting are those of Megatron-LM (all versions), DeepSpeed and the
forks that perfd knows; a name that is not here is kept by the parsers and
ignored by the analysis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints, PhaseTable, StepTable
from perfd.analysis.data.robust_stats import median

WINDOW = "forward-backward"
"""The whole pipeline schedule; since Megatron core 0.7 it holds the gradients' finalization too."""
FORWARD = ("forward-compute", "forward", "fwd")
BACKWARD = ("backward-compute", "backward", "bwd")
_WITHOUT_WAITING = ("forward-compute", "backward-compute")
"""Megatron-LM times compute apart from the collectives of data parallelism. Around other training loops the
backward phase ends when the gradients are reduced, and forward may begin with gathering parameters."""
OPTIMIZER = ("optimizer", "step")
DATA = ("batch-generator", "data-iterator", "data_loading")

FINALISATION = (
    "all-grads-sync",
    "embedding-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "non-tensor-parallel-grads-all-reduce",
)
"""Gradient communication at the end of `forward-backward`."""

COMMUNICATION: Mapping[str, str | None] = {
    **dict.fromkeys(FINALISATION),
    "params-all-gather": "optimizer",
    "grads-all-reduce": None,
    "grads-reduce-scatter": None,
    "backward-reduce-model-grads": None,
    "backward-params-all-reduce": "backward-reduce-model-grads",
    "backward-layernorm-all-reduce": "backward-reduce-model-grads",
    "backward-embedding-all-reduce": "backward-reduce-model-grads",
    "backward-gather-model-params": None,
    "backward_allreduce": "backward",
    "bwd_allreduce": "bwd",
    "optimizer_allgather": "step",
}
"""Timers whose clock runs only while a collective is the job's only work, and what holds each."""

DATA_PARALLEL = frozenset(COMMUNICATION) - {
    "embedding-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "non-tensor-parallel-grads-all-reduce",
    "backward-layernorm-all-reduce",
    "backward-embedding-all-reduce",
}
"""Those over data-parallel groups: the others join the first and last stage, or tensor groups."""

POINT_TO_POINT = (
    "forward-recv",
    "forward-send",
    "backward-recv",
    "backward-send",
    "forward-send-backward-recv",
    "backward-send-forward-recv",
    "forward-send-forward-recv",
    "backward-send-backward-recv",
    "forward-backward-send-forward-backward-recv",
)
"""Transfers between stages, inside `forward-backward`. Most of their time is waiting for the peer,
which is the pipeline's stall, so they do not count as communication."""


@dataclass(frozen=True, slots=True)
class Timers:
    """The timers of chosen steps: every column has one value for each step, NaN where it is unknown."""

    table: PhaseTable
    rows: Ints
    """The row of `table` that belongs to each step, -1 where there is none."""

    @classmethod
    def of(cls, phases: PhaseTable, steps: StepTable, chosen: Ints) -> Timers:
        """Match the phase table to chosen rows of the step table by step number."""
        wanted = steps.step[chosen]
        if not len(phases):
            return cls(phases, np.full(len(wanted), -1))
        order = np.argsort(phases.step, kind="stable")
        # The newest block of a step counts: a step is done again after a restart.
        position = np.searchsorted(phases.step[order], wanted, side="right") - 1
        rows = order[np.maximum(position, 0)]
        return cls(phases, np.where(phases.step[rows] == wanted, rows, -1))

    def min_s(self, name: str) -> Floats | None:
        """The least over ranks, or None for a timer that these steps do not have."""
        return self._column(self.table.min_s, name, np.fmin)

    def max_s(self, name: str) -> Floats | None:
        """The most over ranks, or None for a timer that these steps do not have."""
        return self._column(self.table.max_s, name, np.fmax)

    def by_rank_s(self, name: str) -> Floats | None:
        """Steps by ranks, as many for all timers, or None for one that was not reported by rank."""
        values = self.table.by_rank_s.get(name)
        if values is None or not len(values):
            return None
        taken = np.where((self.rows >= 0)[:, None], values[self.rows], np.nan)
        if not np.isfinite(taken).any():
            return None
        # A rank may have reported one timer and not the other.
        absent = max(other.shape[1] for other in self.table.by_rank_s.values()) - taken.shape[1]
        return np.pad(taken, ((0, 0), (0, absent)), constant_values=np.nan) if absent else taken

    def first(self, names: Sequence[str]) -> str | None:
        """The first of several spellings of one timer that these steps have."""
        if not len(self.table):
            return None
        return next((name for name in names if self.max_s(name) is not None), None)

    def computing_by_rank_s(self) -> tuple[Floats, Floats] | None:
        """Forward and backward, steps by ranks each, or None where one of them was not reported by rank."""
        names = self.first(FORWARD), self.first(BACKWARD)
        columns = [self.by_rank_s(name) for name in names if name]
        known = [column for column in columns if column is not None]
        return (known[0], known[1]) if len(known) == 2 else None

    @property
    def hold_waiting(self) -> bool:
        """Whether forward and backward may have waiting for other ranks in them."""
        return not {self.first(FORWARD), self.first(BACKWARD)} <= {*_WITHOUT_WAITING, None}

    def _column(self, columns: Mapping[str, Floats], name: str, reduce: np.ufunc) -> Floats | None:
        if len(columns.get(name, ())):
            taken = np.where(self.rows >= 0, columns[name][self.rows], np.nan)
            if np.isfinite(taken).any():
                return taken
        ranks = self.by_rank_s(name)
        return None if ranks is None else np.asarray(reduce.reduce(ranks, axis=1))


def usual(columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """Columns that are known in at least half of the steps: a timer that runs now and then is not a phase."""
    return {name: values for name, values in columns.items() if 2 * np.isfinite(values).sum() >= len(values)}


def share(seconds: Floats | None, step_time_s: Floats) -> float | None:
    """The median over steps of a phase's part of the step, or None when it is unknown."""
    if seconds is None or not len(step_time_s):
        return None
    value = float(median(seconds / step_time_s))
    return value if np.isfinite(value) else None
