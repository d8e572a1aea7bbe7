"""Why a server is slower than it could be: findings with evidence, and what to do about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from perfd.analysis.findings import Finding, Kind
from perfd.analysis.serving.engine_snapshot import Latency
from perfd.analysis.serving.server_rates import ServerRates
from perfd.analysis.serving.serving_theory import DecodeStep, Theory
from perfd.analysis.serving.theory_comparison import TheoryComparison, context_tokens
from perfd.analysis.serving.tuning_advice import advice_for
from perfd.formatting import duration, percent
from perfd.thresholds import THRESHOLDS

_BYTE_BITS = 8
"""Bits of a weight in fp8 or int8, the quantization that is advised."""


_Found: TypeAlias = tuple[float, tuple[str, ...]]
"""The confidence of a finding and its evidence; its kind is that of the check."""
_Check = Callable[[ServerRates, TheoryComparison | None], _Found | None]


def diagnose(measured: ServerRates, comparison: TheoryComparison | None = None) -> tuple[Finding, ...]:
    """All findings, the most certain first. Those about decode speed need theory."""
    findings: dict[Kind, Finding] = {}
    for kind, check in _CHECKS.items():
        if _EXPLAINED_BY.get(kind, frozenset()) & findings.keys():
            continue
        if (found := check(measured, comparison)) is not None:
            confidence, evidence = found
            advice = advice_for(kind, measured.now.engine)
            findings[kind] = Finding(kind=kind, confidence=confidence, evidence=evidence, advice=advice)
    return tuple(sorted(findings.values(), key=lambda finding: -finding.confidence))


def _found(confidence: float, *evidence: str) -> _Found:
    return confidence, evidence


def _large_batch(measured: ServerRates, comparison: TheoryComparison | None) -> _Found | None:
    if comparison is None or comparison.step is None or measured.tpot.p50 is None:
        return None
    step, p50 = comparison.step, measured.tpot.p50
    above_floor = step.total_s > THRESHOLDS.serving_batch_cost_ratio * comparison.tpot_floor_s
    if step.kv_ratio < THRESHOLDS.serving_kv_reads_ratio or not above_floor:
        return None
    ratio = comparison.tpot_over_step_ratio or 0.0
    return _found(
        0.8 if ratio < THRESHOLDS.serving_slow_decode_ratio else 0.6,
        f"{step.batch:.0f} sequences with {step.context_tokens:.0f} tokens each read KV cache for "
        f"{duration(step.kv_s)} of a step, beside {duration(step.weights_s)} for "
        f"the weights: "
        f"this batch allows {duration(step.total_s)}, a lone sequence "
        f"{duration(comparison.tpot_floor_s)}.",
        f"TPOT p50 is {duration(p50)}, {ratio:.2f} times what this batch allows.",
    )


def _prefill_interference(measured: ServerRates, comparison: TheoryComparison | None) -> _Found | None:
    between = measured.latencies.get(Latency.ITL) or measured.latencies.get(Latency.TPOT)
    if (
        between is None
        or measured.computes_no_prompt
        or not between.p50
        or not between.p99
        or between.p99 < THRESHOLDS.serving_tail_ratio * between.p50
    ):
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
    return _found(0.8 if measured.computed_prompt_tokens_per_s else 0.6, *evidence)


def _long_prompts(measured: ServerRates, comparison: TheoryComparison | None) -> _Found | None:
    ttft = measured.latencies.get(Latency.TTFT)
    if comparison is None or not comparison.prompt_tokens_measured or ttft is None or not ttft.p50:
        return None
    floor = comparison.ttft_floor_s
    if (
        floor < THRESHOLDS.serving_long_prompt_ratio * ttft.p50
        or floor < THRESHOLDS.serving_long_prompt_steps * comparison.tpot_floor_s
    ):
        return None
    return _found(
        0.8,
        f"Prompts have {comparison.prompt_tokens:.0f} tokens on average, which take at least "
        f"{duration(floor)} to compute; TTFT p50 is {duration(ttft.p50)}.",
    )


def _kv_memory(measured: ServerRates, _comparison: TheoryComparison | None) -> _Found | None:
    used, waiting = measured.now.kv_cache_used_ratio, measured.now.queued_requests or 0
    preempted = measured.preemptions_per_s or 0.0
    full = used is not None and used >= THRESHOLDS.serving_kv_full_ratio
    if preempted == 0 and not (full and waiting > 0):
        return None
    evidence = [] if used is None else [f"{percent(used)} of the KV cache is in use."]
    if waiting:
        evidence.append(f"{waiting:.0f} requests wait.")
    if preempted:
        evidence.append(
            f"{preempted:.2g} requests/s are thrown out for want of cache and are computed again."
        )
    return _found(0.9 if full and preempted else 0.8, *evidence)


def _unused_kv_memory(measured: ServerRates, _comparison: TheoryComparison | None) -> _Found | None:
    now = measured.now
    used, waiting, running, most = (
        now.kv_cache_used_ratio, now.queued_requests, now.running_requests, now.max_running_requests
    )  # fmt: skip
    if used is None or used >= THRESHOLDS.serving_kv_low_ratio or not waiting or not running:
        return None
    evidence = [f"{percent(used)} of the KV cache is in use, while {waiting:.0f} requests wait."]
    at_limit = most is not None and running >= THRESHOLDS.serving_request_limit_ratio * most
    if most is not None:
        reached = "is reached" if at_limit else "is not reached"
        evidence.append(f"{running:.0f} requests run; the limit of {most:.0f} {reached}.")
    return _found(0.8 if at_limit else 0.4, *evidence)


def _low_cache_hits(measured: ServerRates, _comparison: TheoryComparison | None) -> _Found | None:
    ratio = measured.prefix_hit_ratio
    prefill_matters = (measured.computed_prompt_tokens_per_s or 0.0) > (
        measured.generation_tokens_per_s or float("inf")
    )
    if ratio is None or ratio >= THRESHOLDS.serving_cache_hit_ratio or not prefill_matters:
        return None
    return _found(
        0.4,
        f"{percent(ratio)} of prompt tokens come from the prefix cache, while "
        f"{measured.computed_prompt_tokens_per_s:.0f} prompt tokens/s are computed, more than are "
        f"generated.",
    )


def _few_requests(measured: ServerRates, comparison: TheoryComparison | None) -> _Found | None:
    running = measured.now.running_requests
    if comparison is None or not running or measured.now.queued_requests or comparison.step is None:
        return None
    critical = comparison.theory.critical_batch
    if comparison.step.batch >= THRESHOLDS.serving_few_requests_ratio * critical:
        return None
    return _found(
        0.6,
        f"{comparison.step.batch:.0f} sequences per replica decode at once and none wait; reading"
        f" the weights would serve about {critical:.0f} at little more cost.",
    )


def _cuda_graph(measured: ServerRates, _comparison: TheoryComparison | None) -> _Found | None:
    ratio = measured.cuda_graph_ratio
    if ratio is None or ratio >= THRESHOLDS.serving_graph_ratio or not measured.now.running_requests:
        return None
    return _found(
        0.8 if measured.span_s else 0.4,
        f"{percent(ratio)} of decode passes run as a CUDA graph; "
        f"{measured.now.running_requests:.0f} requests run.",
    )


def _cpu_overhead(measured: ServerRates, comparison: TheoryComparison | None) -> _Found | None:
    busy = measured.gpu_busy_ratio
    # A GPU that computed nothing at all is not kept from it by overhead.
    if busy is None or not 0 < busy < THRESHOLDS.serving_gpu_busy_ratio or not measured.now.running_requests:
        return None
    evidence = [f"The GPU runs forward passes in {percent(busy)} of the time in which there is work."]
    if comparison is not None and comparison.tpot_over_step_ratio is not None:
        evidence.append(f"TPOT is {comparison.tpot_over_step_ratio:.1f} times what the batch allows.")
    return _found(0.8, *evidence)


def _queueing(measured: ServerRates, _comparison: TheoryComparison | None) -> _Found | None:
    waiting, running = measured.now.queued_requests, measured.now.running_requests
    queue, ttft = measured.latencies.get(Latency.QUEUE), measured.latencies.get(Latency.TTFT)
    long_wait = bool(
        queue
        and ttft
        and queue.p50
        and ttft.p50
        and queue.p50 > THRESHOLDS.serving_queue_ttft_ratio * ttft.p50
    )
    many = bool(waiting and running and waiting > THRESHOLDS.serving_queue_ratio * running)
    if not (many or (long_wait and waiting)):
        return None
    evidence = [f"{waiting:.0f} requests wait while {running or 0:.0f} run."]
    if queue and queue.p50 is not None and ttft and ttft.p50 is not None:
        evidence.append(
            f"Half of the requests wait {duration(queue.p50)} or more, of a TTFT p50 of {duration(ttft.p50)}."
        )
    return _found(0.9 if many and long_wait else 0.6, *evidence)


def _replica_imbalance(measured: ServerRates, _comparison: TheoryComparison | None) -> _Found | None:
    loads = {
        load.replica: load.running_requests
        for load in measured.now.replicas
        if load.running_requests is not None
    }
    if len(loads) < 2:
        return None
    average = sum(loads.values()) / len(loads)
    busiest = max(loads, key=lambda name: loads[name])
    # Two requests on two replicas are not an imbalance worth a finding.
    if average < 2 or loads[busiest] < (1 + THRESHOLDS.serving_imbalance_ratio) * average:
        return None
    return _found(
        0.6,
        f"Replica {busiest} runs {loads[busiest]:.0f} requests, the mean of {len(loads)} is "
        f"{average:.1f}; with "
        "attention or expert parallelism over them all wait for the busiest.",
    )


def _speculation(measured: ServerRates, _comparison: TheoryComparison | None) -> _Found | None:
    length = measured.spec_accept_length
    if length is None or length >= THRESHOLDS.serving_accept_tokens:
        return None
    share = "" if measured.spec_accept_ratio is None else f", {percent(measured.spec_accept_ratio)} of drafts"
    return _found(0.6, f"A verification step accepts {length:.2f} tokens, its own included{share}.")


def _slow_decode(measured: ServerRates, comparison: TheoryComparison | None) -> _Found | None:
    if comparison is None or measured.tpot.p50 is None:
        return None
    ratio = comparison.tpot_over_step_ratio
    if ratio is None or comparison.step is None or ratio < THRESHOLDS.serving_slow_decode_ratio:
        return None
    return _found(
        0.4,
        f"TPOT p50 is {duration(measured.tpot.p50)}; {comparison.step.batch:.0f} sequences with "
        f"{context_tokens(measured) or 0:.0f} tokens each allow "
        f"{duration(comparison.step.total_s)}.",
        *_faster_floors(comparison.theory, comparison.step),
    )


def _faster_floors(theory: Theory, step: DecodeStep) -> Iterator[str]:
    """What the same batch would allow on twice the GPUs, and with weights of one byte."""
    layout = replace(theory.layout, tp=2 * theory.layout.tp)
    wider = replace(theory, layout=layout).decode_step(step.batch, step.context_tokens)
    faster = [f"{duration(wider.total_s)} with tensor parallelism {layout.tp}"]
    if theory.model.weight_bits > _BYTE_BITS:
        model = replace(theory.model, weight_bits=_BYTE_BITS)
        narrow = replace(theory, model=model).decode_step(step.batch, step.context_tokens)
        faster.append(f"{duration(narrow.total_s)} with weights in fp8 or int8")
    yield f"The hardware would allow {', '.join(faster)}."


def _slow_prefill(measured: ServerRates, comparison: TheoryComparison | None) -> _Found | None:
    ttft, queue = measured.latencies.get(Latency.TTFT), measured.latencies.get(Latency.QUEUE)
    if comparison is None or not comparison.prompt_tokens_measured or ttft is None or not ttft.p50:
        return None
    waiting = min(ttft.p50, (queue.p50 if queue else None) or 0.0)
    hit = measured.prefix_hit_ratio or 0.0
    floor = comparison.theory.prefill_s(max(1.0, comparison.prompt_tokens * (1 - hit)))
    if ttft.p50 - waiting < THRESHOLDS.serving_slow_prefill_factor * floor:
        return None
    known = queue is not None and queue.p50 is not None
    queued = f", {duration(waiting)} of it in the queue" if known else ""
    return _found(
        0.6 if known else 0.4,
        f"TTFT p50 is {duration(ttft.p50)}{queued}; the mean prompt of"
        f" {comparison.prompt_tokens:.0f} tokens takes at least {duration(floor)} to compute.",
    )


_CHECKS: Mapping[Kind, _Check] = {
    Kind.LARGE_BATCH: _large_batch,
    Kind.PREFILL_INTERFERENCE: _prefill_interference,
    Kind.LONG_PROMPTS: _long_prompts,
    Kind.KV_MEMORY: _kv_memory,
    Kind.UNUSED_KV_MEMORY: _unused_kv_memory,
    Kind.LOW_CACHE_HITS: _low_cache_hits,
    Kind.FEW_REQUESTS: _few_requests,
    Kind.CUDA_GRAPH: _cuda_graph,
    Kind.CPU_OVERHEAD: _cpu_overhead,
    Kind.QUEUEING: _queueing,
    Kind.REPLICA_IMBALANCE: _replica_imbalance,
    Kind.SPECULATION: _speculation,
    Kind.SLOW_DECODE: _slow_decode,
    Kind.SLOW_PREFILL: _slow_prefill,
}
_EXPLAINED_BY: Mapping[Kind, frozenset[Kind]] = {
    Kind.SLOW_DECODE: frozenset({Kind.LARGE_BATCH, Kind.CPU_OVERHEAD, Kind.CUDA_GRAPH}),
    Kind.SLOW_PREFILL: frozenset({Kind.QUEUEING, Kind.KV_MEMORY, Kind.LONG_PROMPTS}),
}
"""Kinds that are found only if none of these is, which come before them."""
