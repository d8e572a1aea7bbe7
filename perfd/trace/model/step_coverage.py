"""How many whole steps a trace of one rank holds, by what is in it. Pure, and without numpy, for agents.

The evidence is the first of three: ranges that count steps; updates of the weights, once per step;
and, when the length of a step is known, that the rank's kernels repeat themselves at about that distance.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from operator import eq

from perfd.trace.model.kernel_classes import kernel_class
from perfd.trace.model.trace_steps import TraceStep, whole_among

# Fused optimizers, and the calls of PyTorch's foreach ones that nothing else makes: FSDP copies with
# multi_tensor_apply in every layer, and gradients are clipped and unscaled with it.
_UPDATE = re.compile(
    r"adam|sgd|lamb(?![a-z])|(?<![a-z])lion|adagrad|rmsprop|optimizer"
    r"|multi_tensor_apply(?:(?!multi_tensor_apply).)*(?:PointwiseOp|Lerp|BinaryOpListAlpha)",
    re.IGNORECASE,
)
_WORK = frozenset({"matmul", "attention", "convolution"})
"""Between two updates is a forward and a backward pass, which have at least one of these."""
_APART_OF_STEP = 1 / 3
"""Of a known step time. Chosen."""
_APART_OF_LONGEST = 1 / 4
"""Of the longest gap between launches, where no step time is known. Chosen."""
_WHOLE_UPDATE_RATIO = 0.9
"""Of the kernels of the largest update: a last one with fewer was cut off. Chosen."""
_REPEATED_RATIO = 0.95
"""Of kernels that have the same name one period later: evaluations and logging add some. Chosen."""
_LIKE_A_STEP = (2 / 3, 3 / 2)
"""Times the step time: what is so long may be a step. Chosen."""
_ANCHORS, _OCCURRENCES, _PERIODS = 8, 32, 8
"""Rarest kernels, their occurrences, and the most frequent distances between those, which are tried as
periods: they bound the time. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From when to when something was."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a trace holds of one rank: kernels, as columns of equal length in order of start, and ranges."""

    starts_ns: Sequence[int] = ()
    ends_ns: Sequence[int] = ()
    streams: Sequence[int] = ()
    names: Sequence[str] = ()
    steps: Sequence[TraceStep] = ()
    """Ranges that count steps."""
    updates: Sequence[Span] = ()
    """When the host updated the weights, in order, where the trace names that: `Optimizer.step`."""
    captured_ns: tuple[int, int] | None = None
    """When the capture began and ended, if the trace has it."""
    recorded_from_ns: int | None = None
    """When the records of the GPU begin, where they may begin later than the capture and its ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Updates:
    """Updates of the weights without a forward and backward pass between them."""

    span: Span
    count: int
    work_after: bool


def whole_steps(recorded: Recorded, step_time_s: float | None = None) -> int | None:
    """How many complete steps the trace has; None if unknown.

    `step_time_s` is how long the job's log says that a step takes, about. A step is from one update of the
    weights to the next where nothing marks it, so that the parts at either end of the trace are none.
    """
    if recorded.steps:
        return len(whole_among(recorded.steps, recorded.captured_ns, recorded.recorded_from_ns))
    updates = _of_host(recorded.updates) or _of_gpu(recorded)
    if updates:
        return _between(updates, step_time_s)
    if step_time_s is None or not recorded.starts_ns:
        return None
    if max(recorded.ends_ns) - recorded.starts_ns[0] < step_time_s * 1e9 * _LIKE_A_STEP[0]:
        return 0
    return _repeats(recorded, step_time_s)


def _of_host(updates: Sequence[Span]) -> list[_Updates]:
    return [_Updates(span=span, count=1, work_after=True) for span in updates]


def _of_gpu(recorded: Recorded) -> list[_Updates]:
    """The kernels that update the weights, those together between which nothing else is computed."""
    found: list[_Updates] = []
    opened: Span | None = None
    count, worked = 0, False
    for name, start_ns, end_ns in zip(recorded.names, recorded.starts_ns, recorded.ends_ns, strict=True):
        what = _role(name)
        if what == "work":
            worked = True
        elif what == "update":
            if opened is not None and worked:
                found.append(_Updates(span=opened, count=count, work_after=True))
                opened, count = None, 0
            begin_ns = start_ns if opened is None else opened.start_ns
            opened = Span(start_ns=begin_ns, end_ns=end_ns)
            count, worked = count + 1, False
    if opened is not None:
        found.append(_Updates(span=opened, count=count, work_after=worked))
    return found


@lru_cache(maxsize=65536)
def _role(name: str) -> str:
    if _UPDATE.search(name):
        return "update"
    return "work" if kernel_class(name) in _WORK else ""


def _between(updates: Sequence[_Updates], step_time_s: float | None) -> int:
    """Steps from the end of one update to the end of the next.

    Some jobs update layer by layer while others still compute, or one part of the model after the other:
    what is close together is one update.
    """
    gaps_ns = [after.span.start_ns - before.span.end_ns for before, after in pairwise(updates)]
    if not gaps_ns:
        return 0
    apart_ns = max(gaps_ns) * _APART_OF_LONGEST
    if step_time_s is not None:
        apart_ns = step_time_s * 1e9 * _APART_OF_STEP
    sizes = [updates[0].count]
    for update, gap_ns in zip(updates[1:], gaps_ns, strict=True):
        if gap_ns >= apart_ns:
            sizes.append(0)
        sizes[-1] += update.count
    cut = not updates[-1].work_after and sizes[-1] < _WHOLE_UPDATE_RATIO * max(sizes[:-1], default=0)
    return len(sizes) - 1 - cut


def _repeats(recorded: Recorded, step_time_s: float) -> int | None:
    """How often the busiest stream's sequence of kernels fits into what was recorded of it."""
    busiest = Counter(recorded.streams).most_common(1)[0][0]
    rows = [at for at, stream in enumerate(recorded.streams) if stream == busiest]
    names = [recorded.names[at] for at in rows]
    starts_ns = [recorded.starts_ns[at] for at in rows]
    pace_ns = (starts_ns[-1] - starts_ns[0]) / len(starts_ns)
    fitting = [
        period
        for period in _periods(names, starts_ns, step_time_s)
        if 2 * period <= len(names) and _alike(names, period) >= _REPEATED_RATIO
    ]
    nearest = min(fitting, key=lambda period: abs(period * pace_ns - step_time_s * 1e9), default=None)
    return len(names) // nearest if nearest is not None else None


def _alike(names: Sequence[str], period: int) -> float:
    """The share of kernels that come again after so many others."""
    same: int = sum(map(eq, names, islice(names, period, None)))
    return same / (len(names) - period)


def _periods(names: Sequence[str], starts_ns: Sequence[int], step_time_s: float) -> Iterator[int]:
    """How many kernels a step may have: distances between kernels of rare names, about a step apart."""
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        places.setdefault(name, []).append(at)
    repeated = sorted((places for places in places.values() if len(places) > 1), key=len)
    shortest_ns, longest_ns = (ratio * step_time_s * 1e9 for ratio in _LIKE_A_STEP)
    distances = Counter(
        later - at
        for where in repeated[:_ANCHORS]
        for place, at in enumerate(where[:_OCCURRENCES])
        for later in where[place + 1 : place + 1 + _OCCURRENCES]
        if shortest_ns <= starts_ns[later] - starts_ns[at] <= longest_ns
    )
    return (distance for distance, _ in distances.most_common(_PERIODS))
