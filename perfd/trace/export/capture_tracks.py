"""A capture as tracks: what each rank did, and what perfd says about it, on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from perfd.analysis.findings import Finding
from perfd.trace.breakdown.collective_matching import waits_of
from perfd.trace.breakdown.critical_path import PathSegments
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.diagnosis import Diagnosis, TraceAnalysis
from perfd.trace.export.tracks import Slice, Track
from perfd.trace.model.intervals import Ns
from perfd.trace.model.rank_trace import GpuOperations, HostCalls, RankTrace

_FINDINGS = "perfd"


def capture_tracks(analysis: TraceAnalysis, diagnosis: Diagnosis) -> Iterator[Track]:
    """First the findings of the capture, then each rank: culprit, steps, waits, ranges, streams, host calls.

    Times are the wall clock's if each trace has it. Otherwise each rank begins at zero, and slices of two
    ranks at one place were not at one time; the name of the first track has a note then.
    """
    timelines = {rank.rank: rank.timeline for rank in analysis.ranks}
    offsets = _offsets_ns(timelines)
    if not timelines:
        return
    start = min(timeline.window.start_ns + offsets[rank] for rank, timeline in timelines.items())
    end = max(timeline.window.end_ns + offsets[rank] for rank, timeline in timelines.items())
    on_one_clock = all(timeline.trace.epoch_ns is not None for timeline in timelines.values())
    note = "" if on_one_clock or len(timelines) == 1 else " (ranks have no common clock)"
    found = [_finding(finding, start, end) for finding in diagnosis.findings]
    yield Track(_FINDINGS, f"findings{note}", found)
    waits = waits_of(analysis.collectives)
    for rank, timeline in timelines.items():
        trace, offset = timeline.trace, offsets[rank]
        process = f"rank {rank}" + (f" ({trace.gpu})" if trace.gpu else "")
        window = timeline.window.start_ns + offset, timeline.window.end_ns + offset
        blamed = [_finding(one, *window) for one in diagnosis.findings if _names(one, rank)]
        yield Track(process, "culprit of", blamed)
        steps = [Slice(s.start_ns + offset, s.end_ns + offset, f"step {s.number}") for s in trace.steps]
        yield Track(process, "steps", steps)
        waiting = [
            Slice(
                wait.start_ns + offset,
                wait.end_ns + offset,
                f"waits for rank {wait.for_rank}",
                {"collective": wait.operation, "group": wait.group},
            )
            for wait in waits
            if wait.rank == rank
        ]
        yield Track(process, "waits", waiting)
        if analysis.path and rank in analysis.path.segments:
            yield Track(process, "critical path", _on_the_path(analysis.path.segments[rank], trace, offset))
        yield from _work(trace, process, offset)


def _offsets_ns(timelines: Mapping[int, RankTimeline]) -> dict[int, int]:
    epochs = {rank: timeline.trace.epoch_ns for rank, timeline in timelines.items()}
    known = {rank: epoch for rank, epoch in epochs.items() if epoch is not None}
    if len(known) == len(epochs):
        return known
    return {rank: -_earliest_ns(timeline) for rank, timeline in timelines.items()}


def _earliest_ns(timeline: RankTimeline) -> int:
    trace = timeline.trace
    starts = [int(times[0]) for times in (trace.operations.start_ns, trace.calls.start_ns) if len(times)]
    starts += [phase.start_ns for phase in trace.phases] + [step.start_ns for step in trace.steps]
    return min([timeline.window.start_ns, *starts])


def _finding(finding: Finding, start_ns: int, end_ns: int) -> Slice:
    details = {"evidence": " ".join(finding.evidence), "advice": finding.advice}
    if finding.gain_ratio is not None:
        details["gain at most"] = f"{finding.gain_ratio:.1%}"
    return Slice(start_ns, end_ns, finding.headline, {name: text for name, text in details.items() if text})


def _names(finding: Finding, rank: int) -> bool:
    return any(culprit.kind == "rank" and culprit.id == rank for culprit in finding.culprits)


def _on_the_path(found: PathSegments, trace: RankTrace, offset_ns: int) -> list[Slice]:
    names = trace.operations.name[found.operation].tolist()
    columns = (found.start_ns.tolist(), found.end_ns.tolist(), names)
    slices = [
        Slice(begin + offset_ns, end + offset_ns, trace.names[at])
        for begin, end, at in zip(*columns, strict=True)
    ]
    slices += [Slice(begin + offset_ns, end + offset_ns, kind.value) for kind, begin, end in found.others]
    return sorted(slices, key=lambda one: one.start_ns)


def _work(trace: RankTrace, process: str, offset_ns: int) -> Iterator[Track]:
    ranges: dict[int, list[Slice]] = defaultdict(list)
    for phase in trace.phases:
        given = {} if phase.payload is None else {"payload": f"{phase.payload:.17g}"}
        ranges[phase.thread].append(
            Slice(phase.start_ns + offset_ns, phase.end_ns + offset_ns, phase.name, given)
        )
    for thread, slices in sorted(ranges.items()):
        yield Track(process, f"ranges of thread {thread}", slices)
    by_stream = _slices(trace.operations, trace.operations.stream, trace.names, offset_ns)
    for stream, slices in by_stream.items():
        yield Track(process, f"GPU stream {stream}", slices)
    by_thread = _slices(trace.calls, trace.calls.thread, trace.call_names, offset_ns)
    for thread, slices in by_thread.items():
        yield Track(process, f"calls of thread {thread}", slices)


def _slices(
    columns: GpuOperations | HostCalls, rows: Ns, names: Sequence[str], offset_ns: int
) -> dict[int, list[Slice]]:
    """By stream or thread, in the order of their numbers."""
    found: dict[int, list[Slice]] = defaultdict(list)
    times = (columns.start_ns + offset_ns).tolist(), (columns.end_ns + offset_ns).tolist()
    for row, start, end, name in zip(rows.tolist(), *times, columns.name.tolist(), strict=True):
        found[row].append(Slice(start, end, _name(names, name)))
    return dict(sorted(found.items()))


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else "call"
