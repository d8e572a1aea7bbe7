"""Rows of steps that end exactly where the operations of a step do, by when each ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.aggregator.operations.operation_stream import Cycle, OperationStream
from perfd.analysis.operations.step_boundaries import (
    OperationSpan,
    longest_pause,
    micro_batches_of,
)
from perfd.model import TrainingStep

_LEAST_ROW_US = 100_000
"""Shorter steps share a row, of which there are then ten a second at most."""
_REPEATS_IN_DOUBT = 24
"""Before a micro-batch counts as a step for want of anything better."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """The end of a repeat: of a micro-batch, or of a step."""

    seen: int
    """Operations of the stream by then."""
    end_us: int
    pause_us: int
    """Until the next large operation."""
    lead_us: int
    """How long that one was queued."""


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
    """Cuts the repeats of one stream into steps, look by look."""

    def __init__(self, stream: OperationStream, steps_before: int) -> None:
        self.stream = stream
        self.newest: StepEnd | None = None
        self.repeats: int | None = None
        """Micro-batches of a step; None before that is known."""
        self._steps_before = steps_before

    def look(self, job: str, cycle: Cycle, repeats: int | None) -> FoundSteps:
        """What is new since the last look, with so many `repeats` in a step, None where only pauses show it.

        Nothing where it is unknown when operations began.
        """
        spans = self.stream.repeating_spans(cycle)
        if spans is None or len(spans) < 2 * cycle.large:
            return FoundSteps()
        cuts = self._cuts(spans, cycle.large)
        found, last = self._of_step(cuts, repeats)
        if found is None and len(cuts) < _REPEATS_IN_DOUBT and self.newest is None:
            return FoundSteps()
        anew = self.newest is not None and (found or 1) != (self.repeats or 1)
        if anew:
            self.newest = None
        self.repeats = found
        rows = self._rows(job, cuts[last :: found or 1], cycle.operations * (found or 1))
        return FoundSteps(rows, anew=anew)

    def _of_step(self, cuts: Sequence[_Cut], repeats: int | None) -> tuple[int | None, int]:
        """How many cuts apart steps end, and at which of the first ones one does."""
        pauses_us = np.array([cut.pause_us for cut in cuts], dtype=np.float64)
        if repeats is None:
            leads_us = np.array([cut.lead_us for cut in cuts], dtype=np.float64)
            each_us = (cuts[-1].end_us - cuts[0].end_us) / max(1, len(cuts) - 1)
            shown = micro_batches_of(pauses_us, leads_us, each_us)
            if shown is not None:
                return shown
            repeats = self.repeats
        if repeats is None or repeats == 1:
            return repeats, 0
        if self.newest is not None:
            places = [place for place, cut in enumerate(cuts) if cut.seen == self.newest.seen]
            if places:
                return repeats, places[0] % repeats
        medians = [np.median(pauses_us[place::repeats]) for place in range(min(repeats, len(cuts)))]
        return repeats, int(np.argmax(medians))

    def _rows(self, job: str, cuts: Sequence[_Cut], per_step: float) -> list[TrainingStep]:
        rows: list[TrainingStep] = []
        newest = self.newest
        for cut in cuts:
            if newest is None:
                step = self._steps_before + max(1, round(cut.seen / per_step))
                newest = StepEnd(step, cut.seen, cut.end_us)
                continue
            covered = round((cut.seen - newest.seen) / per_step)
            if covered <= 0 or cut.end_us - newest.end_us < _LEAST_ROW_US:
                continue
            rows.append(
                TrainingStep(
                    job=job,
                    step=newest.step + covered,
                    time_unix_ns=cut.end_us * 1000,
                    step_time_s=(cut.end_us - newest.end_us) / 1e6 / covered,
                    steps_covered=covered,
                )
            )
            newest = StepEnd(newest.step + covered, cut.seen, cut.end_us)
        self.newest = newest
        return rows

    def _cuts(self, spans: Sequence[tuple[int, OperationSpan]], period: int) -> list[_Cut]:
        """After each repeat, where they were before; the last one waits until it is known what follows it."""
        ended = None if self.newest is None else self.newest.seen
        places = [place for place, (seen, _) in enumerate(spans) if seen == ended]
        after = places[0] % period if places else longest_pause([span for _, span in spans], period)
        pairs = zip(spans[after::period], spans[after + 1 :: period], strict=False)
        return [
            _Cut(seen, span.end_us, following.start_us - span.end_us, following.queued_us)
            for (seen, span), (_, following) in pairs
        ]
