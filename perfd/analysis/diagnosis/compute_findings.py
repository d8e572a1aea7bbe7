"""What to say of a job in which nothing but compute takes much of the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfd.analysis.communication import CaptureEvidence, not_used
from perfd.analysis.diagnosis.hang_findings import judge_missing
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Finding, Kind, advice
from perfd.analysis.steps import StepsSince, mean_over_gpus
from perfd.formatting import duration, percent
from perfd.model import GpuColumn, StepSource
from perfd.thresholds import THRESHOLDS

_NO_NCCL = (
    "perfd saw no NCCL operation, so transfer and waiting are unknown: its plugin (perfd run sets it) needs"
    " NCCL 2.23 or newer, and room in /dev/shm (perfd doctor)."
)
_BOUNDED = ", but cannot exceed the activity of the tensor cores"
_IDLE_TENSOR_RATIO = 0.01
"""Of the time, while SMs are busy. Chosen: of 445 recorded jobs those in FP32 had at most 0.0002, the others
with SMs as busy at least 0.25."""
_ANY_GPU = "a GPU of this job"
_TYPICAL_MFU = (
    f"{100 * THRESHOLDS.mfu_typical_low_ratio:.0f} to {percent(THRESHOLDS.mfu_typical_high_ratio, 0)}"
    " is typical of large dense models (PaLM: arXiv:2204.02311, Llama 3: arXiv:2407.21783)"
)


def judge_compute(facts: JobEvidence) -> Finding:
    """What is left when nothing else takes much of the step: good or poor compute, or unknown."""
    mfu = facts.efficiency.mfu_ratio
    evidence = _compute_evidence(facts)
    computing = _computing_ratio(facts)
    if without_log := _seen_computing(facts, evidence) or _without_enough_steps(facts, evidence):
        return without_log
    if mfu is not None and mfu > THRESHOLDS.mfu_implausible_ratio:
        return Finding(
            kind=Kind.UNKNOWN,
            confidence=0.0,
            evidence=[
                *evidence,
                f"An MFU of {percent(mfu)} cannot be: the peak, the shape or the batch is wrong.",
            ],
            advice=advice.IMPLAUSIBLE_MFU,
        )
    if mfu is not None and mfu >= THRESHOLDS.mfu_good_ratio:
        return Finding(kind=Kind.NONE, confidence=0.6, evidence=evidence)
    # Without an MFU, only a capture shows that what runs is compute, and which.
    captured = facts.capture is not None and facts.capture.used
    unclear = not captured and (mfu is None or _idle_is_unclear(facts))
    if computing is None or computing < THRESHOLDS.compute_ratio or unclear:
        return _unknown(facts, evidence, computing)
    if memory := _memory_confidence(facts):
        return Finding(
            kind=Kind.MEMORY_BOUND,
            confidence=memory,
            evidence=evidence,
            advice=advice.FEWER_BYTES,
        )
    return Finding(
        kind=Kind.COMPUTE_BOUND,
        confidence=0.6 if captured or _compute_is_timed(facts) else 0.4,
        evidence=evidence,
        advice=advice.LARGER_KERNELS,
    )


def _seen_computing(facts: JobEvidence, evidence: list[str]) -> Finding | None:
    """For a job without an MFU: GPUs compute nearly all the time, at full speed or not."""
    working, tensor = (
        mean_over_gpus(facts.activity, unit) for unit in (GpuColumn.SM_ACTIVE, GpuColumn.TENSOR_ACTIVE)
    )
    if (
        facts.too_few_steps
        or facts.efficiency.mfu_ratio is not None
        or not working >= THRESHOLDS.compute_most_ratio
    ):
        return None
    if tensor >= THRESHOLDS.mfu_excellent_ratio:
        # Tensor activity is an upper bound of the MFU; recomputation is at most a quarter of it.
        # While SMs are active, communication is not exposed.
        least = min(facts.communication.share_ratio or 0.0, 1 - working)
        exposed = least >= THRESHOLDS.communication_ratio
        return None if exposed else Finding(kind=Kind.NONE, confidence=0.4, evidence=evidence)
    if not np.isfinite(tensor):
        return None
    if tensor < _IDLE_TENSOR_RATIO:
        return Finding(
            kind=Kind.COMPUTE_BOUND,
            confidence=0.4,
            evidence=[*evidence, "The tensor cores are idle: products run without them, or there are none."],
            advice=advice.TENSOR_CORES,
        )
    bounded = "" if facts.efficiency.mfu_upper_ratio is None else _BOUNDED
    return Finding(
        kind=Kind.COMPUTE_BOUND,
        confidence=0.4,
        evidence=[*evidence, f"MFU is unknown{bounded}."],
        advice=f"{advice.LARGER_KERNELS} {facts.efficiency.mfu_missing or advice.NO_STEPS}",
    )


def _without_enough_steps(facts: JobEvidence, evidence: list[str]) -> Finding | None:
    if facts.too_few_steps and facts.steady_steps:
        steps = "1 steady step is" if facts.steady_steps == 1 else f"{facts.steady_steps} steady steps are"
        missing = f"{steps} too few to judge where the time goes."
        todo = advice.LONGER_RUN.format(steps=THRESHOLDS.steady_steps_count)
    elif facts.step_time.median is not None or facts.breakdown.forward_ratio is not None:
        return None
    elif facts.step_source is StepSource.ARRIVAL:
        missing = "The log shows steps without times, and too few to time them by when their lines arrive."
        todo = advice.STEP_TIMES
    else:
        without = "" if facts.activity.gpus else ", and no activity of a GPU"
        missing = f"perfd saw no steady step of this job{without}."
        todo = advice.NO_STEPS
    return Finding(kind=Kind.UNKNOWN, confidence=0.0, evidence=[*evidence, missing], advice=todo)


def _unknown(facts: JobEvidence, evidence: list[str], computing: float | None) -> Finding:
    """What was not seen, and what would show it."""
    missing, todo = _unseen(facts, computing)
    mfu = facts.efficiency.mfu_ratio
    if mfu is not None and mfu >= THRESHOLDS.mfu_low_ratio:
        missing += " An MFU of 30 to 40% is most often communication."
    evidence = [*evidence, *_waiting_pair(facts), missing, *_unseen_nccl(facts), *not_used(facts.capture)]
    # What silent ranks would report comes before what no rank reports.
    silent = judge_missing(facts)
    found = Finding(
        kind=Kind.UNKNOWN,
        confidence=0.0,
        evidence=[*evidence, *(silent.evidence if silent else ())],
        advice=silent.advice if silent else todo,
    )
    if facts.without_steps is not None:
        return replace(found, evidence=(facts.without_steps, *found.evidence))
    return _since_longer(found, facts.longer_since)


def _since_longer(found: Finding, longer: StepsSince | None) -> Finding:
    """The unknown with what is known of it where steps became longer: since when, and what that costs."""
    if longer is None or longer.gain_ratio < THRESHOLDS.headline_ratio:
        return found
    if longer.lasted_s < THRESHOLDS.verdict_hold_s:
        # Steps of milliseconds vary from one second to the next.
        return found
    change = (
        f"Steps take {duration(longer.since_s)} since step {longer.since_step},"
        f" {duration(longer.before_s)} before."
    )
    return replace(
        found,
        evidence=(change, *found.evidence),
        gain_ratio=longer.gain_ratio,
        step_s=longer.since_s,
        since_step=longer.since_step,
    )


def _unseen(facts: JobEvidence, computing: float | None) -> tuple[str, str]:
    """What no rank reported, and how to get it."""
    timed = facts.breakdown.forward_ratio is not None and facts.breakdown.backward_ratio is not None
    if computing is None:
        gpu, todo = (
            ("GPM's activity of GPUs", advice.PHASE_TIMERS)
            if facts.gpu_seen
            else (_ANY_GPU, f"{advice.PHASE_TIMERS} {advice.NO_GPU}")
        )
        return f"perfd saw neither timers of forward and backward nor {gpu}.", todo
    if computing >= THRESHOLDS.compute_ratio and _idle_is_unclear(facts):
        # The rest of the time may be a host that launches late, or the computation itself.
        return "GPUs were read too rarely so far to say how long they run no kernel.", advice.MORE_STEPS
    if computing >= THRESHOLDS.compute_ratio and not facts.gpu_seen:
        return f"How well it computes is unknown: perfd did not see {_ANY_GPU}.", advice.NO_GPU
    if computing >= THRESHOLDS.compute_ratio:
        measured = facts.efficiency.model_flops_per_s_per_gpu is not None
        peak = "the precision of its matrix products, or the peak of its GPUs, is not known"
        reason = peak if measured else "the model's FLOP/s are not known"
        todo = advice.CAPTURE if timed else f"{advice.PHASE_TIMERS} {advice.CAPTURE}"
        return f"How well it computes is unknown: {reason}.", todo
    if timed:
        return (
            "No timer that perfd knows holds the rest of the step.",
            f"{advice.MORE_TIMERS} {advice.CAPTURE}",
        )
    return (
        "Without timers of forward and backward it is unknown where the rest of the step goes.",
        advice.PHASE_TIMERS,
    )


def _idle_is_unclear(facts: JobEvidence) -> bool:
    """Whether GPUs show how long they run kernels, in fewer samples than it takes to say what is usual."""
    running = facts.activity.metrics.get(facts.activity.kernel_metric)
    seen = running is not None and bool(np.isfinite(running).any())
    return seen and not _compute_is_timed(facts) and not facts.activity.usual(running)


def _compute_is_timed(facts: JobEvidence) -> bool:
    return facts.breakdown.forward_ratio is not None and not facts.timers_hold_waiting


def _waiting_pair(facts: JobEvidence) -> list[str]:
    pair = facts.waiting_pair
    if pair is None:
        return []
    said = (
        f"Rank {pair.longer_forward} takes {duration(pair.seconds)} longer in forward and rank"
        f" {pair.longer_backward} as much longer in backward (timers): one of them waits for the other. If"
        f" forward holds no collective, rank {pair.longer_forward} is the slow one."
    )
    return [said]


def _unseen_nccl(facts: JobEvidence) -> list[str]:
    several = (facts.parallel.world_size or 1) > 1
    unreported = facts.communication.share_ratio is None and facts.nccl.source is None
    return [_NO_NCCL] if several and unreported and facts.gpu_seen else []


def _memory_confidence(facts: JobEvidence) -> float:
    """How sure it is that kernels wait for the GPU's memory: by its counters, by kernels' names; 0 for no."""
    dram, tensor = (
        mean_over_gpus(facts.activity, unit) for unit in (GpuColumn.DRAM_ACTIVE, GpuColumn.TENSOR_ACTIVE)
    )
    capture = facts.capture
    matrix = capture.shares.matrix_ratio if capture is not None and capture.used else None
    by_counters = bool(
        dram >= THRESHOLDS.memory_bound_dram_ratio and tensor <= THRESHOLDS.memory_bound_tensor_ratio
    )
    by_names = (
        matrix is not None
        and matrix < THRESHOLDS.memory_bound_matrix_ratio
        and not dram < THRESHOLDS.memory_bound_least_dram_ratio
    )
    if by_counters:
        return 0.9 if by_names else 0.6
    return 0.4 if by_names else 0.0


def _computing_ratio(facts: JobEvidence) -> float | None:
    forward, backward = facts.breakdown.forward_ratio, facts.breakdown.backward_ratio
    if forward is not None and backward is not None:
        return forward + backward
    if facts.capture is not None and facts.capture.used:
        return facts.capture.of_now(facts.capture.shares.compute_ratio)
    active = mean_over_gpus(facts.activity, GpuColumn.SM_ACTIVE)
    return active if np.isfinite(active) else None


def _compute_evidence(facts: JobEvidence) -> list[str]:
    evidence = []
    efficiency, share = facts.efficiency, facts.breakdown
    if efficiency.mfu_ratio is not None:
        evidence.append(
            f"MFU is {percent(efficiency.mfu_ratio)} by the {efficiency.flops_convention} convention, of"
            f" {(efficiency.peak_flops_per_s or 0) / 1e12:.0f} TFLOP/s per GPU; {_TYPICAL_MFU}."
        )
    if share.forward_ratio is not None and share.backward_ratio is not None:
        total = share.forward_ratio + share.backward_ratio
        waiting = ", waiting for other ranks included" if facts.timers_hold_waiting else ""
        evidence.append(f"Forward and backward take {percent(total)} of a step{waiting} (timers).")
    evidence += _captured_kernels(facts.capture)
    if efficiency.tensor_active_ratio is not None:
        evidence.append(f"Active in {facts.activity.when}: {', '.join(_active_units(facts))} (GPM).")
    return evidence


def _captured_kernels(capture: CaptureEvidence | None) -> list[str]:
    if capture is None or not capture.used:
        return []
    computing, matrix = capture.of_now(capture.shares.compute_ratio), capture.shares.matrix_ratio
    of_it = "" if matrix is None else f", at most {percent(matrix)} of it matrix products and attention"
    return [f"Compute kernels run {percent(computing)} of a step{of_it} ({capture.source})."]


def _active_units(facts: JobEvidence) -> list[str]:
    units = (
        ("tensor cores", GpuColumn.TENSOR_ACTIVE),
        ("SMs", GpuColumn.SM_ACTIVE),
        ("DRAM", GpuColumn.DRAM_ACTIVE),
    )
    values = [(name, mean_over_gpus(facts.activity, column)) for name, column in units]
    return [f"{name} {percent(value)}" for name, value in values if np.isfinite(value)]
