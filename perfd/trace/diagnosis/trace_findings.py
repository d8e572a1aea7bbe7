"""What limits a capture, with the evidence: every finding, and which of five classes the capture is.

The thresholds are those of docs/traces.md. Shares are of the window, as means over the ranks whose records
are all there, so that they compare with each other and add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.formatting import duration, percent
from perfd.thresholds import THRESHOLDS
from perfd.trace.breakdown import KernelRow, busy_by_class
from perfd.trace.diagnosis.confidence import CONFIRMED, MEASURED, UNEXPLAINED, seen
from perfd.trace.diagnosis.rank_comparison import judge_losses, judge_pipeline, judge_straggler
from perfd.trace.diagnosis.time_shares import TimeShares, launch_idle_s, shares, sync_idle_s
from perfd.trace.diagnosis.trace_analysis import TraceAnalysis

_OF_RANKS = frozenset({Kind.STRAGGLER, Kind.PIPELINE_BUBBLE, Kind.PIPELINE_IMBALANCE})
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits a capture."""

    bottleneck: Finding | None
    """The class; None when no rank's records are all there."""
    cause: Finding | None
    """The straggler or the stalling pipeline that ranks wait for, where that is what to mend first."""
    findings: Sequence[Finding]
    """All of them: what makes numbers doubtful first, then the cause, then by what there is to gain."""
    shares: TimeShares | None

    @property
    def first(self) -> Finding | None:
        """What to tell before everything else; None when no rank's records are all there."""
        return self.cause or self.bottleneck


def diagnose(analysis: TraceAnalysis) -> Diagnosis:
    """Every finding, and the class that costs most."""
    part = shares(analysis)
    classes: list[Finding] = []
    if part is not None:
        judges: tuple[Callable[[TraceAnalysis, TimeShares], Finding | None], ...] = (
            _judge_communication,
            _judge_launch,
            _judge_synchronization,
            _judge_memory,
        )
        classes = [found for judge in judges if (found := judge(analysis, part)) is not None]
        classes.sort(key=lambda found: -(found.gain_ratio or 0))
        # What costs more than computing takes is the bottleneck; else it computes, and the rest is to gain.
        costlier = any((found.gain_ratio or 0) > part.compute for found in classes)
        classes.insert(len(classes) if costlier else 0, _judge_compute(analysis, part))
    others = [
        found
        for judge in (judge_losses, judge_straggler, judge_pipeline)
        if (found := judge(analysis)) is not None
    ]
    cause = _cause(classes, others)
    if cause is not None:
        # The cause says who.
        classes = [
            replace(found, advice="") if found.advice == advice.ARRIVES_LAST else found for found in classes
        ]

    def order(found: Finding) -> tuple[bool, bool, float]:
        return found.kind is not Kind.MISSING_TELEMETRY, found is not cause, -(found.gain_ratio or 0)

    return Diagnosis(
        bottleneck=classes[0] if classes else None,
        cause=cause,
        findings=tuple(sorted([*others, *classes], key=order)),
        shares=part,
    )


def _cause(classes: Sequence[Finding], others: Sequence[Finding]) -> Finding | None:
    """Who is waited for, unless something else costs more.

    Each rank of a job that waits for one of them computes or communicates; which of the two is no answer.
    """
    known = [found for found in others if found.kind in _OF_RANKS]
    if not classes or not known:
        return None
    cause = max(known, key=lambda found: found.gain_ratio or 0)

    def rest(found: Finding) -> float:
        # The waiting is in the time of communication too, so most of that has to be something else.
        part = _MOSTLY if found.kind is Kind.COMMUNICATION else 1.0
        return part * (found.gain_ratio or 0)

    return cause if all(rest(found) <= (cause.gain_ratio or 0) for found in classes) else None


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
    if transfer + wait > 0:
        waiting = wait / (transfer + wait)
        evidence.append(
            f"Of the communication that could be matched across ranks, {percent(waiting)} is waiting for the"
            f" last rank and {percent(1 - waiting)} transfer (shortest duration of each operation)."
        )
        if waiting > 0.5:
            todo = advice.ARRIVES_LAST
    return Finding(
        kind=Kind.COMMUNICATION,
        confidence=seen(CONFIRMED if transfer + wait > 0 else MEASURED, analysis),
        evidence=evidence,
        advice=todo,
        gain_ratio=part.exposed_communication,
    )


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
    evidence = [
        (
            f"The GPU has nothing to run for {percent(part.launch)} of the window because the host has not"
            " launched (gaps between operations against the host's calls; mean over ranks)."
        )
    ]
    todo = advice.LAUNCH_LESS
    if idle and idle.host_s > 0.5 * launch_idle_s(worst):
        evidence.append(
            f"On rank {worst.rank} {duration(idle.host_s)} of it are gaps over 100 µs in which the host"
            " launches nothing: it is busy with something else."
        )
        todo = advice.LONG_GAPS
    if cost and cost.queue_s is not None and cost.call_s is not None:
        evidence.append(
            f"On rank {worst.rank} a launch takes {cost.call_s * 1e6:.1f} us and its operation begins"
            f" {cost.queue_s * 1e6:.1f} us later (medians of {cost.count})."
        )
    return Finding(
        kind=Kind.LAUNCH_BOUND,
        confidence=seen(MEASURED, analysis),
        culprits=[Culprit(kind="rank", id=worst.rank)] if len(analysis.complete) > 1 else [],
        evidence=evidence,
        advice=todo,
        gain_ratio=part.launch,
    )


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
    return Finding(
        kind=Kind.SYNCHRONIZATION,
        confidence=seen(MEASURED, analysis),
        culprits=[Culprit(kind="rank", id=worst.rank)] if several else [],
        evidence=evidence if several else evidence[:1],
        advice=advice.SYNCHRONIZATION,
        gain_ratio=part.synchronization,
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
        told = ", ".join(f"{name} {percent(ratio)}" for name, ratio in list(classes.items())[:4])
        evidence.append(f"Of the computing: {told} (by kernel names).")
    if analysis.model_use:
        evidence.append(
            f"MFU is {percent(analysis.model_use.mfu_ratio)} of the {analysis.model_use.precision} peak."
        )
    matmul = classes.get("matmul", 0) + classes.get("attention", 0) + classes.get("convolution", 0)
    todo = advice.FUSE_ELEMENT_WISE if classes and matmul < _MOSTLY else advice.LARGEST_KERNELS
    return Finding(
        kind=Kind.COMPUTE_BOUND,
        confidence=seen(MEASURED, analysis),
        evidence=evidence,
        advice=todo if part.compute >= THRESHOLDS.trace_tuning_ratio else "",
        gain_ratio=None,
    )


_NOT_COMPUTE = frozenset({"communication", "copy"})
