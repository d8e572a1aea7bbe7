"""What comes between the decode steps of an inference server."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.model.serving_steps import step_name
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks

_DECODE, _ENDING = "decode step", " step"


@table_of_ranks(
    "decode-gaps",
    "Time from one decode step to the next, by what runs between them",
    named("rank between count median_s max_s longest_at_s other_steps_s delay_s"),
    missing="No trace has decode steps of a server: SGLang and vLLM name them when profiled.",
)
def decode_gaps(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """By what ran between two decode steps: time from start to start, and where it was longest."""
    steps = sorted(
        (phase.start_ns, phase.end_ns, kind)
        for phase in trace.phases
        if (kind := step_name(phase.name) or (phase.name if phase.name.endswith(_ENDING) else None))
    )
    gaps: dict[str, list[tuple[int, int, int]]] = {}
    last: int | None = None
    between: list[tuple[int, str]] = []
    for start, end, kind in steps:
        if kind != _DECODE:
            between.append((end - start, kind))
            continue
        if last is not None:
            kinds = ", ".join(sorted({one for _, one in between})) or "nothing"
            gaps.setdefault(kinds, []).append((start - last, last, sum(took for took, _ in between)))
        last, between = start, []
    plain = [gap for gap, _, _ in gaps.get("nothing", ())]
    usual = float(np.median(plain)) if plain else None
    first = int(trace.operations.start_ns[0]) if len(trace.operations) else 0
    for kinds, found in sorted(gaps.items(), key=lambda one: -sum(gap for gap, _, _ in one[1])):
        lengths = [gap for gap, _, _ in found]
        longest = max(found)
        interrupted = usual is not None and kinds != "nothing"
        yield (
            trace.rank,
            kinds,
            len(found),
            float(np.median(lengths)) / 1e9,
            longest[0] / 1e9,
            (longest[1] - first) / 1e9,
            sum(took for _, _, took in found) / 1e9,
            (sum(lengths) - len(lengths) * (usual or 0.0)) / 1e9 if interrupted else None,
        )
