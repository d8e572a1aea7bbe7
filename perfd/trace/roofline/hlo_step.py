"""FLOPs of a training step from the modules that XLA compiled for a job."""

from __future__ import annotations

from collections.abc import Iterable

from perfd.trace.roofline.hlo_cost import FREE, UNKNOWN_WORK, instruction_cost
from perfd.trace.roofline.hlo_module import HloModule

_ALONE_RATIO = 2.0
"""How much more the step's module computes than any other: an evaluation computes a third. Chosen."""
_SAME_RATIO = 0.99
"""Two compilations of one function that agree so well are of one step. Chosen."""
_MOST_DEPTH = 64
"""Calls in calls; deeper ones are not known."""


def step_flops(modules: Iterable[HloModule]) -> float | None:
    """FLOPs of one run of the step's module on all its devices, with recomputation.

    The step is the module that computes most. None if that is not certain: another one computes more than
    half as much, several of its name differ (batches of several shapes), or its work is not known, because it
    does not say what a kernel computes or how often a loop runs.
    """
    found = [(module, module_flops(module)) for module in modules]
    largest, most = max(found, key=lambda each: each[1][0], default=(None, (0.0, False)))
    flops, known = most
    if largest is None or not known or flops <= 0:
        return None
    for module, (other, _) in found:
        bound = _SAME_RATIO * flops if module.name == largest.name else -1.0
        if not other >= bound or (module.name != largest.name and other * _ALONE_RATIO > flops):
            return None
    return flops


def module_flops(module: HloModule) -> tuple[float, bool]:
    """FLOPs of one run on all its devices, and whether these are all."""
    flops, known = _flops(module, module.entry, {}, 0)
    return module.devices * flops, known


def _flops(
    module: HloModule, computation: str, counted: dict[str, tuple[float, bool]], depth: int
) -> tuple[float, bool]:
    """As `module_flops`, of one computation on one device; each is counted once, however often called."""
    if computation in counted or depth > _MOST_DEPTH:
        return counted.get(computation, (0.0, False))
    total, all_known = 0.0, True
    for instruction in module.computations.get(computation, {}).values():
        trips: int | None = 1
        if instruction.operation in FREE:
            continue
        if loop := instruction.loop:
            body, trips = loop
            flops, known = _flops(module, body, counted, depth + 1)
        elif instruction.operation in {"call", "async-start"} and instruction.called:
            flops, known = _flops(module, instruction.called, counted, depth + 1)
        else:
            cost = instruction_cost(module, computation, instruction)
            flops, known = cost.flops, cost.note != UNKNOWN_WORK
        total += flops * (trips or 1)
        all_known = all_known and known and trips is not None
    counted[computation] = total, all_known
    return counted[computation]
