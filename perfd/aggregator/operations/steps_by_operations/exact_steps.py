"""Rows of steps that end exactly where the operations of a step do, by when each ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.aggregator.operations.growable_arrays import NewestColumns
from perfd.aggregator.operations.steps_by_operations.operation_reports import END, TimedOperations
from perfd.aggregator.operations.steps_by_operations.operation_stream import Cycle, OperationStream
from perfd.aggregator.operations.steps_by_operations.step_marks import FEWEST_LINE_STEPS, StepMarks
from perfd.aggregator.operations.steps_by_operations.step_row_ends import StepPace
from perfd.analysis.data.job_data import Bools, Floats, StepPauses
from perfd.analysis.data.robust_stats import median
from perfd.analysis.operations.step_boundaries import (
    longest_pause,
    medians_by_place,
    micro_batches_by_gathers,
    micro_batches_of,
    next_starts_us,
    ran_between_us,
)
from perfd.analysis.operations.step_evidence import StepEvidence, come_at_once, evidence_of
from perfd.model import StepDoubt, TrainingStep

_LEAST_ROW_US = 100_000
"""Shorter steps share a row, of which there are then ten a second at most."""
_PAUSES = 64
"""Of the newest steps, that are kept."""
_HELD_PAUSES = 512
"""Newest pauses after repeats: 64 micro-batches eight times."""
_AT_ONCE_US = 500.0
"""Within a step the next gather begins sooner: an optimizer that runs before it takes longer."""
_MISSED_RATIO = 0.25
"""Share of the first step's bytes that may be unreported."""
_WHOLE_RATIO = 0.1
"""Of a step's bytes, by which its two parts may seem more or less than that. Chosen."""
_REPEATS_IN_DOUBT = 24
"""Before a micro-batch counts as a step for want of anything better; fewer if no more can be held."""
_REPEATS_TO_RECOUNT = _HELD_PAUSES
"""What has not shown by then, in as many pauses as are compared, comes from something else: a loader that is
slow for a while looks like steps of 10 micro-batches where a loop waits for its GPU every 10 to print."""

_UNSURE, _UNSURE_OF_TWO = 0.3, 0.1
"""How far from a whole number the repeats of a step may be by the lines of a log, and by two only. Chosen."""


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The ends of (n,) repeats, which are micro-batches or steps."""

    last: TimedOperations
    following_us: Floats
    """Start of the next large operation, (n,), or (n - 1,) if there is none after the newest repeat yet."""
    following_queued_us: Floats
    measured: Bools
    """Whether both ends of a pause were reported, shaped like `following_us`."""

    def __len__(self) -> int:
        return len(self.last)

    @property
    def pauses_us(self) -> Floats:
        """Time to the next large operation, shaped like `following_us`."""
        return self.following_us - self.last.end_us[: len(self.following_us)]

    def each(self, first: int, count: int) -> _Cuts:
        """Every `count`-th, starting with `first`."""
        rows = slice(first, None, count)
        return _Cuts(
            self.last.each(rows),
            self.following_us[rows],
            self.following_queued_us[rows],
            self.measured[rows],
        )


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Where the newest row ended."""

    step: int
    seen: int
    end_us: int


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """Rows, oldest first; `anew` if they take the place of all before."""

    rows: Sequence[TrainingStep] = ()
    anew: bool = False


class ExactSteps:
    """Cuts the repeats of one stream into steps, as they come."""

    def __init__(self, stream: OperationStream, marks: StepMarks, steps_before: int) -> None:
        self.stream = stream
        self._marks = marks
        self.newest: StepEnd | None = None
        self.repeats: int | None = None
        """Micro-batches of a step; None before that is known."""
        self.doubt: StepDoubt | None = StepDoubt.MICRO_BATCHES
        """What the steps may be instead."""
        self.pauses: StepPauses | None = None
        self._steps_before = steps_before
        self._large: int | None = None
        """Operations of the repeats so far."""
        self._begun_ratio = 0.0
        """What had moved of the next step where the first row began."""
        self._settled = False
        """Whether the job's log counts as this does."""
        self._seen_at: dict[float, int] = {}
        """By step of such a line, the operations until then."""
        self._held = NewestColumns(4, _HELD_PAUSES)
        """Of the newest repeats: operations until then, begin, end and lead of the pause after it."""

    def settle(self) -> None:
        """The job's log counts the same steps: pauses no longer change the count."""
        self._settled = True

    def look(
        self,
        job: str,
        pace: StepPace,
        gathers: OperationStream | None = None,
        others: Sequence[OperationStream] = (),
        *,
        ended: bool = False,
    ) -> FoundSteps:
        """The new steps since the last call; if nothing else says how many repeats one has, pauses do.

        `gathers` are those of the parameters that the stream reduces, `others` what the rank does besides.
        Empty if it is unknown when operations began. If the job has `ended`, nothing waits for more of them.
        """
        cycle = pace.cycle
        operations = self.stream.repeating(cycle)
        if operations is None or len(operations) < 2 * cycle.large:
            return FoundSteps()
        anew = self._began_alike(cycle)
        if anew:
            self.newest = None
        self._large = cycle.large
        cuts = self._cuts(operations, cycle)
        found, last, doubt = self._of_step(cuts, pace, gathers, others)
        by_lines = self._by_lines(cuts, cycle)
        # Pauses that show another number than the log come from something else. With sharded parameters only
        # they show where a step ends.
        if by_lines is not None and found != by_lines and (found is not None or pace.numbered):
            if by_lines != (self.repeats or 1) and self.newest is not None:
                self.newest, anew = None, True
            (found, last), doubt = self._placed(cuts, by_lines), None
        elif self._keeps_count(found, cycle):
            (found, last), doubt = self._placed(cuts, self.repeats), self.doubt
        if self._settled:
            doubt = None
        marked = pace.sharded or pace.by_log or pace.numbered or self._settled
        if not marked and _come_at_once(operations, cuts, cycle.large):
            doubt = StepDoubt.ROUNDS
        few = len(cuts) < _REPEATS_IN_DOUBT and not self.stream.full and not ended
        if found is None and few and self.newest is None:
            return FoundSteps()
        if self.newest is not None and (found or 1) != (self.repeats or 1):
            self.newest, anew = None, True
        self.repeats, self.doubt = found, doubt
        ends = cuts.each(last, found or 1)
        rows = self._rows(job, ends, cycle, found or 1, ended=ended)
        self.pauses = self._pauses(ends)
        return FoundSteps(rows, anew=anew)

    def _keeps_count(self, found: int | None, cycle: Cycle) -> bool:
        """Whether another count comes too late to be that of the steps so far."""
        if self.newest is None or (found or 1) == (self.repeats or 1):
            return False
        return self._settled or self.stream.seen >= _REPEATS_TO_RECOUNT * cycle.operations

    def _by_lines(self, cuts: _Cuts, cycle: Cycle) -> int | None:
        """How many repeats a step has by the log's lines; None where too few of them were held to be sure."""
        ends_us, seen, until_us = cuts.last.end_us, cuts.last.seen, self.stream.newest_unix_ns / 1e3
        for step, unix_s in self._marks.lines.T.tolist():
            if step not in self._seen_at and ends_us[0] <= unix_s * 1e6 <= until_us:
                self._seen_at[step] = int(seen[np.searchsorted(ends_us, unix_s * 1e6, "right") - 1])
        lines = self._marks.lines[0].tolist()
        of_lines = [(step, self._seen_at[step]) for step in lines if step in self._seen_at]
        self._seen_at = dict(of_lines)
        if len(of_lines) < 2 or of_lines[-1][0] - of_lines[0][0] < FEWEST_LINE_STEPS:
            return None
        steps, operations = np.array(of_lines).T
        each = np.diff(operations) / np.diff(steps) / cycle.operations
        overall = float(operations[-1] - operations[0]) / (steps[-1] - steps[0]) / cycle.operations
        whole = round(overall)
        unsure = _UNSURE if len(of_lines) > 2 else _UNSURE_OF_TWO
        # Each line by itself is less exact than all together.
        alike = bool((np.abs(each - whole) <= 2 * unsure).all())
        return whole if whole >= 1 and abs(overall - whole) <= unsure and alike else None

    def _began_alike(self, cycle: Cycle) -> bool:
        """Whether what repeated before was a part of this: this repeats since the first operation."""
        if self._large is None or self._large >= cycle.large:
            return False
        return self.stream.seen - cycle.known * cycle.operations / cycle.large < cycle.operations

    def _of_step(
        self,
        cuts: _Cuts,
        pace: StepPace,
        gathers: OperationStream | None,
        others: Sequence[OperationStream],
    ) -> tuple[int | None, int, StepDoubt | None]:
        """How many cuts apart steps end, at which of the first ones one does, and what else steps may be."""
        if pace.by_log:
            return *self._placed(cuts, pace.repeats), None
        if pace.sharded:
            return self._sharded(cuts, pace.repeats, gathers)
        shown = self._evidence(cuts, pace, others)
        doubt = shown.doubt if pace.counted else StepDoubt.MICRO_BATCHES
        if shown.together is not None:
            return *shown.together, doubt
        return *self._placed(cuts, self.repeats or pace.repeats), doubt

    def _sharded(
        self, cuts: _Cuts, repeats: int | None, gathers: OperationStream | None
    ) -> tuple[int | None, int, StepDoubt | None]:
        """The same, if numbers seem to be reduced each `repeats`: norms of gradients, or losses to print."""
        shown, sure = self._micro_batches(cuts, gathers)
        if repeats is None and shown is not None:
            return *shown, None if sure else StepDoubt.MICRO_BATCHES
        if repeats is None:
            doubt = StepDoubt.MICRO_BATCHES if self.repeats is None else self.doubt
            return *self._placed(cuts, self.repeats), doubt
        if shown is not None and shown[0] == repeats:
            return *shown, None
        doubt = None if repeats == 1 and shown is None else StepDoubt.MICRO_BATCHES
        return *self._placed(cuts, repeats), doubt

    def _micro_batches(
        self, cuts: _Cuts, gathers: OperationStream | None
    ) -> tuple[tuple[int, int] | None, bool]:
        """What pauses show of micro-batches, and whether no other work of each so many steps can explain it.

        Within a step the next gather begins at once. If an optimizer runs before each gather, none does.
        """
        leads_us, ends_us = cuts.following_queued_us, cuts.last.end_us
        if gathers is not None:
            until_us = next_starts_us(ends_us, gathers.newest_spans_us()[0])[: len(cuts.pauses_us)]
            until_us -= ends_us[: len(until_us)]
            shown = micro_batches_by_gathers(until_us, leads_us)
            if shown is not None:
                inside = np.arange(len(until_us)) % shown[0] != shown[1]
                return shown, float(median(until_us[inside])) <= _AT_ONCE_US
        each_us = float(ends_us[-1] - ends_us[0]) / max(1, len(cuts) - 1)
        return micro_batches_of(cuts.pauses_us, leads_us, each_us), False

    def _evidence(self, cuts: _Cuts, pace: StepPace, others: Sequence[OperationStream]) -> StepEvidence:
        """What the pauses after reductions of all gradients show, less the operations of others in them."""
        ends_us, following_us = cuts.last.end_us[: len(cuts.following_us)], cuts.following_us
        seen = cuts.last.seen[: len(ends_us)]
        newest = self._held.held[0, -1:]
        known = int(np.searchsorted(seen, newest, side="right")[0]) if len(newest) else 0
        if not (known and seen[known - 1] == newest):
            self._held.clear()
            known = 0
        leads_us = cuts.following_queued_us
        fresh = [one[known:] for one in (seen, ends_us, following_us, leads_us)]
        self._held.put(np.array(fresh, dtype=np.float64))
        _, ends_us, following_us, held_leads_us = self._held.held
        # Others may be reported later than the repeats before them.
        held_us = following_us - ends_us
        for other in others:
            held_us -= ran_between_us(ends_us, following_us, other.newest_spans_us())
        if len(held_us) < 2:
            return StepEvidence(None, StepDoubt.MICRO_BATCHES)
        shown = evidence_of(
            held_us,
            held_leads_us,
            each_us=float(cuts.last.end_us[-1] - cuts.last.end_us[0]) / max(1, len(cuts) - 1),
            moved_bytes=pace.cycle.moved_bytes,
            numbered=pace.numbered,
        )
        if shown.together is None:
            return shown
        count, last = shown.together
        return StepEvidence((count, (last + len(seen) - len(held_us)) % count), shown.doubt)

    def _placed(self, cuts: _Cuts, repeats: int | None) -> tuple[int | None, int]:
        """Where steps of so many repeats end, if that is all that is known."""
        if repeats is None or repeats == 1:
            return repeats, 0
        before = self._place(cuts.last)
        if before is not None:
            return repeats, before % repeats
        pauses_us = cuts.pauses_us
        return repeats, int(medians_by_place(pauses_us, min(repeats, len(pauses_us))).argmax())

    def _rows(self, job: str, cuts: _Cuts, cycle: Cycle, repeats: int, *, ended: bool) -> list[TrainingStep]:
        place = self._place(cuts.last)
        first = 0
        if self.newest is None:
            reported = np.flatnonzero(cuts.last.reported)
            if not len(reported):
                return []
            place = int(reported[0])
            # Other operations come before the first step, such as a first exchange of embeddings, which move
            # less, or gradients that are compressed from some step on only, which moved far more.
            by_bytes = float(cuts.last.moved_bytes[place]) / (cycle.moved_bytes * repeats)
            at_most = math.ceil(int(cuts.last.seen[place]) / (cycle.operations * repeats))
            step = max(1, min(at_most, math.floor(by_bytes + _MISSED_RATIO)))
            self.newest = _end(self._steps_before + step, cuts.last, place)
            self._begun_ratio = by_bytes - step
            first = place + 1
        newest = self.newest
        first = max(first, int(cuts.last.seen.searchsorted(newest.seen, side="right")))
        rows: list[TrainingStep] = []
        for at in range(first, len(cuts)):
            end_us = int(cuts.last.end_us[at])
            shares = end_us - newest.end_us < _LEAST_ROW_US and not (ended and at == len(cuts) - 1)
            if shares or not cuts.last.reported[at]:
                continue
            by_rate = (int(cuts.last.seen[at]) - newest.seen) / (cycle.operations * repeats)
            covered = max(1, round(by_rate)) if place is None else at - place
            rows.append(
                TrainingStep(
                    job=job,
                    step=newest.step + covered,
                    time_unix_ns=end_us * 1000,
                    step_time_s=(end_us - newest.end_us) / 1e6 / covered,
                    steps_covered=covered,
                )
            )
            newest, place = _end(newest.step + covered, cuts.last, at), at
        self.newest = newest
        if ended:
            rows += self._last_part(job, cuts, cycle.moved_bytes * repeats)
        return rows

    def _last_part(self, job: str, cuts: _Cuts, step_bytes: float) -> list[TrainingStep]:
        """The step that the job's last operations complete, if the longest pause is inside one.

        What had moved of it at the first row's end and what moves after the last one's are a whole step then.
        """
        newest = self.newest
        if newest is None or newest.seen != int(cuts.last.seen[-1]):
            return []
        rest_ratio = (self.stream.total_bytes - float(cuts.last.moved_bytes[-1])) / step_bytes
        whole = abs(self._begun_ratio + rest_ratio - 1) <= _WHOLE_RATIO
        if rest_ratio <= _MISSED_RATIO or not whole:
            return []
        end_us = float(self.stream.newest.held[END, -1])
        return [TrainingStep(job=job, step=newest.step + 1, time_unix_ns=int(end_us) * 1000)]

    def _pauses(self, ends: _Cuts) -> StepPauses | None:
        place = self._place(ends.last)
        if place is None or self.newest is None:
            return None
        pauses_us = ends.pauses_us
        known = np.flatnonzero(ends.measured)[-_PAUSES:]
        return StepPauses(
            step=self.newest.step + known - place,
            pause_s=pauses_us[known] / 1e6,
            lead_s=ends.following_queued_us[known] / 1e6,
        )

    def _cuts(self, operations: TimedOperations, cycle: Cycle) -> _Cuts:
        """After each repeat, where they were before; by pauses, where these are the longest now."""
        before = None if cycle.by_pauses else self._place(operations)
        if before is None:
            after = longest_pause(operations.start_us, operations.end_us, cycle.large)
        else:
            after = before % cycle.large
        following = operations.each(slice(after + 1, None, cycle.large))
        last = operations.each(slice(after, None, cycle.large))
        measured = last.reported[: len(following)] & following.reported
        return _Cuts(last, following.start_us, following.queued_us, measured)

    def _place(self, operations: TimedOperations) -> int | None:
        """Where the newest row ended; None if that is not one of them."""
        if self.newest is None:
            return None
        place = int(operations.seen.searchsorted(self.newest.seen))
        found = place < len(operations) and int(operations.seen[place]) == self.newest.seen
        return place if found else None


def _come_at_once(operations: TimedOperations, cuts: _Cuts, large: int) -> bool:
    """Whether nothing runs between the `large` operations of a repeat."""
    first, last = operations.seen.searchsorted(cuts.last.seen[[0, -1]])
    whole = slice(int(first) + 1, int(last) + 1)
    return come_at_once(operations.start_us[whole], operations.end_us[whole], large)


def _end(step: int, operations: TimedOperations, place: int) -> StepEnd:
    return StepEnd(step, int(operations.seen[place]), int(operations.end_us[place]))
