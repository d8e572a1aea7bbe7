"""Whether the pipeline's schedule limits a job."""

from __future__ import annotations

import numpy as np

from perfd.analysis.collectives import SOURCE_WAITING
from perfd.analysis.data.robust_stats import mean
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.steps import SOURCE_BY_RANK, ComputeChange, Pipeline, stage_of_ranks
from perfd.formatting import percent
from perfd.model import GpuColumn
from perfd.thresholds import THRESHOLDS


def judge_pipeline(facts: JobEvidence, *, left_ratio: float = 1.0) -> Finding | None:
    """A stall that is large, or far over theory; without timers, a bubble that theory expects.

    `left_ratio` is the part of a step that no slow rank takes: theory is of that.
    """
    pipeline, parallel = facts.pipeline, facts.parallel
    theory = pipeline.bubble_theory_ratio
    if pipeline.stall_ratio is None:
        expected = (theory or 0.0) * left_ratio
        reported = (
            theory or 0.0
        ) >= THRESHOLDS.pipeline_stall_ratio and expected >= THRESHOLDS.pipeline_expected_ratio
        return _expected_bubble(facts, expected) if reported else None
    imbalance = pipeline.imbalance_ratio or 0.0
    if (
        pipeline.stall_ratio < THRESHOLDS.pipeline_stall_ratio
        and (pipeline.excess_ratio or 0) < THRESHOLDS.pipeline_excess_ratio
        and imbalance < THRESHOLDS.pipeline_uneven_ratio
    ):
        return None
    unequal = imbalance > max(pipeline.stall_ratio / 2, THRESHOLDS.pipeline_imbalance_ratio)
    waiting = pipeline.source == SOURCE_WAITING
    stalled = "wait for each other in" if waiting else "compute nothing in"
    whole = "the time" if waiting else "the schedule"
    evidence = [f"Stages {stalled} {percent(pipeline.stall_ratio)} of {whole} ({pipeline.source})."]
    if theory is not None:
        evidence.append(
            f"Theory expects {percent(theory)} with {parallel.pp} stages and {parallel.micro_batches}"
            " micro-batches."
        )
    evidence.append(f"Unequal stages explain {percent(imbalance)} of {whole}.")
    if pipeline.window_excess_ratio is not None:
        evidence.append(
            f"The schedule takes {percent(pipeline.window_excess_ratio)} longer than these stages need"
            " without communication."
        )
    changed = _changed_stage(facts) if unequal else None
    culprits = _culprits(facts, changed) if unequal else ()
    if changed is not None:
        evidence.append(changed.sentence)
    elif culprits:
        evidence += _by_design(facts, int(culprits[0].id))
    # An even split leaves the bubble of the schedule.
    gain = imbalance if unequal else pipeline.stall_ratio
    window = _window_ratio(facts)
    return Finding(
        kind=Kind.PIPELINE_IMBALANCE if unequal else Kind.PIPELINE_BUBBLE,
        confidence=_confidence(pipeline),
        culprits=culprits,
        evidence=evidence,
        advice=_advice(changed) if unequal else _fill_the_pipeline(facts),
        gain_ratio=gain * window,
        waiting_ratio=min(gain, max(0.0, pipeline.stall_ratio - (theory or 0.0))) * window,
    )


def _expected_bubble(facts: JobEvidence, lost_ratio: float) -> Finding:
    theory = facts.pipeline.bubble_theory_ratio or 0.0
    evidence = [f"Theory expects stages to compute nothing in {percent(theory)} of the schedule."]
    if lost_ratio < theory:
        evidence.append(
            "Behind a slow rank that cannot be measured; it is a share of the time that this rank leaves,"
            f" {percent(lost_ratio)} of a step."
        )
    else:
        evidence.append("No timer measures it.")
    return Finding(
        kind=Kind.PIPELINE_BUBBLE,
        confidence=0.4,
        evidence=evidence,
        advice=_fill_the_pipeline(facts),
        gain_ratio=lost_ratio,
        waiting_ratio=0.0,
    )


def _confidence(pipeline: Pipeline) -> float:
    if pipeline.excess_ratio is not None and abs(pipeline.excess_ratio) < THRESHOLDS.pipeline_excess_ratio:
        return 0.9
    return 0.8 if pipeline.source == SOURCE_BY_RANK else 0.6


def _culprits(facts: JobEvidence, changed: ComputeChange | None) -> tuple[Culprit, ...]:
    stage = None if changed is None else changed.stage
    return _slowest_stage(facts) if stage is None else (Culprit(kind="stage", id=stage),)


def _changed_stage(facts: JobEvidence) -> ComputeChange | None:
    return facts.change if facts.change is not None and facts.change.stage is not None else None


def _advice(changed: ComputeChange | None) -> str:
    """A split that was even until some step needs no other one."""
    return advice.BALANCE_STAGES if changed is None else advice.changed(changed.who, changed.since_step)


def _by_design(facts: JobEvidence, stage: int) -> list[str]:
    """That a stage has more work, if its GPUs show it, and what the last one has besides layers."""
    found = []
    gpus = facts.activity.gpus
    ranks = np.array([-1 if gpu.rank is None else gpu.rank for gpu in gpus], dtype=np.int64)
    stages, active = stage_of_ranks(ranks, facts.parallel), facts.activity.of_gpus(GpuColumn.SM_ACTIVE)
    if stages is not None and len(gpus) and (ranks >= 0).all():
        others = float(mean(active[stages != stage]))
        more = float(mean(active[stages == stage])) / others if others > 0 else np.nan
        if np.isfinite(more):
            found.append(f"SMs of stage {stage} are active {more:.2f} times as long as the others' (GPM).")
    if stage == (facts.parallel.pp or 0) - 1:
        found.append(f"Stage {stage} is the last: it has the output layer and the loss besides its layers.")
    return found


def _slowest_stage(facts: JobEvidence) -> tuple[Culprit, ...]:
    numbered = [
        (stage.stall_ratio, stage.stage)
        for stage in facts.pipeline.stages
        if stage.stage is not None and stage.stall_ratio is not None
    ]
    # The busiest one stalls least.
    return (Culprit(kind="stage", id=min(numbered)[1]),) if numbered else ()


def interleaving_gain(facts: JobEvidence, bubble: Finding) -> float | None:
    """The share of a step that it takes less with twice the chunks per stage, at least what is over theory.

    More micro-batches would be another step. None without a share of the bubble.
    """
    stages, micro_batches, lost = facts.parallel.pp, facts.parallel.micro_batches, bubble.gain_ratio
    if not stages or not micro_batches or lost is None:
        return bubble.waiting_ratio
    left = advice.interleaved_bubble(stages, micro_batches, facts.parallel.vp or 1)
    computing = max(0.0, _window_ratio(facts) - lost)
    return max(bubble.waiting_ratio or 0.0, lost - computing * left / (1 - left))


def _window_ratio(facts: JobEvidence) -> float:
    """The schedule's share of a step."""
    step_s, window_s = facts.step_time.median, facts.pipeline.window_s
    return window_s / step_s if step_s and window_s else 1.0


def _fill_the_pipeline(facts: JobEvidence) -> str:
    stages, micro_batches = facts.parallel.pp, facts.parallel.micro_batches
    if not stages or not micro_batches:
        return advice.FILL_PIPELINE
    return advice.fill_pipeline(stages, micro_batches, facts.parallel.vp or 1)
