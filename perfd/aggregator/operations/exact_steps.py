"""Rows of steps that end exactly where the operations of a step do, by when each ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from perfd.aggregator.operations.operation_stream import Cycle, OperationStream, TimedOperation
from perfd.analysis.data.job_data import StepPauses
from perfd.analysis.operations.step_boundaries import (
    longest_pause,
    micro_batches_by_gathers,
    micro_batches_of,
    next_starts_us,
)
from perfd.model import TrainingStep

_LEAST_ROW_US = 100_000
"""Shorter steps share a row, of which there are then ten a second at most."""
_PAUSES = 64
"""Of the newest steps, that are kept."""
_MISSED_RATIO = 0.25
"""Share of the first step's bytes that may be unreported."""
_REPEATS_IN_DOUBT = 24
"""Before a micro-batch counts as a step for want of anything better."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """The end of a repeat: of a micro-batch, or of a step."""

    last: TimedOperation
    following: TimedOperation | None
    """The next large operation, once it is known."""

    @property
    def pause_us(self) -> float:
        """Until the next large operation, NaN where that is unknown."""
        return math.nan if self.following is None else self.following.span.start_us - self.last.span.end_us

    @property
    def lead_us(self) -> float:
        """How long that one was queued."""
        return math.nan if self.following is None else self.following.span.queued_us


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

    def __init__(self, stream: OperationStream, steps_before: int) -> None:
        self.stream = stream
        self.newest: StepEnd | None = None
        self.repeats: int | None = None
        """Micro-batches of a step; None before that is known."""
        self.pauses: StepPauses | None = None
        self._steps_before = steps_before

    def look(
        self, job: str, cycle: Cycle, repeats: int | None, gathers: OperationStream | None = None
    ) -> FoundSteps:
        """The new steps since the last call, of so many `repeats` each, or None if only pauses show how many.

        `gathers` are those of the parameters that the stream reduces. Empty if it is unknown when operations
        began.
        """
        operations = self.stream.repeating(cycle)
        if operations is None or len(operations) < 2 * cycle.large:
            return FoundSteps()
        cuts = self._cuts(operations, cycle)
        found, last = self._of_step(cuts, repeats, gathers)
        if found is None and len(cuts) < _REPEATS_IN_DOUBT and self.newest is None:
            return FoundSteps()
        anew = self.newest is not None and (found or 1) != (self.repeats or 1)
        if anew:
            self.newest = None
        self.repeats = found
        ends = cuts[last :: found or 1]
        rows = self._rows(job, ends, cycle, found or 1)
        self.pauses = self._pauses(ends)
        return FoundSteps(rows, anew=anew)

    def _of_step(
        self, cuts: Sequence[_Cut], repeats: int | None, gathers: OperationStream | None
    ) -> tuple[int | None, int]:
        """How many cuts apart steps end, and at which of the first ones one does."""
        known = [cut for cut in cuts if cut.following is not None]
        pauses_us = np.array([cut.pause_us for cut in known])
        if repeats is None:
            leads_us = np.array([cut.lead_us for cut in known])
            each_us = (cuts[-1].last.span.end_us - cuts[0].last.span.end_us) / max(1, len(cuts) - 1)
            shown = None
            if gathers is not None:
                ends_us = np.array([cut.last.span.end_us for cut in known], dtype=np.float64)
                gathered_us = next_starts_us(ends_us, gathers.newest_starts_us())
                shown = micro_batches_by_gathers(gathered_us - ends_us, leads_us)
            shown = shown or micro_batches_of(pauses_us, leads_us, each_us)
            if shown is not None:
                return shown
            repeats = self.repeats
        if repeats is None or repeats == 1:
            return repeats, 0
        before = self._place([cut.last for cut in cuts])
        if before is not None:
            return repeats, before % repeats
        medians = [np.median(pauses_us[place::repeats]) for place in range(min(repeats, len(known)))]
        return repeats, int(np.argmax(medians))

    def _rows(self, job: str, cuts: Sequence[_Cut], cycle: Cycle, repeats: int) -> list[TrainingStep]:
        place = self._place([cut.last for cut in cuts])
        rows: list[TrainingStep] = []
        newest = self.newest
        for at, cut in enumerate(cuts):
            end_us = cut.last.span.end_us
            if newest is None:
                # Other operations come before the first step, such as a first exchange of embeddings; they
                # move less.
                by_bytes = cut.last.moved_bytes / (cycle.moved_bytes * repeats)
                step = max(1, math.floor(by_bytes + _MISSED_RATIO))
                newest, place = StepEnd(self._steps_before + step, cut.last.seen, end_us), at
                continue
            by_rate = (cut.last.seen - newest.seen) / (cycle.operations * repeats)
            covered = max(1, round(by_rate)) if place is None else at - place
            if cut.last.seen <= newest.seen or end_us - newest.end_us < _LEAST_ROW_US:
                continue
            rows.append(
                TrainingStep(
                    job=job,
                    step=newest.step + covered,
                    time_unix_ns=end_us * 1000,
                    step_time_s=(end_us - newest.end_us) / 1e6 / covered,
                    steps_covered=covered,
                )
            )
            newest, place = StepEnd(newest.step + covered, cut.last.seen, end_us), at
        self.newest = newest
        return rows

    def _pauses(self, ends: Sequence[_Cut]) -> StepPauses | None:
        place = self._place([cut.last for cut in ends])
        if place is None or self.newest is None:
            return None
        known = [(at, cut) for at, cut in enumerate(ends) if cut.following is not None][-_PAUSES:]
        return StepPauses(
            step=np.array([self.newest.step + at - place for at, _ in known], dtype=np.int64),
            pause_s=np.array([cut.pause_us for _, cut in known]) / 1e6,
            lead_s=np.array([cut.lead_us for _, cut in known]) / 1e6,
        )

    def _cuts(self, operations: Sequence[TimedOperation], cycle: Cycle) -> list[_Cut]:
        """After each repeat, where they were before; by pauses, where these are the longest now."""
        before = None if cycle.by_pauses else self._place(operations)
        spans = [one.span for one in operations]
        after = longest_pause(spans, cycle.large) if before is None else before % cycle.large
        ends, following = operations[after :: cycle.large], operations[after + 1 :: cycle.large]
        return [_Cut(last, then) for last, then in zip_longest(ends, following)]

    def _place(self, operations: Sequence[TimedOperation]) -> int | None:
        """Where the newest row ended; None if that is not one of them."""
        ended = None if self.newest is None else self.newest.seen
        return next((place for place, one in enumerate(operations) if one.seen == ended), None)
