"""Why a server is slower than it could be: findings with evidence, and the knob to turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfd.analysis.serving.engine_snapshot import Latency
from perfd.analysis.serving.server_rates import ServerRates
from perfd.analysis.serving.theory_comparison import TheoryComparison, context_tokens
from perfd.analysis.serving.tuning_advice import ServingCause, knob
from perfd.formatting import duration, percent

_KV_READS_RATIO = 0.25
"""Of a decode step: above it, a smaller cache entry or batch pays."""
_TAIL_RATIO = 2.5
"""p99 over p50 of the time between tokens; decode alone is even."""
_SLOW_RATIO = 1.5
"""Measured over what the batch allows; kernels and small all-reduces take up to about a third."""
_FULL_RATIO = 0.9
_LOW_HIT_RATIO = 0.1
_FEW_RATIO = 0.1
"""Of the critical batch."""
_IMBALANCE_RATIO = 1.5
_SHORT_ACCEPT_LENGTH = 1.6
"""Tokens per verification that a draft model's own time eats up (Leviathan et al. 2023, arXiv:2211.17192)."""
_GRAPH_RATIO = 0.9
_BUSY_RATIO = 0.8
_LONG_PREFILL_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFinding:
    """One thing that slows a server down. Confidence is as in `perfd.analysis.diagnosis.findings.Finding`."""

    kind: ServingCause
    confidence: float
    evidence: Sequence[str]
    recommendation: str
    """Which knob, by the name that the engine gives it."""


Judge = Callable[[ServerRates, TheoryComparison | None], ServingFinding | None]


def diagnose(measured: ServerRates, comparison: TheoryComparison | None = None) -> tuple[ServingFinding, ...]:
    """All findings, the most certain first. Those about decode speed need theory."""
    found = [finding for judge in _JUDGES if (finding := judge(measured, comparison)) is not None]
    explained = {ServingCause.LARGE_BATCH, ServingCause.CPU_OVERHEAD, ServingCause.CUDA_GRAPH}
    slow = _slow_decode(measured, comparison)
    if slow is not None and not explained & {finding.kind for finding in found}:
        found.append(slow)
    return tuple(sorted(found, key=lambda finding: -finding.confidence))


def _large_batch(measured: ServerRates, comparison: TheoryComparison | None) -> ServingFinding | None:
    if comparison is None or comparison.step is None or measured.tpot.p50 is None:
        return None
    step, p50 = comparison.step, measured.tpot.p50
    above_floor = step.total_s > 1.3 * comparison.tpot_floor_s
    if step.kv_ratio < _KV_READS_RATIO or not above_floor:
        return None
    ratio = comparison.tpot_over_step_ratio or 0.0
    return ServingFinding(
        kind=ServingCause.LARGE_BATCH,
        confidence=0.8 if ratio < _SLOW_RATIO else 0.6,
        evidence=(
            (
                f"{step.batch:.0f} sequences with {step.context_tokens:.0f} tokens each read KV cache for "
                f"{duration(step.kv_s)} of a step, beside {duration(step.weights_s)} for "
                f"the weights: "
                f"this batch allows {duration(step.total_s)}, a lone sequence "
                f"{duration(comparison.tpot_floor_s)}."
            ),
            f"TPOT p50 is {duration(p50)}, {ratio:.2f} times what this batch allows.",
        ),
        recommendation=knob(ServingCause.LARGE_BATCH, measured.now.engine),
    )


def _prefill_interference(
    measured: ServerRates, comparison: TheoryComparison | None
) -> ServingFinding | None:
    between = measured.latencies.get(Latency.ITL) or measured.latencies.get(Latency.TPOT)
    if between is None or not between.p50 or not between.p99 or between.p99 < _TAIL_RATIO * between.p50:
        return None
    evidence = [
        (
            f"Between tokens p99 is {duration(between.p99)}, {between.p99 / between.p50:.1f} "
            f"times the p50 "
            f"of {duration(between.p50)}: decode alone is even, so some steps wait for a prefill."
        )
    ]
    if comparison is not None:
        mean = "the mean" if comparison.prompt_tokens_measured else "for example"
        evidence.append(
            f"A prompt of {comparison.prompt_tokens:.0f} tokens, {mean}, takes at least "
            f"{duration(comparison.ttft_floor_s)} to compute, and holds decode up for as long."
        )
    if measured.computed_prompt_tokens_per_s:
        evidence.append(f"{measured.computed_prompt_tokens_per_s:.0f} prompt tokens/s are computed.")
    return ServingFinding(
        kind=ServingCause.PREFILL_INTERFERENCE,
        confidence=0.8 if measured.computed_prompt_tokens_per_s else 0.6,
        evidence=tuple(evidence),
        recommendation=knob(ServingCause.PREFILL_INTERFERENCE, measured.now.engine),
    )


def _long_prompts(measured: ServerRates, comparison: TheoryComparison | None) -> ServingFinding | None:
    ttft = measured.latencies.get(Latency.TTFT)
    if comparison is None or not comparison.prompt_tokens_measured or ttft is None or not ttft.p50:
        return None
    floor = comparison.ttft_floor_s
    if floor < 0.4 * ttft.p50 or floor < _LONG_PREFILL_STEPS * comparison.tpot_floor_s:
        return None
    return ServingFinding(
        kind=ServingCause.LONG_PROMPTS,
        confidence=0.8,
        evidence=(
            (
                f"Prompts have {comparison.prompt_tokens:.0f} tokens on average, which take at least "
                f"{duration(floor)} to compute; TTFT p50 is {duration(ttft.p50)}."
            ),
        ),
        recommendation=knob(ServingCause.LONG_PROMPTS, measured.now.engine),
    )


def _kv_memory(measured: ServerRates, _comparison: TheoryComparison | None) -> ServingFinding | None:
    used, waiting = measured.now.kv_cache_used_ratio, measured.now.queued_requests or 0
    preempted = measured.preemptions_per_s or 0.0
    full = used is not None and used >= _FULL_RATIO
    if preempted == 0 and not (full and waiting > 0):
        return None
    evidence = [] if used is None else [f"{percent(used)} of the KV cache is in use."]
    if waiting:
        evidence.append(f"{waiting:.0f} requests wait.")
    if preempted:
        evidence.append(
            f"{preempted:.2g} requests/s are thrown out for want of cache and are computed again."
        )
    return ServingFinding(
        kind=ServingCause.KV_MEMORY,
        confidence=0.9 if full and preempted else 0.8,
        evidence=tuple(evidence),
        recommendation=knob(ServingCause.KV_MEMORY, measured.now.engine),
    )


def _low_cache_hits(measured: ServerRates, _comparison: TheoryComparison | None) -> ServingFinding | None:
    ratio = measured.prefix_hit_ratio
    prefill_matters = (measured.computed_prompt_tokens_per_s or 0.0) > (
        measured.generation_tokens_per_s or float("inf")
    )
    if ratio is None or ratio >= _LOW_HIT_RATIO or not prefill_matters:
        return None
    return ServingFinding(
        kind=ServingCause.LOW_CACHE_HITS,
        confidence=0.4,
        evidence=(
            (
                f"{percent(ratio)} of prompt tokens come from the prefix cache, while "
                f"{measured.computed_prompt_tokens_per_s:.0f} prompt tokens/s are computed, more than are "
                f"generated."
            ),
        ),
        recommendation=knob(ServingCause.LOW_CACHE_HITS, measured.now.engine),
    )


def _few_requests(measured: ServerRates, comparison: TheoryComparison | None) -> ServingFinding | None:
    running = measured.now.running_requests
    if comparison is None or not running or measured.now.queued_requests or comparison.step is None:
        return None
    critical = comparison.theory.critical_batch
    if comparison.step.batch >= _FEW_RATIO * critical:
        return None
    return ServingFinding(
        kind=ServingCause.FEW_REQUESTS,
        confidence=0.6,
        evidence=(
            (
                f"{comparison.step.batch:.0f} sequences a replica decode at once and none wait; reading the "
                f"weights "
                f"would serve about {critical:.0f} at little more cost."
            ),
        ),
        recommendation=knob(ServingCause.FEW_REQUESTS, measured.now.engine),
    )


def _cuda_graph(measured: ServerRates, _comparison: TheoryComparison | None) -> ServingFinding | None:
    ratio = measured.cuda_graph_ratio
    if ratio is None or ratio >= _GRAPH_RATIO or not measured.now.running_requests:
        return None
    return ServingFinding(
        kind=ServingCause.CUDA_GRAPH,
        confidence=0.8 if measured.span_s else 0.4,
        evidence=(
            (
                f"{percent(ratio)} of decode passes run as a CUDA graph; "
                f"{measured.now.running_requests:.0f} requests run."
            ),
        ),
        recommendation=knob(ServingCause.CUDA_GRAPH, measured.now.engine),
    )


def _cpu_overhead(measured: ServerRates, comparison: TheoryComparison | None) -> ServingFinding | None:
    busy = measured.gpu_busy_ratio
    # A GPU that computed nothing at all is not kept from it by overhead.
    if busy is None or not 0 < busy < _BUSY_RATIO or not measured.now.running_requests:
        return None
    evidence = [f"The GPU runs forward passes in {percent(busy)} of the time in which there is work."]
    if comparison is not None and comparison.tpot_over_step_ratio is not None:
        evidence.append(f"TPOT is {comparison.tpot_over_step_ratio:.1f} times what the batch allows.")
    return ServingFinding(
        kind=ServingCause.CPU_OVERHEAD,
        confidence=0.8,
        evidence=tuple(evidence),
        recommendation=knob(ServingCause.CPU_OVERHEAD, measured.now.engine),
    )


def _queueing(measured: ServerRates, _comparison: TheoryComparison | None) -> ServingFinding | None:
    waiting, running = measured.now.queued_requests, measured.now.running_requests
    queue, ttft = measured.latencies.get(Latency.QUEUE), measured.latencies.get(Latency.TTFT)
    long_wait = bool(queue and ttft and queue.p50 and ttft.p50 and queue.p50 > 0.5 * ttft.p50)
    many = bool(waiting and running and waiting > 0.2 * running)
    if not (many or (long_wait and waiting)):
        return None
    evidence = [f"{waiting:.0f} requests wait while {running or 0:.0f} run."]
    if queue and queue.p50 is not None and ttft and ttft.p50 is not None:
        evidence.append(
            f"Half of the requests wait {duration(queue.p50)} or more, of a TTFT p50 of {duration(ttft.p50)}."
        )
    return ServingFinding(
        kind=ServingCause.QUEUEING,
        confidence=0.9 if many and long_wait else 0.6,
        evidence=tuple(evidence),
        recommendation=knob(ServingCause.QUEUEING, measured.now.engine),
    )


def _replica_imbalance(measured: ServerRates, _comparison: TheoryComparison | None) -> ServingFinding | None:
    loads = {
        load.replica: load.running_requests
        for load in measured.now.replicas
        if load.running_requests is not None
    }
    if len(loads) < 2:
        return None
    average = sum(loads.values()) / len(loads)
    busiest = max(loads, key=lambda name: loads[name])
    # Two requests on two replicas are no imbalance worth a finding.
    if average < 2 or loads[busiest] < _IMBALANCE_RATIO * average:
        return None
    return ServingFinding(
        kind=ServingCause.REPLICA_IMBALANCE,
        confidence=0.6,
        evidence=(
            (
                f"Replica {busiest} runs {loads[busiest]:.0f} requests, the mean of {len(loads)} is "
                f"{average:.1f}; with "
                "attention or expert parallelism over them all wait for the busiest."
            ),
        ),
        recommendation=knob(ServingCause.REPLICA_IMBALANCE, measured.now.engine),
    )


def _speculation(measured: ServerRates, _comparison: TheoryComparison | None) -> ServingFinding | None:
    length = measured.spec_accept_length
    if length is None or length >= _SHORT_ACCEPT_LENGTH:
        return None
    share = "" if measured.spec_accept_ratio is None else f", {percent(measured.spec_accept_ratio)} of drafts"
    return ServingFinding(
        kind=ServingCause.SPECULATION,
        confidence=0.6,
        evidence=(f"A verification step accepts {length:.2f} tokens, its own included{share}.",),
        recommendation=knob(ServingCause.SPECULATION, measured.now.engine),
    )


def _slow_decode(measured: ServerRates, comparison: TheoryComparison | None) -> ServingFinding | None:
    if comparison is None or measured.tpot.p50 is None:
        return None
    ratio = comparison.tpot_over_step_ratio
    if ratio is None or comparison.step is None or ratio < _SLOW_RATIO:
        return None
    return ServingFinding(
        kind=ServingCause.SLOW_DECODE,
        confidence=0.4,
        evidence=(
            (
                f"TPOT p50 is {duration(measured.tpot.p50)}; {comparison.step.batch:.0f} sequences with "
                f"{context_tokens(measured) or 0:.0f} tokens each allow "
                f"{duration(comparison.step.total_s)}."
            ),
        ),
        recommendation=knob(ServingCause.SLOW_DECODE, measured.now.engine),
    )


_JUDGES: Sequence[Judge] = (
    _large_batch,
    _prefill_interference,
    _long_prompts,
    _kv_memory,
    _low_cache_hits,
    _few_requests,
    _cuda_graph,
    _cpu_overhead,
    _queueing,
    _replica_imbalance,
    _speculation,
)
