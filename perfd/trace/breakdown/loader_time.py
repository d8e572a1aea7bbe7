"""How long a rank's GPU had nothing to run while its host fetched input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Coverage
from perfd.trace.model.rank_trace import Phase, RankTrace

_LOADER = re.compile(
    r"data[-_ ]?(load|iterator|fetch|wait)|loader(?![a-z])|load[-_ ]?data|input[-_ ]?pipeline"
    r"|(?<![a-z])(get|next|load|fetch|read)[-_ ]?(next[-_ ]?)?(micro[-_ ]?)?batch"
    r"|batch[-_ ]?(generator|load|fetch)",
    re.IGNORECASE,
)
"""Names of ranges around input: PyTorch's `enumerate(DataLoader)#...`, Megatron-LM's `batch-generator`."""


def is_loading(name: str) -> bool:
    """Whether a range of this name is around input."""
    return bool(_LOADER.search(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTime:
    """Input of one rank, within its window."""

    names: Sequence[str]
    host_s: float
    """In such ranges on threads that launch work."""
    idle_s: float
    """The part of it in which the GPU ran nothing."""


def loader_time(timeline: RankTimeline) -> LoaderTime | None:
    """What its ranges say of a rank's input; None without such a range, or with too many lost records."""
    window = timeline.window
    if not timeline.complete:
        return None
    ranges = [
        phase
        for phase in of_launching_threads(timeline.trace, timeline)
        if phase.start_ns < window.end_ns and phase.end_ns > window.start_ns and is_loading(phase.name)
    ]
    if not ranges:
        return None
    loading = Coverage(
        np.array([phase.start_ns for phase in ranges], dtype=np.int64),
        np.array([phase.end_ns for phase in ranges], dtype=np.int64),
    )
    starts, ends = timeline.busy.gaps(window.start_ns, window.end_ns)
    return LoaderTime(
        names=sorted({phase.name for phase in ranges}),
        host_s=loading.covered_ns(window.start_ns, window.end_ns) / 1e9,
        idle_s=float(loading.covered_many_ns(starts, ends).sum()) / 1e9,
    )


def of_launching_threads(trace: RankTrace, timeline: RankTimeline) -> Sequence[Phase]:
    """Threads that prefetch do not keep the GPU waiting; all, if no call shows which thread launches."""
    launching = timeline.launched_by[timeline.launched_by >= 0]
    if not len(launching):
        return trace.phases
    threads = set(trace.calls.thread[launching].tolist())
    return [phase for phase in trace.phases if phase.thread in threads]
