"""What limits a job: every finding with its evidence, the one to act on first at the front.

Each judge looks at one kind and says nothing when its evidence is missing. The
thresholds are those of docs/analysis-thresholds.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from perfd.analysis.diagnosis.communication_findings import (
    judge_communication,
    judge_links,
    judge_tensor_groups,
)
from perfd.analysis.diagnosis.compute_findings import judge_compute
from perfd.analysis.diagnosis.data_loading_findings import judge_data, judge_sleeping_hosts
from perfd.analysis.diagnosis.hang_findings import judge_hang, judge_missing, judge_shared_gpus
from perfd.analysis.diagnosis.host_delay_findings import (
    judge_contention,
    judge_late_hosts,
    judge_stalls,
    judge_tensor_launches,
)
from perfd.analysis.diagnosis.imbalance_findings import judge_experts, judge_sequences
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.diagnosis.last_by_chance import last_by_chance
from perfd.analysis.diagnosis.launch_and_copy_findings import judge_host, judge_host_transfer, judge_launches
from perfd.analysis.diagnosis.own_past_findings import judge_unplaced
from perfd.analysis.diagnosis.pipeline_findings import interleaving_gain, judge_pipeline
from perfd.analysis.diagnosis.straggler_findings import judge_straggler, judge_throttling
from perfd.analysis.findings import Finding, Kind, advice, computation_leads, fitted, is_set, ranked
from perfd.analysis.flops.mfu_tier import attainable_mfu
from perfd.formatting import duration, percent
from perfd.model import one_step
from perfd.thresholds import THRESHOLDS

_Judge = Callable[[JobEvidence], Finding | None]

_OF_COUNTERS = (Kind.HANG, Kind.MISSING_TELEMETRY)
"""They rest on counts of all operations, seen or not, or are about those that were not seen."""
_STARTED_AGAIN = Finding(
    kind=Kind.UNKNOWN,
    confidence=0.0,
    evidence=("The job's processes began after its newest step: it has made none since it started again.",),
    advice=advice.MORE_STEPS,
)


def find_bottlenecks(facts: JobEvidence) -> list[Finding]:
    """All findings, the one to act on first at the front; never empty."""
    if facts.of_earlier_start:
        return [_STARTED_AGAIN]
    starved = judge_sleeping_hosts(facts)
    straggler = judge_straggler(facts)
    mixed = bool(facts.shared.doubled)
    if straggler is not None and (mixed or last_by_chance(facts, straggler, starved)):
        straggler = None
    # Beside one that the next round may not find, shares are those of all ranks.
    known = straggler if straggler is not None and not straggler.tentative else None
    slow = set(known.concerned_ranks) if known and known.culprits else set()
    left = 1 - ((known.gain_ratio if known else None) or 0.0)
    of_time: tuple[_Judge, ...] = (
        judge_tensor_groups,
        judge_sequences,
        partial(judge_data, named=bool(slow)),
        partial(judge_pipeline, left_ratio=left),
        judge_communication,
        _judge_optimizer,
        partial(judge_host, slow_ranks=slow),
        judge_launches,
        partial(judge_tensor_launches, straggler=straggler),
        judge_host_transfer,
    )
    judges: tuple[_Judge, ...] = (
        judge_hang,
        lambda _: straggler,
        partial(judge_shared_gpus, straggler=straggler),
        judge_throttling,
        judge_links,
        partial(judge_experts, straggler=straggler),
        partial(judge_contention, straggler=straggler),
        lambda _: starved,
        partial(judge_late_hosts, straggler=straggler, sleeping=starved),
        partial(judge_stalls, straggler=straggler),
        partial(judge_unplaced, straggler=straggler),
        *(() if facts.too_few_steps else of_time),
        _judge_memory,
        judge_missing,
    )
    judged = [finding for judge in judges if (finding := judge(facts)) is not None]
    if mixed:
        # What a rank does is what two processes do.
        judged = [finding for finding in judged if all(one.kind != "rank" for one in finding.culprits)]
    found = ranked([_with_change(_with_losses(finding, facts), facts) for finding in judged])
    computation = judge_compute(facts)
    leads = computation_leads(found, computation)
    return [_with_advice(finding, facts) for finding in ([computation, *found] if leads else found)]


def _with_advice(finding: Finding, facts: JobEvidence) -> Finding:
    """The finding, whose advice names options of the framework that runs and what to expect of it."""
    return replace(finding, advice=f"{fitted(finding.advice, facts.software)}{_expected(finding, facts)}")


def _expected(finding: Finding, facts: JobEvidence) -> str:
    """Step time and MFU without all that the finding costs; empty where that is unknown, or the job hangs."""
    usual_s, mfu, gain = facts.step_time.median, facts.efficiency.mfu_ratio, finding.gain_ratio
    if finding.kind is Kind.PIPELINE_BUBBLE:
        gain = interleaving_gain(facts, finding)
    step_s = finding.step_s or usual_s
    if not (usual_s and step_s and gain and gain < 1 and finding.advice):
        return ""
    # Where only GPUs show that steps became longer, the median may be of steps before.
    unknown = finding.step_s is None and finding.longer_for_s is not None
    if unknown or finding.kind in {Kind.HANG, Kind.UNKNOWN}:
        return ""
    # MFU is of the usual step, and a fault that began lately made steps longer than that.
    mfu = None if mfu is None else mfu * usual_s / step_s
    average = " on average" if _of_some_steps(finding, facts) else ""
    if finding.kind is Kind.PIPELINE_BUBBLE and gain > (finding.waiting_ratio or 0.0):
        average = ", interleaved,"
    one = one_step(facts.step_doubt)
    without = f"{duration(step_s * (1 - gain))} per {one}{average} instead of {duration(step_s)}"
    reached = attainable_mfu(mfu, gain)
    gained = f", MFU {percent(reached)} instead of {percent(mfu)}" if reached else ""
    return f" At best {without}{gained}."


def _of_some_steps(finding: Finding, facts: JobEvidence) -> bool:
    """Whether it is about stalls that only some steps have: a step without one is a usual one."""
    seen = facts.nccl.stalling
    return finding.kind is Kind.PERIODIC_STALL or (seen is not None and finding.gain_ratio == seen.gain_ratio)


def _with_change(finding: Finding, facts: JobEvidence) -> Finding:
    """The finding about a rank, and since when that rank computes longer."""
    change = facts.change
    if change is None or change.rank is None or change.rank not in finding.concerned_ranks:
        return finding
    return replace(finding, evidence=(*finding.evidence, change.sentence))


def _with_losses(finding: Finding, facts: JobEvidence) -> Finding:
    """The finding, and what was lost of the operations that it rests on, as its evidence names them."""
    lost, source = facts.nccl.lost_operations, facts.nccl.source
    if not lost or source is None or finding.kind in _OF_COUNTERS:
        return finding
    if not any(source in sentence for sentence in finding.evidence):
        return finding
    note = f"{lost:,} NCCL operations were not seen ({source}): this rests on the others."
    return replace(finding, evidence=(*finding.evidence, note))


def _judge_optimizer(facts: JobEvidence) -> Finding | None:
    lost = facts.optimizer.share_ratio
    if lost is None or lost < THRESHOLDS.optimizer_ratio:
        return None
    return Finding(
        kind=Kind.OPTIMIZER,
        confidence=0.8,
        evidence=[f"The optimizer takes {percent(lost)} of a step ({facts.optimizer.source})."],
        advice=advice.SHARDED_OPTIMIZER if is_set("shard_optimizer", facts.software) else advice.OPTIMIZER,
        gain_ratio=lost,
    )


def _judge_memory(facts: JobEvidence) -> Finding | None:
    used = facts.memory.max_used_ratio
    if used is None or used < THRESHOLDS.memory_capacity_ratio:
        return None
    return Finding(
        kind=Kind.MEMORY_CAPACITY,
        confidence=0.8,
        evidence=[f"The fullest GPU has {percent(used)} of its memory in use ({facts.memory.source})."],
        advice=advice.MEMORY_CAPACITY,
    )
