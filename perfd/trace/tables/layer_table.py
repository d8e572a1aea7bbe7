"""Finds a model's layers as repeating kernel sequences, and the role of each kernel in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.model.intervals import Ns
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks

_LONGEST = 512
"""Kernels of a layer, at most."""
_LEAST_KERNELS = 3
"""Fewer that repeat are a loop within a layer, such as an optimizer's."""
_LEAST_LAYERS = 3
"""Repeats of a sequence of kernels: two can be forward and backward of one."""
_LEAST_COVERED_RATIO = 0.5
"""Share of all kernels in such layers; with less the trace has no clear layers."""
_LEAST_FURTHER_RATIO = 0.1
"""The same of further kinds of layers."""
_MOST_KINDS = 3
"""Sequences that are looked for: forward and backward of a training step, and one more."""
_ROTARY, _CACHE = re.compile(r"rotary|rope", re.IGNORECASE), re.compile(r"cache|append|kv", re.IGNORECASE)
_SPLIT = re.compile(r"splitk", re.IGNORECASE)
_FEED_FORWARD = {1: ("up",), 2: ("up", "down"), 3: ("gate", "up", "down")}
_PROJECTIONS = {1: ("QKV projection",), 3: ("Q projection", "K projection", "V projection")}


@dataclass(frozen=True, slots=True)
class _Layers:
    """Where a sequence of `size` kernels repeats."""

    size: int
    runs: Sequence[tuple[int, int]]
    """First kernel and number of layers of each run: a pass through the model."""


@table_of_ranks(
    "layers",
    "A layer of the model, from repeating kernels",
    named(
        "rank layer passes_count layers_count position role class kernel median_s total_s layer_share_ratio"
    ),
    missing="No kernel sequence looks like layers: three in a row, and at least half of all kernels.",
)
def layers(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """One row per operation of a layer: role, class and time, combined over a rank's layers and passes."""
    operations = trace.operations
    chosen = np.flatnonzero(operations.kind != OperationKind.MEMORY)
    if not len(chosen):
        return
    streams, counts = np.unique(operations.stream[chosen], return_counts=True)
    chosen = chosen[operations.stream[chosen] == streams[np.argmax(counts)]]
    names = operations.name[chosen].astype(np.int64)
    durations = (operations.end_ns - operations.start_ns)[chosen]
    for number, found in enumerate(_kinds_of_layer(names)):
        yield from _layer_rows(trace, "ABC"[number], found, names, durations)


def _layer_rows(
    trace: RankTrace, layer: str, found: _Layers, names: Ns, durations: Ns
) -> Iterator[tuple[Cell, ...]]:
    first, _ = found.runs[0]
    classes = [trace.classes[name] for name in names[first : first + found.size].tolist()]
    shift = _begin(classes)
    # If the layer starts later in the sequence, each run has one layer fewer.
    starts = np.array(
        [start + shift + at * found.size for start, count in found.runs for at in range(count - bool(shift))]
    )
    times = durations[starts[:, None] + np.arange(found.size)[None, :]]
    layer_ns = int(times.sum()) or 1
    kernels = [trace.names[name] for name in names[first + shift : first + shift + found.size].tolist()]
    classes = classes[shift:] + classes[:shift]
    typical = int(np.median([count for _, count in found.runs]))
    for at, (kernel, label, role) in enumerate(zip(kernels, classes, _roles(kernels, classes), strict=True)):
        total_ns = int(times[:, at].sum())
        yield (
            trace.rank,
            layer,
            len(found.runs),
            typical,
            at + 1,
            role,
            label,
            kernel,
            float(np.median(times[:, at])) / 1e9,
            total_ns / 1e9,
            total_ns / layer_ns,
        )


def _kinds_of_layer(names: Ns) -> Iterator[_Layers]:
    """The repeating sequences, largest coverage first: for a training step, backward and forward."""
    left = names.copy()
    least = _LEAST_COVERED_RATIO
    for _ in range(_MOST_KINDS):
        found = _repeats(left, least)
        if found is None:
            return
        yield found
        least = _LEAST_FURTHER_RATIO
        for start, count in found.runs:
            covered = slice(start, start + count * found.size)
            # Numbers that no other kernel has, so that nothing repeats here.
            left[covered] = -np.arange(covered.start, covered.stop) - 1


def _repeats(names: Ns, least_ratio: float) -> _Layers | None:
    """The shortest sequence whose repeats cover that share of the kernels."""
    for size in range(_LEAST_KERNELS, min(_LONGEST, len(names) // _LEAST_LAYERS) + 1):
        equal = np.concatenate(([False], names[:-size] == names[size:], [False]))
        edges = np.flatnonzero(equal[1:] != equal[:-1])
        starts, ends = edges[::2], edges[1::2]
        count = (ends - starts) // size + 1
        # One or two repeating kernels repeat at any size.
        runs = [
            (start, number)
            for start, number in zip(starts.tolist(), count.tolist(), strict=True)
            if number >= _LEAST_LAYERS and len(set(names[start : start + size].tolist())) >= _LEAST_KERNELS
        ]
        if size * sum(number for _, number in runs) >= least_ratio * len(names):
            return _Layers(size, runs)
    return None


def _begin(classes: Sequence[str]) -> int:
    """Where a layer starts: at the normalization before its attention, else where the run starts."""
    if "attention" not in classes or "normalization" not in classes:
        return 0
    at = classes.index("attention")
    before = [(at - index) % len(classes) for index, one in enumerate(classes) if one == "normalization"]
    return (at - min(before)) % len(classes)


def _roles(kernels: Sequence[str], classes: Sequence[str]) -> list[str]:
    """The role of each kernel in a forward pass through a transformer layer; else its class."""
    matmuls = [
        at
        for at, (kernel, label) in enumerate(zip(kernels, classes, strict=True))
        if label == "matmul" and not _SPLIT.search(kernel)
    ]
    roles = [_plain_role(kernel, label) for kernel, label in zip(kernels, classes, strict=True)]
    attention = [at for at, label in enumerate(classes) if label == "attention"]
    softmax = [at for at, label in enumerate(classes) if label == "softmax"]
    named: dict[int, str] = {}
    if not attention and len(softmax) == 1:
        # Not fused: the products on both sides are part of it.
        sides = [at for at in matmuls if at < softmax[0]][-1:] + [at for at in matmuls if at > softmax[0]][:1]
        named = dict(zip(sides, ("attention scores", "attention values"), strict=False))
        attention = sides
    before = [at for at in matmuls if attention and at < attention[0]]
    after = [at for at in matmuls if attention and at > attention[-1]]
    if len(before) not in _PROJECTIONS or len(after) - 1 not in _FEED_FORWARD:
        # A backward pass, experts, or another architecture.
        return roles
    words = ("output projection", *(f"feed-forward {word}" for word in _FEED_FORWARD[len(after) - 1]))
    named |= dict(zip(before, _PROJECTIONS[len(before)], strict=True)) | dict(zip(after, words, strict=True))
    return [named.get(at, role) for at, role in enumerate(roles)]


def _plain_role(kernel: str, label: str) -> str:
    if label == "elementwise" and _ROTARY.search(kernel):
        return "rotary embedding"
    if label == "copy" and _CACHE.search(kernel):
        return "KV cache write"
    if label == "matmul" and _SPLIT.search(kernel):
        return "sum of a split product"
    return label
