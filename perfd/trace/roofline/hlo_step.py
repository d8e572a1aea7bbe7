"""FLOPs of a training step and their main precision, from the modules that XLA compiled for a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfd.trace.roofline.hlo_cost import UNKNOWN_WORK, instruction_cost, is_free
from perfd.trace.roofline.hlo_module import HloModule

_ALONE_RATIO = 2.0
"""How much more the step's module computes than any other: an evaluation computes a third. Chosen."""
_SAME_RATIO = 0.99
"""Two compilations of one function that agree so well are of one step. Chosen."""
_MOST_DEPTH = 64
"""Calls in calls; deeper ones are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step computes on all its devices."""

    flops: float
    """With recomputation."""
    precision: str
    """The precision with the most FLOPs: bf16, fp16, fp8, fp4, tf32, fp32, ..."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """FLOPs by precision, and whether they are complete."""

    by_precision: Mapping[str, float]
    known: bool = True

    @property
    def flops(self) -> float:
        return sum(self.by_precision.values())


def step_work(modules: Iterable[HloModule]) -> StepWork | None:
    """What one run of the step's module computes.

    The step is the module with the most FLOPs. None if that is uncertain: another module has more than half
    as many, modules with its name differ (batches of several shapes), or its FLOPs are unknown, because the
    HLO does not show what a kernel computes or how often a loop runs.
    """
    found = [(module, _computed(module, module.entry, {}, 0)) for module in modules]
    works = [(module, module.devices * counted.flops, counted) for module, counted in found]
    largest, flops, counted = max(works, key=lambda each: each[1], default=(None, 0.0, None))
    if largest is None or counted is None or not counted.known or flops <= 0:
        return None
    for module, other, _ in works:
        bound = _SAME_RATIO * flops if module.name == largest.name else -1.0
        if not other >= bound or (module.name != largest.name and other * _ALONE_RATIO > flops):
            return None
    return StepWork(flops=flops, precision=max(counted.by_precision, key=counted.by_precision.__getitem__))


def _computed(module: HloModule, computation: str, counted: dict[str, _Counted], depth: int) -> _Counted:
    """FLOPs of one computation on one device; results are cached in `counted`."""
    if computation in counted or depth > _MOST_DEPTH:
        return counted.get(computation, _Counted({}, known=False))
    total: dict[str, float] = {}
    all_known = True
    for instruction in module.computations.get(computation, {}).values():
        trips: int | None = 1
        if is_free(instruction.operation):
            continue
        if loop := instruction.loop:
            body, trips = loop
            inner = _computed(module, body, counted, depth + 1)
        elif instruction.operation in {"call", "async-start"} and instruction.called:
            inner = _computed(module, instruction.called, counted, depth + 1)
        else:
            cost = instruction_cost(module, computation, instruction)
            inner = _Counted({cost.precision: cost.flops}, known=cost.note != UNKNOWN_WORK)
        for precision, flops in inner.by_precision.items():
            total[precision] = total.get(precision, 0.0) + flops * (trips or 1)
        all_known = all_known and inner.known and trips is not None
    counted[computation] = _Counted(total, known=all_known)
    return counted[computation]
