"""Whether communication takes the time: collectives that move data, their waiting for others taken off."""

from __future__ import annotations

from collections import Counter

from perfd.analysis.bandwidth_words import bandwidth_words, busiest
from perfd.analysis.captured import not_used
from perfd.analysis.findings import Facts, Finding, Kind
from perfd.analysis.words import milliseconds, percent

_COMMUNICATION = 0.15


def judge_communication(facts: Facts) -> Finding | None:
    """How much of a step collectives take, and what would make it less; None where that is little."""
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
