"""Whether the host keeps the GPUs from their work: gaps, tiny kernels, copies."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from perfd.analysis.collectives import Reference
from perfd.analysis.communication import CaptureEvidence
from perfd.analysis.diagnosis.idle_cause import IdleCause, not_shown, shown_idle
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.steps import TRAINING_TIME, mean_over_gpus
from perfd.formatting import percent
from perfd.model import GpuColumn
from perfd.thresholds import THRESHOLDS

_NCCL_SM = 0.15
"""Of the multiprocessors, those that NCCL's kernels occupy: 16 to 24 channels of 132."""
_SLOT_BYTES_PER_S = 55e9
"""About what copies reach of the 63 GB/s of PCIe 5.0 x16. Chosen, not measured."""


def judge_host(facts: JobEvidence, *, slow_ranks: Collection[int | str] = ()) -> Finding | None:
    """GPUs without a kernel, or time outside timers; None when both are small.

    Only a capture shows why the GPUs have nothing to run: the host launches late, or waits for them.
    Idle GPUs of `slow_ranks` are in another finding, and do not count here.
    """
    evidence, lost = _seen_idle(facts, slow_ranks)
    shown = shown_idle(facts.capture)
    if shown is not None and not evidence:
        # What the ranks that are named lose, or the input, is in the traces too.
        named = not set(shown.ranks).isdisjoint(slow_ranks)
        lost = shown.gain_ratio - (facts.data.share_ratio or 0.0)
        shown = None if named or lost < shown.least_ratio else shown
    if shown is not None:
        return Finding(
            kind=shown.kind,
            confidence=_confidence(facts, shown, also_live=bool(evidence)),
            evidence=[*evidence, *shown.evidence],
            advice=shown.advice,
            gain_ratio=lost,
        )
    if not evidence:
        return None
    return Finding(
        kind=Kind.HOST_BOUND,
        confidence=0.6 if len(evidence) > 1 else 0.4,
        evidence=[*evidence, *not_shown(facts.capture)],
        advice=advice.HOST_BOUND,
        gain_ratio=lost,
    )


def _confidence(facts: JobEvidence, shown: IdleCause, *, also_live: bool) -> float:
    if also_live:
        return 0.9
    return 0.8 if len(shown.ranks) == facts.parallel.world_size else 0.6


def _seen_idle(facts: JobEvidence, slow_ranks: Collection[int | str]) -> tuple[list[str], float]:
    """What is seen without a capture: sentences, and the share of a step."""
    evidence, lost = [], 0.0
    active = _active_ratio(facts, slow_ranks)
    # One sample or two of a short job may be of its start, whatever the log's times say.
    usual = facts.activity.usual(facts.activity.metrics.get(facts.activity.kernel_metric))
    known = usual and facts.pace_is_known and np.isfinite(active)
    if known and 1 - active >= THRESHOLDS.idle_ratio:
        lost = 1 - active
        who = "The other GPUs" if slow_ranks else "GPUs"
        evidence.append(
            f"{who} run no kernel at all in {percent(1 - active)} of {facts.activity.when} (NVML)."
        )
    outside = facts.breakdown.unattributed_ratio
    if outside is not None and outside >= THRESHOLDS.unaccounted_ratio:
        lost = max(lost, outside)
        evidence.append(
            f"{percent(outside)} of a step is outside timers: barriers, logging and other host work."
        )
    return evidence, lost


def _active_ratio(facts: JobEvidence, slow_ranks: Collection[int | str]) -> float:
    """How much of the time the GPUs of all other ranks run a kernel, NaN if unknown."""
    by_gpu = facts.activity.of_gpus(facts.activity.kernel_metric)
    others = np.array([key.rank not in slow_ranks for key in facts.activity.gpus], dtype=np.bool_)
    counted = by_gpu[np.isfinite(by_gpu) & others]
    return float(counted.mean()) if len(counted) else np.nan


def judge_launches(facts: JobEvidence) -> Finding | None:
    """Kernels that fill few multiprocessors and are not NCCL's; None when that is not so, or not known.

    Without times of NCCL's kernels, which fill few multiprocessors too, nothing can be said but of one rank.
    """
    running = mean_over_gpus(facts.activity, GpuColumn.GRAPHICS_ACTIVE)
    multiprocessors = mean_over_gpus(facts.activity, GpuColumn.SM_ACTIVE)
    tensor = mean_over_gpus(facts.activity, GpuColumn.TENSOR_ACTIVE)
    alone = facts.parallel.world_size == 1
    in_nccl = 0.0 if alone else facts.nccl.share_ratio
    if in_nccl is None or not np.isfinite([running, multiprocessors]).all():
        return None
    if facts.activity.source == TRAINING_TIME and not facts.activity.usual(
        facts.activity.metrics.get(GpuColumn.GRAPHICS_ACTIVE)
    ):
        return None
    # What NCCL hides behind compute is not taken off the compute: the least is what is certain.
    other = running - in_nccl
    if other < THRESHOLDS.small_kernels_time_ratio or (
        np.isfinite(tensor) and tensor > THRESHOLDS.small_kernels_tensor_ratio
    ):
        return None
    filled = max(0.0, multiprocessors - _NCCL_SM * in_nccl) / other
    if filled >= THRESHOLDS.small_kernels_sm_ratio:
        return None
    return Finding(
        kind=Kind.LAUNCH_BOUND,
        confidence=0.6,
        evidence=[
            f"Kernels run {percent(other)} of the time (GPM)."
            if alone
            else f"Kernels that are not NCCL's run {percent(other)} of the time (GPM, nccl plugin).",
            f"They fill only {percent(filled)} of the multiprocessors meanwhile (GPM).",
        ],
        advice=advice.LAUNCH_LESS,
        gain_ratio=other * (1 - filled),
    )


def judge_host_transfer(facts: JobEvidence) -> Finding | None:
    """Copies between host and GPUs; None when there are few, or NCCL may cause them.

    What they cost a capture shows. Without one it is at most the time that they take at the slot's speed, and
    that the multiprocessors have no work; where that is little, compute may well hide it.
    """
    received, sent = (facts.activity.of_gpus(way) for way in (GpuColumn.PCIE_RX, GpuColumn.PCIE_TX))
    moved = np.fmax(received, sent)
    heavy = moved >= THRESHOLDS.host_transfer_bytes_per_s
    shown = _shown_copies(facts.capture)
    if not heavy.any() or _may_be_nccls(facts, shown):
        return None
    most, count = float(np.nanmax(moved)), np.count_nonzero(heavy)
    verb = "receive" if np.nanmax(np.nan_to_num(received)) == most else "send"
    few = count <= len(heavy) // 2
    named = [key for key, much in zip(facts.activity.gpus, heavy, strict=True) if much and few]
    evidence = [f"{count} of {len(heavy)} GPUs {verb} up to {most / 1e9:.1f} GB/s by PCIe (GPM)."]
    if shown is not None and facts.capture is not None:
        evidence.append(f"Copies and fills that nothing hid took {percent(shown)} ({facts.capture.source}).")
    lost = _unhidden_copies(facts, most) if shown is None else shown
    return Finding(
        kind=Kind.HOST_TRANSFER,
        confidence=0.6 if shown is None else 0.9,
        culprits=tuple(Culprit(kind="gpu", id=f"{key.node}/{key.gpu}") for key in named[:8]),
        evidence=evidence,
        advice=advice.COPIES,
        gain_ratio=lost if lost >= THRESHOLDS.host_transfer_cost_ratio else None,
    )


def _may_be_nccls(facts: JobEvidence, shown_ratio: float | None) -> bool:
    """Whether NCCL may be what moves so much by PCIe; not what a capture shows as copies."""
    if facts.nodes != 1 or any(slow.reference is Reference.LINKS for slow in facts.nccl.slow_groups):
        # Traffic between nodes crosses PCIe on its way to the NIC, and so does NCCL without NVLink.
        return True
    return facts.nccl_may_use_pcie and (shown_ratio or 0.0) < THRESHOLDS.host_transfer_cost_ratio


def _shown_copies(capture: CaptureEvidence | None) -> float | None:
    if capture is None or not capture.used:
        return None
    return capture.of_now(capture.shares.exposed_copies_ratio)


def _unhidden_copies(facts: JobEvidence, bytes_per_s: float) -> float:
    """At most this much of a step; 0 if too little is known."""
    in_the_slot = bytes_per_s / _SLOT_BYTES_PER_S
    working = mean_over_gpus(facts.activity, GpuColumn.SM_ACTIVE)
    if not np.isfinite(working):
        working = mean_over_gpus(facts.activity, facts.activity.kernel_metric)
    if in_the_slot < THRESHOLDS.host_transfer_slot_ratio or not np.isfinite(working):
        return 0.0
    return float(min(in_the_slot, 1 - working))
