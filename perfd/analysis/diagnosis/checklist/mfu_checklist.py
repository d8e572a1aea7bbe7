"""The guide's decision tree for MFU: each question with its answer, number, limit and source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from perfd.analysis.diagnosis.data_loading_findings import waits_for_gpu_work
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import unset_options
from perfd.analysis.steps import MfuTier
from perfd.formatting import percent
from perfd.model import ParallelLayout
from perfd.thresholds import THRESHOLDS

_LOW_PRECISION = frozenset({"bf16", "fp16", "fp8", "fp4"})
_OF_REPLICAS, _OF_TENSOR = ("overlap_gradients", "overlap_parameters"), ("overlap_tensor",)
"""What an advice names of overlap: gradients and parameters of several replicas, and tensor parallelism."""


class CheckState(StrEnum):
    """How a question is answered."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question of the checklist."""

    name: str
    question: str
    """Answered with yes when it is passed."""
    state: CheckState
    value: str | None = None
    """In words with its unit; None when unknown."""
    limit: str = ""
    source: str | None = None
    """Where the value is from; what is missing when it is unknown."""
    in_path: bool = False
    """Whether the decision tree asks it at this job's MFU; of an unknown MFU all its questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """All questions, and where the decision tree ends."""

    checks: Sequence[Check] = ()
    conclusion: str = ""


_PATHS: dict[MfuTier | None, tuple[str, ...]] = {
    MfuTier.TROUBLE: ("tensor_in_node", "data_loading", "pipeline_bubble", "communication"),
    MfuTier.COMMUNICATION_BOUND: ("pipeline_bubble", "communication"),
    MfuTier.GOOD: ("overlap",),
    MfuTier.EXCELLENT: (),
    None: ("tensor_in_node", "data_loading", "pipeline_bubble", "communication", "overlap"),
}


def checklist(facts: JobEvidence) -> Checklist:
    """Every question with its answer if the job shows it, in the order of the guide."""
    path = _PATHS[facts.efficiency.mfu_tier]
    asked = [
        _mfu(facts),
        _tensor(facts),
        _data_loading(facts),
        _bubble(facts),
        _communication(facts),
        _overlap(facts),
        _gradients(facts),
        _computation(facts),
        _memory(facts),
        _headroom(facts),
        _precision(facts),
        _batch(facts),
        _jitter(facts),
    ]
    checks = [replace(check, in_path=check.name in path) for check in asked]
    return Checklist(checks=checks, conclusion=_conclusion(facts, checks))


def _conclusion(facts: JobEvidence, checks: Sequence[Check]) -> str:
    tier, mfu = facts.efficiency.mfu_tier, facts.efficiency.mfu_ratio
    asked = [check for check in checks if check.in_path]
    failed = next((check for check in asked if check.state is CheckState.FAILED), None)
    unknown = [check.name.replace("_", " ") for check in asked if check.state is CheckState.UNKNOWN]
    begin = "MFU is unknown" if mfu is None else f"MFU is {percent(mfu)}"
    if tier is MfuTier.EXCELLENT:
        return f"{begin}: excellent, nothing to ask."
    if failed is not None:
        sentence = f"{begin}: {failed.name.replace('_', ' ')} is {failed.value}, limit {failed.limit}."
        before = asked[: asked.index(failed)]
        unknown = [check.name.replace("_", " ") for check in before if check.state is CheckState.UNKNOWN]
        return f"{sentence} Unknown before it: {', '.join(unknown)}." if unknown else sentence
    passed = f"{begin}: nothing that is asked at this MFU failed"
    open_ = f"; unknown: {', '.join(unknown)}" if unknown else ""
    beyond = [check for check in checks if not check.in_path and check.state is CheckState.FAILED]
    names = ", ".join(check.name.replace("_", " ") for check in beyond if check.name != "mfu")
    return f"{passed}{open_}{f'; beyond it failed: {names}' if names else ''}."


def _check(
    name: str, question: str, value: str | None, limit: str, source: str | None, *, passed: bool | None
) -> Check:
    state = CheckState.UNKNOWN
    if passed is not None:
        state = CheckState.PASSED if passed else CheckState.FAILED
    return Check(name=name, question=question, state=state, value=value, limit=limit, source=source)


def _at_most(name: str, question: str, ratio: float | None, limit: float, source: str | None) -> Check:
    return _check(
        name,
        f"{question} {percent(limit, 0)} of a step?",
        None if ratio is None else percent(ratio),
        f"under {percent(limit, 0)}",
        source if ratio is not None else "nothing measures it",
        passed=None if ratio is None else ratio < limit,
    )


def _mfu(facts: JobEvidence) -> Check:
    efficiency, limit = facts.efficiency, THRESHOLDS.mfu_good_ratio
    mfu, tier = efficiency.mfu_ratio, efficiency.mfu_tier
    return _check(
        "mfu",
        f"Is MFU at least {percent(limit, 0)}?",
        None if mfu is None or tier is None else f"{percent(mfu)} ({tier.word})",
        f"at least {percent(limit, 0)}",
        "step times, the model's FLOPs, the GPUs' dense peak" if mfu is not None else "no FLOPs or no peak",
        passed=None if mfu is None else mfu >= limit,
    )


def _tensor(facts: JobEvidence) -> Check:
    groups = facts.tensor_groups
    if facts.parallel.world_size == 1:
        return _check("tensor_in_node", _IN_NODE, "a single rank", "1 node", "layout", passed=True)
    value = None
    if groups is not None:
        nodes = "1 node" if groups.nodes == 1 else f"{groups.nodes} nodes"
        ranks = "1 rank" if groups.size == 1 else f"{groups.size} ranks"
        value = f"{ranks} on {nodes}"
    elif facts.nodes == 1 and facts.parallel.world_size is not None and not facts.silent_gpu_ranks:
        # Whatever the layout is, no group can leave the only node.
        all_ranks = f"all {facts.parallel.world_size} ranks on 1 node"
        return _check("tensor_in_node", _IN_NODE, all_ranks, "1 node", "placement of ranks", passed=True)
    return _check(
        "tensor_in_node",
        _IN_NODE,
        value,
        "1 node",
        "layout and placement of ranks" if groups else "no layout, or no node of its ranks",
        passed=None if groups is None else groups.nodes == 1,
    )


_IN_NODE = "Is each tensor-parallel group in one node?"


def _data_loading(facts: JobEvidence) -> Check:
    """By timers, else by hosts that sleep while loader workers have nothing ready for their GPUs."""
    share, source = facts.data.share_ratio, facts.data.source
    if share is None and facts.sleeping is not None and facts.sleeping.loader_workers != 0:
        share, source = facts.sleeping.gain_ratio, "hosts of all ranks sleep while GPUs wait (kernel, NVML)"
    limit = THRESHOLDS.data_loading_ratio
    found = _at_most("data_loading", "Is data loading under", share, limit, source)
    if found.state is CheckState.FAILED and waits_for_gpu_work(facts):
        why = f"{source}, on one rank, whose host waits there for its GPU"
        return replace(found, state=CheckState.UNKNOWN, value=f"at most {found.value}", source=why)
    return found


def _bubble(facts: JobEvidence) -> Check:
    pipeline, limit = facts.pipeline, THRESHOLDS.pipeline_stall_ratio
    stall = pipeline.stall_ratio if pipeline.stall_ratio is not None else pipeline.bubble_theory_ratio
    source = pipeline.source if pipeline.stall_ratio is not None else "theory of the schedule"
    if facts.parallel.pp == 1 or facts.parallel.world_size == 1:
        stall, source = 0.0, "no pipeline"
    return _at_most("pipeline_bubble", "Is the pipeline bubble under", stall, limit, source)


def _communication(facts: JobEvidence) -> Check:
    seen = facts.communication
    known = [
        ratio for ratio in (seen.exposed_ratio, seen.transfer_ratio, seen.share_ratio) if ratio is not None
    ]
    ratio = min(known, default=None)
    if facts.parallel.world_size == 1:
        ratio = 0.0
    source = "a single rank" if facts.parallel.world_size == 1 else seen.exposed_source or seen.source
    check = _at_most(
        "communication",
        "Is communication, without waiting and what is hidden, under",
        ratio,
        THRESHOLDS.communication_alert_ratio,
        source,
    )
    if check.state is CheckState.FAILED and seen.exposed_ratio is None and facts.communication_may_overlap:
        return _check(
            check.name,
            check.question,
            f"at most {check.value}",
            check.limit,
            "how much is exposed only a capture shows",
            passed=None,
        )
    return check


def _overlap(facts: JobEvidence) -> Check:
    """By the printed arguments: flags that are not known to be set are named."""
    software, layout = facts.software, facts.parallel
    if layout.world_size == 1:
        return _check("overlap", _OVERLAPS, "a single rank", "all on", "layout", passed=True)
    names = [*(_OF_REPLICAS if _replicas(layout) != 1 else ()), *(_OF_TENSOR if (layout.tp or 1) > 1 else ())]
    if not names:
        nothing = "one replica, and no tensor parallelism"
        return _check("overlap", _OVERLAPS, nothing, "all on", "layout", passed=True)
    if software.framework is None or not software.arguments:
        why = "the job printed no arguments" if software.framework else "no framework known"
        return _check("overlap", _OVERLAPS, None, "all on", why, passed=None)
    unset = list(dict.fromkeys(option for name in names for option in unset_options(name, software)))
    value = f"not set: {', '.join(unset)}" if unset else "all set"
    return _check("overlap", _OVERLAPS, value, "all on", "printed arguments", passed=not unset)


def _replicas(layout: ParallelLayout) -> int | None:
    """Ranks that share gradients; None where the layout does not say."""
    if layout.dp is not None:
        return layout.dp * (layout.cp or 1)
    if layout.world_size is None or layout.tp is None or layout.pp is None:
        return None
    return layout.world_size // (layout.tp * layout.pp)


_OVERLAPS = "Is communication overlapped with computation?"


def _gradients(facts: JobEvidence) -> Check:
    step_s, seconds = facts.step_time.median, facts.communication.gradient_s
    ratio = None if not step_s or seconds is None or seconds != seconds else seconds / step_s  # noqa: PLR0124
    return _at_most(
        "gradient_reduction",
        "Is the reduction of gradients under",
        ratio,
        THRESHOLDS.gradient_reduction_ratio,
        "timers",
    )


def _computation(facts: JobEvidence) -> Check:
    forward, backward = facts.breakdown.forward_ratio, facts.breakdown.backward_ratio
    ratio = None if forward is None or backward is None else forward + backward
    limit = THRESHOLDS.compute_most_ratio
    return _check(
        "forward_backward",
        f"Do forward and backward take over {percent(limit, 0)} of a step?",
        None if ratio is None else percent(ratio),
        f"over {percent(limit, 0)}",
        "timers" if ratio is not None else "no timers of forward and backward",
        passed=None if ratio is None else ratio > limit,
    )


def _memory(facts: JobEvidence) -> Check:
    used, limit = facts.memory.max_used_ratio, THRESHOLDS.memory_high_ratio
    return _check(
        "memory",
        f"Is at most {percent(limit, 0)} of the fullest GPU's memory in use?",
        None if used is None else percent(used),
        f"at most {percent(limit, 0)}, against running out",
        facts.memory.source or "no GPU memory seen",
        passed=None if used is None else used <= limit,
    )


def _headroom(facts: JobEvidence) -> Check:
    used, limit = facts.memory.max_used_ratio, THRESHOLDS.memory_low_ratio
    value = None if used is None else f"{percent(1 - used)} free"
    if used is not None and used < limit:
        value = f"{value}: the batch could grow"
    return _check(
        "memory_headroom",
        f"Is at least {percent(limit, 0)} of that memory in use?",
        value,
        f"at most {percent(1 - limit, 0)} free",
        facts.memory.source or "no GPU memory seen",
        passed=None if used is None else used >= limit,
    )


def _batch(facts: JobEvidence) -> Check:
    """Against reading the weights only: activations and communication want more."""
    tokens, least = facts.batch.tokens, facts.batch.critical_tokens
    missing = "no micro-batch and model known" if tokens is None else "no peak or bandwidth of the GPUs known"
    return _check(
        "critical_batch",
        "Is a micro-batch so large that computing takes longer than reading the weights?",
        None if tokens is None else f"{tokens:,.0f} tokens",
        "where computing takes longer" if least is None else f"at least {least:,.0f} tokens",
        "printed arguments; peak and bandwidth of the GPUs" if None not in {tokens, least} else missing,
        passed=None if tokens is None or least is None else tokens >= least,
    )


def _jitter(facts: JobEvidence) -> Check:
    found = _at_most(
        "jitter",
        "Is the jitter of step times under",
        facts.step_time.jitter_ratio,
        THRESHOLDS.step_jitter_ratio,
        "steady steps and outliers",
    )
    cause = facts.long_steps
    if found.state is not CheckState.FAILED or cause is None:
        return found
    # A timer lasts over its wait for others, too, so it shows where the time is and not who takes it.
    value = f"{found.value}; long steps are longer by {cause.phase} ({percent(cause.ratio, 0)} of the excess)"
    return replace(found, value=value, source=f"{found.source}; timers: {cause.timer}")


def _precision(facts: JobEvidence) -> Check:
    description = facts.description
    precision = (description.precision or description.hlo_precision) if description else None
    source = "printed arguments" if description and description.precision else "dumped HLO"
    return _check(
        "precision",
        "Does it compute in 16 bits or fewer?",
        precision,
        "bf16, fp16, fp8 or fp4",
        source if precision else "the job printed no precision",
        passed=None if precision is None else precision in _LOW_PRECISION,
    )
