"""Steps that a trace marks: which ranges they are, and which of them it holds whole.

Without numpy, for agents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

PROFILER_STEP = re.compile(r"ProfilerStep#?(\d{1,18})")
"""PyTorch's own."""
NAMED_STEP = re.compile(r"(?:ProfilerStep#|(?:iteration|iter|step)[ _#:=]*)(\d{1,18})", re.IGNORECASE)
"""What trainers push as NVTX ranges: Megatron's `iteration 5`, others' `step_5`."""
_LATE_RATIO = 0.1
"""Of a step's length, for which the GPU may idle at its start: it waits for input. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One iteration that the trace marks."""

    number: int
    start_ns: int
    end_ns: int


class NamedRange(Protocol):
    """What may be a step."""

    @property
    def name(self) -> str:
        """What the program called it."""

    @property
    def start_ns(self) -> int:
        """When it began."""

    @property
    def end_ns(self) -> int:
        """When it ended."""


def steps_among(ranges: Iterable[NamedRange], pattern: re.Pattern[str]) -> list[TraceStep]:
    """The ranges that count steps, by their numbers; of two with one number the longer."""
    steps: dict[int, TraceStep] = {}
    for one in ranges:
        if found := pattern.fullmatch(one.name.strip()):
            number = int(found[1])
            known = steps.get(number)
            if known is None or one.end_ns - one.start_ns > known.end_ns - known.start_ns:
                steps[number] = TraceStep(number=number, start_ns=one.start_ns, end_ns=one.end_ns)
    return [steps[number] for number in sorted(steps)]


def whole_among(
    steps: Sequence[TraceStep], captured_ns: tuple[int, int] | None, recorded_from_ns: int | None = None
) -> list[TraceStep]:
    """The steps that the capture saw from begin to end; a profiler ends what is open where it stops.

    It may mark steps before it records the GPU, which is then known from `recorded_from_ns` on: CUPTI is on
    only a second into some collections of Nsight Systems.
    """
    return [
        step
        for step in steps
        if step.end_ns > step.start_ns
        and (captured_ns is None or (captured_ns[0] <= step.start_ns and step.end_ns < captured_ns[1]))
        and (recorded_from_ns is None or recorded_from_ns <= step.start_ns + _idle_ns(step))
    ]


def _idle_ns(step: TraceStep) -> float:
    """How long the GPU and the driver may have nothing to do when a step begins: it waits for input."""
    return _LATE_RATIO * (step.end_ns - step.start_ns)
