"""What limits a capture, with the evidence: every finding, and which of five classes the capture is.

The thresholds are those of docs/traces.md. Shares are of the window, as means over the ranks whose records
are all there, so that they compare with each other and add up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from perfd.analysis.findings import (
    Culprit,
    Finding,
    Kind,
    Software,
    advice,
    computation_leads,
    fitted,
    ranked,
)
from perfd.formatting import bandwidth, data_size, duration, percent
from perfd.thresholds import THRESHOLDS
from perfd.trace.breakdown import HOST_WAIT_NS, KernelRow, SyncPoint, busy_by_class, graph_use
from perfd.trace.diagnosis.confidence import CONFIRMED, MEASURED, MODELLED, UNEXPLAINED, seen
from perfd.trace.diagnosis.loading_findings import judge_loading
from perfd.trace.diagnosis.rank_comparison import judge_losses, judge_pipeline, straggler_of
from perfd.trace.diagnosis.slow_rank_cause import PeerComparison, compare
from perfd.trace.diagnosis.time_shares import TimeShares, launch_idle_s, shares, sync_idle_s
from perfd.trace.diagnosis.trace_analysis import RankAnalysis, TraceAnalysis

_IDLE = frozenset({Kind.HOST_BOUND, Kind.LAUNCH_BOUND, Kind.SYNCHRONIZATION})
_MOSTLY = 0.5
"""More than half of the time has one cause: then no other cause has more."""
_SYNC_POINTS = 3
"""Places in which the host waits that one sentence names, the costliest."""
_HIP = re.compile(r"hip[A-Z]")
_UNKNOWN_SOFTWARE = Software()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits a capture."""

    bottleneck: Finding | None
    """The class; None when no rank's records are all there."""
    cause: Finding | None
    """What to act on first where that is not the class: a straggler, slow input, a stalling pipeline."""
    findings: Sequence[Finding]
    """What makes numbers doubtful, what to act on first, the others; symptoms are effects of their causes."""
    shares: TimeShares | None
    comparison: PeerComparison | None = None
    """The rank that the capture was made for, or the straggler in it, beside its peers."""

    @property
    def answer(self) -> str | None:
        """Why the requested rank is slow, unless the first finding says it."""
        if self.comparison is None or (self.first and self.comparison.answer in self.first.evidence):
            return None
        return self.comparison.answer

    @property
    def first(self) -> Finding | None:
        """The finding to report first; None if no rank's records are complete."""
        return self.cause or self.bottleneck


def diagnose(
    analysis: TraceAnalysis, software: Software = _UNKNOWN_SOFTWARE, *, slow_rank: int | None = None
) -> Diagnosis:
    """Every finding, what to act on first, and the class that costs most; advice is for `software`.

    A capture that was made because of `slow_rank` answers first why that rank is slow.
    """
    part = shares(analysis)
    doubts = [found for found in (judge_losses(analysis),) if found is not None]
    if part is None:
        asked = None if slow_rank is None else compare(analysis, slow_rank)
        return Diagnosis(bottleneck=None, cause=None, findings=tuple(doubts), shares=None, comparison=asked)
    straggler, comparison = straggler_of(analysis, slow_rank)
    judges: tuple[Callable[[TraceAnalysis, TimeShares], Finding | None], ...] = (
        _judge_communication,
        _judge_launch,
        _judge_synchronization,
        _judge_memory,
    )
    classes = [found for judge in judges if (found := judge(analysis, part)) is not None]
    loading = judge_loading(analysis)
    of_ranks = (straggler, loading, judge_pipeline(analysis))
    computation = _judge_compute(analysis, part)
    roots = ranked([*classes, *(found for found in of_ranks if found is not None)])
    roots = [replace(found, advice=fitted(found.advice, software)) for found in roots]
    computation = replace(computation, advice=fitted(computation.advice, software))
    leads = computation_leads(roots, computation)
    findings = [computation, *roots] if leads else [*roots, computation]
    bottleneck = _class(classes, computation, part)
    if loading is not None and bottleneck.kind in _IDLE and _explains(loading, part):
        bottleneck = next((one for one in roots if one.kind is loading.kind), loading)
    first = findings[0]
    return Diagnosis(
        bottleneck=bottleneck if bottleneck.kind is not first.kind else first,
        cause=first if bottleneck.kind is not first.kind else None,
        findings=(*doubts, *findings),
        shares=part,
        comparison=comparison,
    )


def _explains(loading: Finding, part: TimeShares) -> bool:
    """Whether most of the idle time is input."""
    idle = part.launch + part.synchronization + part.unexplained_idle
    return (loading.gain_ratio or 0.0) >= _MOSTLY * idle


def _class(classes: Sequence[Finding], computation: Finding, part: TimeShares) -> Finding:
    """What takes most of the window: idle time is one, however late launches and waiting share it."""
    idle = part.launch + part.synchronization + part.unexplained_idle

    def takes(found: Finding) -> float:
        return idle if found.kind in _IDLE else found.gain_ratio or 0.0

    costliest = max(classes, key=lambda found: (takes(found), found.gain_ratio or 0.0), default=computation)
    return costliest if takes(costliest) > part.compute else computation


def _judge_communication(analysis: TraceAnalysis, part: TimeShares) -> Finding | None:
    if part.exposed_communication <= THRESHOLDS.communication_ratio:
        return None
    evidence = [
        (
            f"Communication that nothing hides takes {percent(part.exposed_communication)} of the window"
            " (union of communication kernels, less compute and copies; mean over ranks)."
        )
    ]
    known = [
        analysis.collectives.split[rank.rank]
        for rank in analysis.complete
        if rank.rank in analysis.collectives.split
    ]
    transfer, wait = sum(one[0] for one in known), sum(one[1] for one in known)
    unmatched_sends = _mostly_sends(analysis) and transfer + wait <= 0
    todo = advice.SENDS_OF_ONE_RANK if unmatched_sends else advice.OVERLAP_OR_SEND_LESS
    waiting = None
    if transfer + wait > 0:
        waiting = wait / (transfer + wait)
        evidence.append(
            f"Of the communication that could be matched across ranks, {percent(waiting)} is waiting for the"
            f" last rank and {percent(1 - waiting)} transfer (shortest duration of each operation)."
        )
        if waiting > 0.5:
            todo = advice.ARRIVES_LAST
    evidence += _far_from_links(analysis)
    return Finding(
        kind=Kind.COMMUNICATION,
        confidence=seen(CONFIRMED if transfer + wait > 0 else MEASURED, analysis),
        evidence=evidence,
        advice=todo,
        gain_ratio=part.exposed_communication,
        waiting_ratio=None if waiting is None else waiting * part.exposed_communication,
    )


def _far_from_links(analysis: TraceAnalysis) -> list[str]:
    """The collective whose transfers lose most against the ring's least time, if that is much."""
    rows = [row for rank in analysis.complete for row in analysis.collectives.by_rank.get(rank.rank, ())]
    found = [
        (row, least) for row in rows if (least := row.least_time_of(analysis.link_bytes_per_s)) is not None
    ]
    far = [
        (row, least)
        for row, least in found
        if (least.link_ratio or 1.0) < THRESHOLDS.trace_link_ratio
        # Of small messages the time is latency.
        and least.size_bytes / row.count >= THRESHOLDS.slow_link_message_bytes
    ]
    if not far:
        return []
    row, least = max(far, key=lambda one: (one[1].time_s or 0.0) - one[1].minimum_s)
    group = f" of {row.group}" if row.group else ""
    size, rate = data_size(least.size_bytes / row.count), bandwidth(least.bus_bytes_per_s)
    return [
        (
            f"{row.operation}{group} ({row.count} of {size} on average) transfers at {rate} bus bandwidth,"
            f" {percent(least.link_ratio)} of NVLink: {duration(least.time_s)} where a ring needs"
            f" {duration(least.minimum_s)}. Links other than NVLink explain that."
        )
    ]


def _mostly_sends(analysis: TraceAnalysis) -> bool:
    rows = [row for rank in analysis.complete for row in analysis.collectives.by_rank.get(rank.rank, ())]
    sends = sum(row.exposed_s for row in rows if row.operation == "sendrecv")
    return sends > _MOSTLY * sum(row.exposed_s for row in rows)


def _judge_launch(analysis: TraceAnalysis, part: TimeShares) -> Finding | None:
    if part.unexplained_idle > THRESHOLDS.launch_idle_ratio:
        return _unexplained(analysis, part)
    if part.launch <= THRESHOLDS.launch_idle_ratio:
        return None
    worst = max(analysis.complete, key=launch_idle_s)
    idle, cost = worst.whole.idle, worst.launches
    on_its_way = idle is not None and idle.other_s > idle.unlaunched_s
    why = "the host has not launched"
    if on_its_way:
        why += ", or what it launched has not begun"
    evidence = [
        (
            f"The GPU has nothing to run for {percent(part.launch)} of the window because {why} (gaps between"
            " operations against the host's calls; mean over ranks)."
        )
    ]
    todo, kind = advice.LAUNCH_LESS, Kind.LAUNCH_BOUND
    if idle and on_its_way:
        evidence.append(
            f"On rank {worst.rank} {duration(idle.other_s)} of it are after the launch: its latency, or an"
            " event of another stream."
        )
        if cost and cost.queue_s is not None and cost.queue_s * 1e9 > HOST_WAIT_NS:
            # No launch takes so long: the host is ahead of the GPU.
            todo = advice.AFTER_LAUNCH
    elif idle and idle.host_s > _MOSTLY * launch_idle_s(worst):
        kind = Kind.HOST_BOUND
        evidence.append(
            f"On rank {worst.rank} {duration(idle.host_s)} of it are gaps over 100 µs in which the host"
            " launches nothing: it is busy with something else."
        )
        todo = advice.LONG_GAPS
    if cost and cost.queue_s is not None and cost.call_s is not None:
        evidence.append(
            f"On rank {worst.rank} a launch takes {duration(cost.call_s)} and its operation begins"
            f" {duration(cost.queue_s)} later (medians of {cost.count})."
        )
    evidence += _with_graphs(worst)
    return Finding(
        kind=kind,
        confidence=seen(MEASURED, analysis),
        culprits=[Culprit(kind="rank", id=worst.rank)] if len(analysis.complete) > 1 else [],
        evidence=evidence,
        advice=todo,
        gain_ratio=part.launch,
    )


def _with_graphs(rank: RankAnalysis) -> list[str]:
    """What CUDA graphs would save on a rank, if that can be estimated and is not small."""
    use = graph_use(rank.timeline)
    if use is None or use.sequence_count is None:
        return []
    saved = use.gain_s / rank.whole.span_s
    if saved <= THRESHOLDS.launch_idle_ratio:
        return []
    waits = (
        f" Its {use.waits_count} waits for the GPU have to stay outside of graphs." if use.waits_count else ""
    )
    return [
        (
            f"CUDA graphs could save up to {percent(saved)} of the window on rank {rank.rank}: about"
            f" {use.sequence_count:,} operations come again {use.repeats_count} times"
            f" ({percent(use.same_ratio)} the same).{waits}"
        )
    ]


def _unexplained(analysis: TraceAnalysis, part: TimeShares) -> Finding:
    return Finding(
        kind=Kind.HOST_BOUND,
        confidence=seen(UNEXPLAINED, analysis),
        evidence=[
            (
                f"The GPU runs nothing for {percent(part.unexplained_idle)} of the window (mean over ranks);"
                " the traces have no host calls, so why is not known."
            )
        ],
        advice=advice.RECORD_THE_HOST,
        gain_ratio=part.unexplained_idle,
    )


def _judge_synchronization(analysis: TraceAnalysis, part: TimeShares) -> Finding | None:
    if part.synchronization <= THRESHOLDS.synchronization_ratio:
        return None
    worst = max(analysis.complete, key=sync_idle_s)
    several = len(analysis.complete) > 1
    evidence = (
        (
            f"The GPU runs dry for {percent(part.synchronization)} of the window because the host waits for"
            " it, or had waited (gaps that would close without its waits; mean over ranks)."
        ),
        f"Worst is rank {worst.rank} with {duration(sync_idle_s(worst))}.",
    )
    where = [_sync_words(point) for point in worst.syncs[:_SYNC_POINTS]]
    placed = [f"Rank {worst.rank} waits in {'; '.join(where)}."] if where else []
    return Finding(
        kind=Kind.SYNCHRONIZATION,
        confidence=seen(MEASURED, analysis),
        culprits=[Culprit(kind="rank", id=worst.rank)] if several else [],
        evidence=[*(evidence if several else evidence[:1]), *placed],
        advice=advice.SYNCHRONIZATION,
        gain_ratio=part.synchronization,
    )


def _sync_words(point: SyncPoint) -> str:
    times = f"{point.count} times" if point.per_step is None else f"{point.per_step:.3g} per step"
    where = f" in {point.range_name[:64]}" if point.range_name else " outside of named ranges"
    return (
        f"{point.call}{where}, {times}, {duration(point.host_s)} ({duration(point.idle_s)} with an idle GPU)"
    )


def _judge_memory(analysis: TraceAnalysis, part: TimeShares) -> Finding | None:
    rows = [(rank, row) for rank in analysis.complete for row in rank.kernels if row.kernel_class == "copy"]
    pageable = sum(row.total_s / rank.whole.span_s for rank, row in rows if "Pageable" in row.name)
    pageable /= max(1, len(analysis.complete))
    if (
        part.exposed_memory <= THRESHOLDS.exposed_copies_ratio
        and pageable <= THRESHOLDS.pageable_copies_ratio
    ):
        return None
    evidence = [
        (
            f"Copies and fills that no computing hides take {percent(part.exposed_memory)} of the window"
            " (union of memory operations less compute; mean over ranks)."
        )
    ]
    todo = advice.COPIES
    if rows:
        _, longest = max(rows, key=lambda item: item[1].total_s)
        todo = advice.copies_like(longest.name)
        evidence.append(f"The longest is {longest.name}: {longest.count} take {duration(longest.total_s)}.")
    if pageable > THRESHOLDS.pageable_copies_ratio:
        evidence.append(f"Copies from or to pageable memory take {percent(pageable)}.")
        todo = advice.PAGEABLE_COPIES
    return Finding(
        kind=Kind.HOST_TRANSFER,
        confidence=seen(MEASURED, analysis),
        evidence=evidence,
        advice=todo,
        gain_ratio=max(part.exposed_memory, pageable),
    )


def _judge_compute(analysis: TraceAnalysis, part: TimeShares) -> Finding:
    """What it computes: the bottleneck when nothing else costs more."""
    rows: list[KernelRow] = [
        row for rank in analysis.complete for row in rank.kernels if row.kernel_class not in _NOT_COMPUTE
    ]
    total = sum(row.path_s for row in rows)
    classes = {name: value / total for name, value in busy_by_class(rows).items()} if total else {}
    evidence = [f"Compute kernels run for {percent(part.compute)} of the window (union; mean over ranks)."]
    if classes:
        largest = ", ".join(f"{name} {percent(ratio)}" for name, ratio in list(classes.items())[:4])
        evidence.append(f"Of the computing: {largest} (by kernel names).")
    if analysis.model_use:
        evidence.append(
            f"MFU is {percent(analysis.model_use.mfu_ratio)} of the {analysis.model_use.precision} peak."
        )
    opaque = classes.get("graph", 0.0)
    if opaque >= THRESHOLDS.trace_opaque_ratio:
        evidence.append(
            f"{percent(opaque)} of it is CUDA graphs as a whole: the trace does not show what they run."
        )
    matmul = classes.get("matmul", 0) + classes.get("attention", 0) + classes.get("convolution", 0)
    todo = advice.FUSE_ELEMENT_WISE if classes and matmul < _MOSTLY else _largest_kernels(analysis)
    moving = sum(row.path_s for row in rows if _moves_bytes(row)) / total if total else 0.0
    by_memory = opaque < THRESHOLDS.trace_opaque_ratio and moving >= THRESHOLDS.trace_memory_bound_ratio
    if by_memory:
        evidence.append(
            f"{percent(moving)} of it is kernels of 5 µs and more that do a few FLOPs per byte (element-wise,"
            " norms, softmax, reductions, optimizer, embeddings), so memory bandwidth limits them."
        )
    if opaque >= THRESHOLDS.trace_opaque_ratio:
        todo = advice.SEE_INTO_GRAPHS
    return Finding(
        kind=Kind.MEMORY_BOUND if by_memory else Kind.COMPUTE_BOUND,
        confidence=seen(MODELLED if by_memory else MEASURED, analysis),
        evidence=evidence,
        advice=todo if part.compute >= THRESHOLDS.trace_tuning_ratio else "",
        gain_ratio=None,
    )


def _largest_kernels(analysis: TraceAnalysis) -> str:
    """What looks into kernels, by the runtime that launched them."""
    calls = (name for rank in analysis.ranks for name in rank.timeline.trace.call_names)
    return advice.LARGEST_KERNELS_AMD if any(map(_HIP.match, calls)) else advice.LARGEST_KERNELS


def _moves_bytes(row: KernelRow) -> bool:
    return row.kernel_class in _FEW_FLOPS and row.total_s >= _SHORTEST_S * row.count


_NOT_COMPUTE = frozenset({"communication", "copy"})
_FEW_FLOPS = frozenset({"elementwise", "normalization", "softmax", "reduction", "optimizer", "embedding"})
"""Classes whose kernels do about one FLOP per number; GPUs can do over a hundred per byte."""
_SHORTEST_S = 5e-6
"""Chosen: a shorter kernel is mostly its own start and end, whatever its bytes."""
