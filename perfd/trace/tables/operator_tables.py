"""What PyTorch's profiler saw of the host: operators, lines of code, modules and functions, with GPU time."""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown import launching_call
from perfd.trace.model.host_spans import HostSpans, SpanKind, SpanLabel
from perfd.trace.model.intervals import Flags, Ns
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks

_MISSING = "No trace has operators: they are in those of PyTorch's profiler with ProfilerActivity.CPU."
_NOT_OWN = re.compile(r"(?:^|/)torch/|^<|^(?:contextlib|threading|functools|runpy)\.py\(")
"""Python functions that are not the job's own code, by file."""
_BACKWARD = re.compile(r"^autograd::|Backward\d*$")
_LINE = re.compile(r"(?P<file>[^()]{1,512})\((?P<line>\d{1,9})\): (?P<function>.{1,512})")
_MODULE = "nn.Module: "


@dataclass(frozen=True, slots=True)
class SpanPlaces:
    """Where spans are: indices of spans, -1 where that is not known."""

    module: Ns
    line: Ns


def places_of(spans: HostSpans) -> SpanPlaces:
    """The module and the own line around each span; of a backward pass those of its forward pass."""
    own = np.array(
        [label.kind is SpanKind.FUNCTION and not _NOT_OWN.search(label.name) for label in spans.labels],
        dtype=np.bool_,
    )
    module = spans.nearest(spans.are(SpanKind.MODULE))
    line = spans.nearest(own[spans.label])
    backward = np.array([bool(_BACKWARD.search(label.name)) for label in spans.labels], dtype=np.bool_)
    numbered = spans.are(SpanKind.OPERATOR) & (spans.sequence >= 0)
    forward = np.flatnonzero(numbered & ~backward[spans.label])
    # The last operator with a number is the one whose backward pass has it.
    forward = forward[np.lexsort((spans.start_ns[forward], spans.sequence[forward]))]
    numbers = spans.sequence[forward]
    asked = spans.nearest(numbered & backward[spans.label])
    at = np.flatnonzero(asked >= 0)
    if len(forward) and len(at):
        wanted = spans.sequence[asked[at]]
        place = np.searchsorted(numbers, wanted, side="right") - 1
        known = (place >= 0) & (numbers[np.maximum(place, 0)] == wanted)
        origin, at = forward[place[known]], at[known]
        module, line = module.copy(), line.copy()
        module[at], line[at] = module[origin], line[origin]
    return SpanPlaces(module, line)


def launching_spans(trace: RankTrace, spans: HostSpans) -> Ns:
    """The innermost span in which each operation was launched; -1 where that is not known."""
    call = launching_call(trace)
    known = np.flatnonzero(call >= 0)
    found = np.full(len(call), -1, dtype=np.int64)
    found[known] = spans.innermost(trace.calls.thread[call[known]], trace.calls.start_ns[call[known]])
    return found


@table_of_ranks(
    "operators",
    "Operators",
    named(
        "rank operator shapes dtypes module line count gpu_self_s gpu_total_s host_self_s "
        "host_total_s operations_count"
    ),
    missing=_MISSING,
)
def operators(trace: RankTrace) -> list[tuple[Cell, ...]]:
    """By operator, inputs, module and line: host and GPU time, of itself and with what it calls."""
    spans = trace.detail.spans if trace.detail else None
    if spans is None or not len(spans):
        return []
    is_operator = spans.are(SpanKind.OPERATOR)
    innermost = spans.nearest(is_operator)
    parent = np.where(spans.parent >= 0, innermost[spans.parent], -1)
    launched = launching_spans(trace, spans)
    operator = np.where(launched >= 0, innermost[launched], -1)
    known = operator >= 0
    durations = (trace.operations.end_ns - trace.operations.start_ns)[known]
    size = len(spans)
    gpu_self = np.bincount(operator[known], weights=durations, minlength=size)
    count = np.bincount(operator[known], minlength=size)
    host = spans.end_ns - spans.start_ns
    nested = is_operator & (parent >= 0)
    host_self = host - np.bincount(parent[nested], weights=host[nested], minlength=size)
    gpu_total = _with_nested(gpu_self.tolist(), parent, is_operator)
    places = places_of(spans)
    groups: dict[tuple[int, int, int], list[float]] = {}
    label_of = np.append(spans.label, -1)
    own, launched_counts, host_own, host_all = (one.tolist() for one in (gpu_self, count, host_self, host))
    for at in np.flatnonzero(is_operator).tolist():
        key = (int(spans.label[at]), int(label_of[places.module[at]]), int(label_of[places.line[at]]))
        row = groups.setdefault(key, [0, 0, 0, 0, 0, 0])
        values = (1, own[at], gpu_total[at], host_own[at], host_all[at], launched_counts[at])
        for column, value in enumerate(values):
            row[column] += value
    rows: list[tuple[Cell, ...]] = []
    for (label, module, line), sums in groups.items():
        one = spans.labels[label]
        calls, *times, launched_count = sums
        seconds = [value / 1e9 for value in times]
        words = (module_words(spans, module), _line_words(spans, line))
        rows.append(
            (trace.rank, one.name, one.shapes, one.dtypes, *words, int(calls), *seconds, int(launched_count))
        )
    return sorted(rows, key=lambda row: (-float(row[7] or 0), -float(row[9] or 0)))


def _with_nested(own: list[float], parent: Ns, chosen: Flags) -> list[float]:
    """What each span has with all below it; spans come after those around them."""
    total = list(own)
    parents = parent.tolist()
    for at in reversed(np.flatnonzero(chosen).tolist()):
        if parents[at] >= 0:
            total[parents[at]] += total[at]
    return total


@table_of_ranks(
    "lines",
    "GPU time by line of code",
    named("rank line module operator kernel count gpu_s share_ratio"),
    missing=_MISSING,
)
def lines(trace: RankTrace) -> list[tuple[Cell, ...]]:
    """GPU time by line of code, module, operator and kernel."""
    spans = trace.detail.spans if trace.detail else None
    if spans is None or not len(spans):
        return []
    launched = launching_spans(trace, spans)
    innermost, places = spans.nearest(spans.are(SpanKind.OPERATOR)), places_of(spans)
    durations = trace.operations.end_ns - trace.operations.start_ns
    label_of = np.append(spans.label, -1)
    columns = [
        label_of[np.where(launched >= 0, found[launched], -1)]
        for found in (places.line, places.module, innermost)
    ]
    groups: dict[tuple[int, ...], list[int]] = {}
    for *key, duration in zip(
        *(column.tolist() for column in columns),
        trace.operations.name.tolist(),
        durations.tolist(),
        strict=True,
    ):
        row = groups.setdefault(tuple(key), [0, 0])
        row[0] += 1
        row[1] += duration
    total = int(durations.sum()) or 1
    rows: list[tuple[Cell, ...]] = [
        (
            trace.rank,
            _line_words(spans, line),
            module_words(spans, module),
            spans.labels[operator].name if operator >= 0 else "",
            trace.names[name],
            count,
            time_ns / 1e9,
            time_ns / total,
        )
        for (line, module, operator, name), (count, time_ns) in groups.items()
    ]
    return sorted(rows, key=lambda row: -float(row[6] or 0))


def module_words(spans: HostSpans, label: int) -> str:
    """The name of a module by its label; empty for -1."""
    return spans.labels[label].name.removeprefix(_MODULE) if label >= 0 else ""


def _line_words(spans: HostSpans, label: int) -> str:
    if label < 0:
        return ""
    found = _LINE.fullmatch(spans.labels[label].name)
    return f"{found['file']}:{found['line']} {found['function']}" if found else spans.labels[label].name


_DTYPE_BYTES = {
    "float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "short": 2, "bool": 1, "unsigned char": 1,
    "signed char": 1, "c10::BFloat16": 2, "c10::Half": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::complex<float>": 8,
}  # fmt: skip


@table_of_ranks(
    "modules",
    "Modules, and the least that their operators read (each input once)",
    named("rank module operators_count gpu_s gpu_ratio read_bytes read_ratio read_bytes_per_s"),
    missing="No trace has modules: record with PyTorch's profiler (with_stack, with_modules).",
)
def modules(trace: RankTrace) -> list[tuple[Cell, ...]]:
    """By module: GPU time, its operators' input bytes, and both shares."""
    spans = trace.detail.spans if trace.detail else None
    if spans is None or not spans.are(SpanKind.MODULE).any():
        return []
    use = _module_use(trace, spans)
    whole_ns = int((trace.operations.end_ns - trace.operations.start_ns).sum()) or 1
    all_bytes = sum(one.bytes_of_known for one in use.values()) or 1
    all_known = not any(one.lacks_sizes for one in use.values())
    rows: list[tuple[Cell, ...]] = []
    for label, one in use.items():
        read = None if one.lacks_sizes or not one.operators else one.bytes_of_known
        rows.append(
            (
                trace.rank,
                module_words(spans, label) or "(none)",
                one.operators,
                one.time_ns / 1e9,
                one.time_ns / whole_ns,
                read,
                read / all_bytes if read is not None and all_known else None,
                read / (one.time_ns / 1e9) if read is not None and one.time_ns else None,
            )
        )
    return sorted(rows, key=lambda row: -float(row[3] or 0))


@dataclass(slots=True)
class _ModuleUse:
    """What a module's operators did."""

    operators: int = 0
    time_ns: int = 0
    """On the GPU."""
    bytes_of_known: int = 0
    """That operators with known inputs read at least: each input once."""
    lacks_sizes: bool = False
    """Whether the inputs of some operator are unknown."""


def _module_use(trace: RankTrace, spans: HostSpans) -> dict[int, _ModuleUse]:
    """By label of the module; -1 for work outside of all."""
    launched = launching_spans(trace, spans)
    innermost, places = spans.nearest(spans.are(SpanKind.OPERATOR)), places_of(spans)
    known = np.flatnonzero(launched >= 0)
    operators, modules_of = innermost[launched[known]], places.module[launched[known]]
    durations = (trace.operations.end_ns - trace.operations.start_ns)[known]
    sizes = [_input_bytes(label) for label in spans.labels]
    found: defaultdict[int, _ModuleUse] = defaultdict(_ModuleUse)
    seen: set[int] = set()
    for operator, module, duration in zip(
        operators.tolist(), modules_of.tolist(), durations.tolist(), strict=True
    ):
        use = found[int(spans.label[module]) if module >= 0 else -1]
        use.time_ns += duration
        # An operator that launches several kernels reads its inputs at least once.
        if operator >= 0 and operator not in seen:
            seen.add(operator)
            size = sizes[int(spans.label[operator])]
            use.operators += 1
            use.bytes_of_known += size or 0
            use.lacks_sizes |= size is None
    return found


def _input_bytes(label: SpanLabel) -> int | None:
    """Bytes of an operator's inputs; None if the trace does not have them."""
    try:
        shapes, dtypes = ast.literal_eval(label.shapes or "0"), ast.literal_eval(label.dtypes or "0")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        # Cut, because it is long.
        return None
    if not isinstance(shapes, list) or not isinstance(dtypes, list) or len(shapes) != len(dtypes):
        return None
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        # A list of tensors has a list of shapes; the profiler has no dtype of them.
        if not isinstance(shape, list) or not all(isinstance(one, int) for one in shape):
            return None
        if shape:
            size = _DTYPE_BYTES.get(str(dtype))
            if size is None:
                return None
            total += math.prod(shape) * size
    return total


@table_of_ranks(
    "functions",
    "Python functions",
    named("rank function calls_count total_s total_ratio self_s call_s"),
    missing="No trace has Python functions: record with PyTorch's profiler and with_stack=True.",
)
def functions(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """By function: calls, own time, and time including callees; recursion counts once."""
    spans = trace.detail.spans if trace.detail else None
    if spans is None or not len(spans):
        return
    chosen = spans.are(SpanKind.FUNCTION)
    if not chosen.any():
        return
    nearest = spans.nearest(chosen)
    parent = np.where(spans.parent >= 0, nearest[spans.parent], -1)
    length = spans.end_ns - spans.start_ns
    nested = chosen & (parent >= 0)
    own = length - np.bincount(parent[nested], weights=length[nested], minlength=len(spans)).astype(np.int64)
    # All time in Python: what no function is around.
    whole_ns = int(length[chosen & (parent < 0)].sum()) or 1
    found: defaultdict[int, _FunctionUse] = defaultdict(_FunctionUse)
    for at in np.flatnonzero(chosen).tolist():
        use = found[int(spans.label[at])]
        use.calls += 1
        use.total_ns += 0 if _is_recursive(spans, at, parent[at]) else int(length[at])
        use.own_ns += int(own[at])
    for label, use in sorted(found.items(), key=lambda one: -one[1].total_ns):
        yield (
            trace.rank,
            spans.labels[label].name,
            use.calls,
            use.total_ns / 1e9,
            use.total_ns / whole_ns,
            use.own_ns / 1e9,
            use.total_ns / use.calls / 1e9,
        )


@dataclass(slots=True)
class _FunctionUse:
    """How often a function was called, and how long it took with and without what it called."""

    calls: int = 0
    total_ns: int = 0
    own_ns: int = 0


def _is_recursive(spans: HostSpans, at: int, parent: int) -> bool:
    """Whether the same function is around it."""
    wanted = spans.label[at]
    return parent >= 0 and any(spans.label[one] == wanted for one in spans.around(int(parent)))
