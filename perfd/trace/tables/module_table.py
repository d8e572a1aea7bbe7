"""Modules of a model: GPU time, and the least memory traffic for the inputs of their operators."""

from __future__ import annotations

import ast
import math

import numpy as np

from perfd.trace.model.host_spans import SpanKind, SpanLabel
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.operator_tables import launching_spans, module_words, places_of
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks

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
    launched = launching_spans(trace, spans)
    innermost, places = spans.nearest(spans.are(SpanKind.OPERATOR)), places_of(spans)
    known = np.flatnonzero(launched >= 0)
    operator, module = innermost[launched[known]], places.module[launched[known]]
    durations = (trace.operations.end_ns - trace.operations.start_ns)[known]
    sizes = [_input_bytes(label) for label in spans.labels]
    seen: set[int] = set()
    groups: dict[int, list[int]] = {}
    unsized: set[int] = set()
    for one, where, duration in zip(operator.tolist(), module.tolist(), durations.tolist(), strict=True):
        label = int(spans.label[where]) if where >= 0 else -1
        row = groups.setdefault(label, [0, 0, 0])
        row[1] += duration
        if one < 0 or one in seen:
            continue
        # An operator that launches several kernels reads its inputs at least once.
        seen.add(one)
        row[0] += 1
        size = sizes[int(spans.label[one])]
        row[2] += size or 0
        if size is None:
            unsized.add(label)
    whole_ns = int((trace.operations.end_ns - trace.operations.start_ns).sum()) or 1
    all_bytes = sum(row[2] for row in groups.values()) or 1
    rows: list[tuple[Cell, ...]] = []
    for label, (count, time_ns, total) in groups.items():
        read = None if label in unsized or not count else total
        rows.append(
            (
                trace.rank,
                module_words(spans, label) or "(none)",
                count,
                time_ns / 1e9,
                time_ns / whole_ns,
                read,
                None if read is None or unsized else read / all_bytes,
                None if read is None or not time_ns else read / (time_ns / 1e9),
            )
        )
    return sorted(rows, key=lambda row: -float(row[3] or 0))


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
