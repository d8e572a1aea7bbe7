"""How long each step took in a job whose log shows none, the newest included, or the mean of several.

Rows by NCCL's operations cover seconds, since agents report each second how many operations there were. What
operations waited is known one by one: a step in which most ranks wait longer is longer by as much, since they
begin the next one together. So a row's time is spread over its steps by their waits, and steps after the
newest row take as long as those before, but for theirs.

A line of a log that covers several steps hides a long one among them. There a step takes what its operations
waited, beside what steps take otherwise, by their mean over these lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints, JobData, OperationPace, StepTable
from perfd.analysis.data.robust_stats import median, plain_median
from perfd.analysis.operations.communicator_waits import MATCHED_OPERATIONS, CommunicatorBatch
from perfd.analysis.operations.operation_rate import MOST_STEPS, each_step_s, lines_of_steps, paced
from perfd.analysis.operations.repeat_period import repeat_period

_SEVERAL = 2
"""Steps of a line."""
_FEWEST, _MOST = 20, 4_000
"""Operations by whose sizes steps are found."""
_ROWS = 3
"""A row's own time is that of the middle one of so many: each ends in the middle of a step."""


@dataclass(frozen=True, slots=True)
class StepsOfOperations:
    """Operations at the pace of a job's steps, and these steps."""

    stacks: Sequence[CommunicatorBatch]
    each_s: Floats
    """How long each step took, the newest last."""
    done: float | None = None
    """Steps since the first operation, if operations show them."""


def in_steps(stacks: Sequence[CommunicatorBatch], job: JobData, step_s: float | None) -> StepsOfOperations:
    """By the log's steps, or by the operations that show them; `step_s` is how long one usually takes."""
    pace = job.operation_pace
    found = None if pace is None or step_s is None else _pacing(stacks, pace)
    if pace is None or step_s is None or found is None:
        at_pace = [paced(one, job.steps, step_s) for one in stacks]
        of_lines = None if pace else _within_lines(at_pace, job.steps)
        return of_lines or StepsOfOperations(at_pace, each_step_s(job.steps))
    stack, row = found
    factor = pace.per_step / (float(stack.collectives.operations_per_s[row]) * step_s)
    return StepsOfOperations(
        stacks=[_at_pace(one, factor) for one in stacks],
        each_s=steps_by_waits(stacks, pace, job.every_step),
        done=_done(stack, row, pace),
    )


def _within_lines(stacks: Sequence[CommunicatorBatch], steps: StepTable) -> StepsOfOperations | None:
    """Of lines that cover several steps each; None of others, and where operations do not show each step."""
    lasted_s = each_step_s(steps)
    if not len(lasted_s) or float(median(steps.steps_covered.astype(np.float64))) < _SEVERAL:
        return None
    ends = [done for stack in stacks for row in range(len(stack.ranks)) if (done := _by_period(stack, row))]
    # The log is behind by a line or two; what repeats with each line, such as what it gathers, shows no step.
    last = int(steps.step[-1])
    ends = [done for done in ends if -1 <= done - last <= 2 * int(steps.steps_covered[-1])]
    if not ends:
        return None
    longest: Floats = np.zeros(0)
    for stack in stacks:
        for row in range(len(stack.ranks)):
            waited_s = _waited_in(stack, row, max(ends), whole=False)
            longest = _fmax(longest, waited_s)
    if not np.isfinite(longest).any():
        return None
    each_s = _spread(lasted_s, longest[::-1], max(0, int(max(ends)) - last), steps)
    return StepsOfOperations(stacks, each_s, max(ends))


def _by_period(stack: CommunicatorBatch, row: int) -> float | None:
    """Steps since the first operation, where sizes repeat with each; None where they do not."""
    collectives = stack.collectives
    sizes = collectives.size_bytes[row, : collectives.lengths[row]]
    if len(sizes) < _FEWEST or stack.operation not in MATCHED_OPERATIONS or not np.isfinite(sizes).all():
        return None
    found = repeat_period(sizes[-_MOST:])
    if found is None or found.period < _SEVERAL or found.length < min(len(sizes), _MOST) / 2:
        return None
    return (_newest(stack, row) + 1) / found.period


def _fmax(first: Floats, second: Floats) -> Floats:
    """Element by element, as long as the longer one."""
    longest = np.full(max(len(first), len(second)), np.nan)
    for one in (first, second):
        np.fmax(longest[: len(one)], one, out=longest[: len(one)])
    return longest


def _at_pace(stack: CommunicatorBatch, factor: float) -> CommunicatorBatch:
    group = stack.collectives
    return replace(stack, collectives=replace(group, operations_per_s=factor * group.operations_per_s))


def steps_by_waits(stacks: Sequence[CommunicatorBatch], pace: OperationPace, steps: StepTable) -> Floats:
    """One entry per step, in seconds, the newest last; those of the rows where no waits are known."""
    of_rows = each_step_s(steps)
    found = _pacing(stacks, pace)
    if found is None or not len(of_rows) or pace.exact:
        return of_rows
    waited_s = _waited(stacks, pace, _done(*found, pace))
    ahead = max(0, int((_newest(*found) - pace.row_end_sequence) / pace.per_step))
    return _spread(of_rows, waited_s, ahead, steps)


def _spread(of_rows: Floats, waited_s: Floats, ahead: int, steps: StepTable) -> Floats:
    """Each step, with so many `ahead` of the newest row: what steps of its row take, and what it waited."""
    ahead = min(ahead, MOST_STEPS)
    lasted = np.concatenate((of_rows, np.full(ahead, np.nan)))
    known = min(len(lasted), len(waited_s))
    waited = np.concatenate((np.full(len(lasted) - known, np.nan), waited_s[len(waited_s) - known :]))
    own_s = _without_waits(of_rows, waited[: len(of_rows)], lines_of_steps(steps))
    own_s = np.concatenate((own_s, np.full(ahead, own_s[-1])))
    return np.where(np.isfinite(waited), own_s + waited, np.where(np.isfinite(lasted), lasted, own_s))


def _pacing(stacks: Sequence[CommunicatorBatch], pace: OperationPace) -> tuple[CommunicatorBatch, int] | None:
    """The stack and row of the operations that show steps."""
    for stack, row in _on_communicator(stacks, pace.communicator):
        group = stack.collectives
        if group.operation == pace.operation and group.lengths[row] and group.operations_per_s[row] > 0:
            return stack, row
    return None


def _newest(stack: CommunicatorBatch, row: int) -> int:
    return int(stack.collectives.sequence[row, stack.collectives.lengths[row] - 1])


def _done(stack: CommunicatorBatch, row: int, pace: OperationPace) -> float:
    return (_newest(stack, row) + 1) / pace.per_step


def _waited(stacks: Sequence[CommunicatorBatch], pace: OperationPace, done: float) -> Floats:
    """The longest wait of each step's operations on that communicator, of its middle rank, newest last."""
    found = [_waited_in(*one, done) for one in _on_communicator(stacks, pace.communicator)]
    longest = np.full(max(map(len, found), default=0), np.nan)
    for waited in found:
        np.fmax(longest[: len(waited)], waited, out=longest[: len(waited)])
    return longest[::-1]


def _on_communicator(
    stacks: Sequence[CommunicatorBatch], communicator: str
) -> Iterator[tuple[CommunicatorBatch, int]]:
    for stack in stacks:
        if communicator in stack.collectives.communicators:
            yield stack, list(stack.collectives.communicators).index(communicator)


def _waited_in(stack: CommunicatorBatch, row: int, done: float, *, whole: bool = True) -> Floats:
    """The newest step first; empty for operations that are not in every step, a `whole` number of times."""
    length = int(stack.collectives.lengths[row])
    per_step = (_newest(stack, row) + 1) / done if length else 0.0
    per_step = round(per_step) if whole else per_step
    if per_step < 1 or not len(stack.parts.wait_s[row, :length]):
        return np.zeros(0)
    numbers = stack.collectives.sequence[row, :length]
    ago = ((numbers[-1] - numbers) / per_step).astype(np.int64)
    matched = (stack.parts.last_arriver[row, :length] >= 0) & (ago < MOST_STEPS)
    longest = np.full((min(int(ago.max()) + 1, MOST_STEPS), stack.ranks.shape[1]), np.nan)
    np.fmax.at(longest, ago[matched], stack.parts.wait_s[row, :length][matched])
    # Of two ranks the middle one would be half of what the late one costs.
    return np.asarray(np.fmax(*longest.T) if longest.shape[1] == 2 else median(longest, axis=1))


def _without_waits(lasted_s: Floats, waited_s: Floats, rows: Ints) -> Floats:
    """What steps of each row take besides the longest wait, by the row's neighbors, too."""
    # Rows come in order, with their steps side by side.
    numbers, first = np.unique(rows, return_index=True)
    of_row = zip(np.split(lasted_s, first[1:]), np.split(waited_s, first[1:]), strict=True)
    own = np.array([_mean(lasted) - _mean(waited) for lasted, waited in of_row])
    near = [own[max(0, at - _ROWS // 2) : at + _ROWS // 2 + 1] for at in range(len(own))]
    near[-1] = own[-_ROWS:]
    return np.asarray([plain_median(one) for one in near])[np.searchsorted(numbers, rows)]


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0
