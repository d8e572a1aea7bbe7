"""What limits a job: every finding with its evidence, the costliest first.

Each judge looks at one kind and says nothing when its evidence is missing. The
thresholds are those of docs/analysis.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from perfd.analysis.bandwidth_words import bandwidth_words, busiest
from perfd.analysis.captured import not_used
from perfd.analysis.findings import Facts, Finding, Kind
from perfd.analysis.judge_compute import judge_compute
from perfd.analysis.judge_data import judge_data
from perfd.analysis.judge_host import judge_host, judge_host_transfer, judge_launches
from perfd.analysis.judge_network import judge_links
from perfd.analysis.judge_pipeline import judge_pipeline
from perfd.analysis.judge_ranks import judge_straggler, judge_throttling
from perfd.analysis.judge_sequences import judge_sequences
from perfd.analysis.judge_silence import judge_hang, judge_missing
from perfd.analysis.words import milliseconds, percent

_COMMUNICATION = 0.15
_OPTIMIZER = 0.15
_MEMORY = 0.95
_OF_COUNTERS = (Kind.HANG, Kind.MISSING_TELEMETRY)
"""They rest on counts of all operations, seen or not, or tell of those that were not themselves."""

_FAULTS = (Kind.HANG, Kind.STRAGGLER, Kind.THROTTLING, Kind.LINK_DEGRADATION)
"""Something is broken: it comes before what the job's configuration costs. A hang comes before all."""


def find_bottlenecks(facts: Facts) -> list[Finding]:
    """All findings, the one to act on first at the front; never empty."""
    straggler = judge_straggler(facts)
    slow = {culprit.id for culprit in straggler.culprits} if straggler else set()
    left = 1 - ((straggler.lost_ratio if straggler else None) or 0.0)
    judges: tuple[Callable[[Facts], Finding | None], ...] = (
        judge_hang,
        lambda _: straggler,
        judge_throttling,
        judge_links,
        judge_sequences,
        partial(judge_data, named=bool(slow)),
        partial(judge_pipeline, left_ratio=left),
        _judge_communication,
        _judge_optimizer,
        partial(judge_host, slow_ranks=slow),
        judge_launches,
        judge_host_transfer,
        _judge_memory,
        judge_missing,
    )
    found = [_with_losses(finding, facts) for judge in judges if (finding := judge(facts)) is not None]
    found.sort(
        key=lambda finding: (
            finding.kind is not Kind.HANG,
            finding.kind not in _FAULTS,
            finding.lost_ratio is None,
            -(finding.lost_ratio or 0),
        )
    )
    if not found or (found[0].kind is not Kind.HANG and found[0].lost_ratio is None):
        # Full memory costs no time: it is said after what the job does with its time.
        found.insert(0, judge_compute(facts))
    return found


def _with_losses(finding: Finding, facts: Facts) -> Finding:
    """The finding, and what was lost of the operations that it rests on, as its evidence names them."""
    lost, source = facts.nccl.lost_operations, facts.nccl.source
    if not lost or source is None or finding.kind in _OF_COUNTERS:
        return finding
    if not any(source in sentence for sentence in finding.evidence):
        return finding
    note = f"{lost:,} NCCL operations were not seen ({source}): this rests on the others."
    return replace(finding, evidence=(*finding.evidence, note))


def _judge_communication(facts: Facts) -> Finding | None:
    communication = facts.communication
    # Waiting is the fault of whoever is waited for, and hidden communication costs nothing.
    lost = communication.share_ratio if communication.transfer_ratio is None else communication.transfer_ratio
    if communication.transfer_ratio is None and _only_captured(facts) and (facts.parallel.pp or 1) > 1:
        # How much of it is the pipeline's stall, the traces do not say.
        return None
    if lost is not None and communication.exposed_ratio is not None:
        lost = min(lost, communication.exposed_ratio)
    if lost is None or lost < _COMMUNICATION:
        return None
    evidence = [f"Collectives take {percent(lost)} of a step ({communication.source})."]
    if communication.wait_ratio is not None:
        evidence.append(
            f"Another {percent(communication.wait_ratio)} is waiting for other ranks in NCCL's kernels."
        )
    if communication.overlap_ratio is not None:
        evidence.append(
            f"Computation and copies hid {percent(communication.overlap_ratio)} of communication, so about"
            f" {percent(communication.exposed_ratio or 0.0)} of a step is exposed"
            f" ({communication.exposed_source})."
        )
    elif communication.exposed_ratio is None:
        evidence += not_used(facts.capture)
    seconds, ring = communication.seconds, communication.ring_estimate_s
    if communication.gradient_bytes is not None and communication.bus_bytes_per_s is not None:
        evidence.append(
            f"Reducing {communication.gradient_bytes / 1e9:.1f} GB of gradients a rank so amounts to"
            f" {communication.bus_bytes_per_s / 1e9:.0f} GB/s of bus bandwidth."
        )
    if ring is not None:
        evidence.append(f"The ring formula gives {milliseconds(ring)} at the bandwidth of the group's links.")
    evidence += [bandwidth_words(kind) for kind in busiest(facts.nccl.kinds)[:1]]
    slow_links = seconds is not None and ring is not None and seconds > 2 * ring
    return Finding(
        kind=Kind.COMMUNICATION,
        confidence=0.8,
        evidence=evidence,
        recommendation=_hide_communication(facts, lost, slow_links=slow_links),
        lost_ratio=lost,
    )


def _only_captured(facts: Facts) -> bool:
    capture = facts.capture
    return capture is not None and capture.used and facts.communication.source == capture.source


def _hide_communication(facts: Facts, lost: float, *, slow_links: bool) -> str:
    # Twice the micro-batches double all but the collectives and the optimizer.
    fixed = lost + (facts.optimizer.share_ratio or 0.0)
    accumulated = lost / (2 * (1 - fixed) + fixed) if fixed < 1 else lost
    advice = (
        "Overlap gradient reduction with the backward pass (Megatron-LM: --overlap-grad-reduce, and"
        f" --overlap-param-gather with the distributed optimizer): it wins at most {percent(lost)}."
        f" Or accumulate over twice the micro-batches: the share falls to about {percent(accumulated)}."
    )
    advice += _of_tensor_groups(facts)
    if any(kind.latency_bound for kind in busiest(facts.nccl.kinds)[:1]):
        advice += " Send more at a time: larger gradient buckets, and fewer, fused operations."
    if slow_links:
        advice += (
            " The collectives take over twice what the links allow: check the network and NCCL's topology."
        )
    return advice


def _of_tensor_groups(facts: Facts) -> str:
    """What to do when tensor parallelism is what takes the time, or lies across nodes."""
    on_node = Counter(key.node for key in facts.activity.gpus)
    tensor, kinds = facts.parallel.tp or 1, facts.nccl.kinds
    if tensor > 1 and on_node and tensor > max(on_node.values()):
        return (
            f" Tensor parallelism of {tensor} crosses nodes of {max(on_node.values())} GPUs: keep it inside"
            " one, and use pipeline or context parallelism between them."
        )
    busiest = max(kinds, key=lambda kind: kind.kernel_ratio or 0.0, default=None)
    if busiest is not None and busiest.group == "tp":
        return (
            f" Most of it is {busiest.operation} of tensor groups: use less tensor parallelism where memory"
            " allows it, or overlap it (Megatron-LM: --sequence-parallel, --tp-comm-overlap)."
        )
    return ""


def _judge_optimizer(facts: Facts) -> Finding | None:
    lost = facts.optimizer.share_ratio
    if lost is None or lost < _OPTIMIZER:
        return None
    return Finding(
        kind=Kind.OPTIMIZER,
        confidence=0.8,
        evidence=[f"The optimizer takes {percent(lost)} of a step ({facts.optimizer.source})."],
        recommendation="Shard the optimizer over the data-parallel group (Megatron-LM:"
        " --use-distributed-optimizer), use a fused one, or accumulate over more micro-batches.",
        lost_ratio=lost,
    )


def _judge_memory(facts: Facts) -> Finding | None:
    used = facts.memory.max_used_ratio
    if used is None or used < _MEMORY:
        return None
    return Finding(
        kind=Kind.MEMORY,
        confidence=0.8,
        evidence=[f"The fullest GPU has {percent(used)} of its memory in use ({facts.memory.source})."],
        recommendation="Recompute activations, shard the optimizer, or take smaller micro-batches, before a"
        " longer sequence ends the job.",
    )
