"""Why a server is slower than it could be: findings with evidence, and what to do about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

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

Judge = Callable[[ServerRates, TheoryComparison | None], Finding | None]


def diagnose(measured: ServerRates, comparison: TheoryComparison | None = None) -> tuple[Finding, ...]:
    """All findings, the most certain first. Those about decode speed need theory."""
    found = [finding for judge in _JUDGES if (finding := judge(measured, comparison)) is not None]
    explained = {Kind.LARGE_BATCH, Kind.CPU_OVERHEAD, Kind.CUDA_GRAPH}
    slow = _slow_decode(measured, comparison)
    kinds = {finding.kind for finding in found}
    if slow is not None and not explained & kinds:
        found.append(slow)
    late = _slow_prefill(measured, comparison)
    if late is not None and not {Kind.QUEUEING, Kind.KV_MEMORY, Kind.LONG_PROMPTS} & kinds:
        found.append(late)
    return tuple(sorted(found, key=lambda finding: -finding.confidence))


def _large_batch(measured: ServerRates, comparison: TheoryComparison | None) -> Finding | None:
    if comparison is None or comparison.step is None or measured.tpot.p50 is None:
        return None
    step, p50 = comparison.step, measured.tpot.p50
    above_floor = step.total_s > THRESHOLDS.serving_batch_cost_ratio * comparison.tpot_floor_s
    if step.kv_ratio < THRESHOLDS.serving_kv_reads_ratio or not above_floor:
        return None
    ratio = comparison.tpot_over_step_ratio or 0.0
    return Finding(
        kind=Kind.LARGE_BATCH,
        confidence=0.8 if ratio < THRESHOLDS.serving_slow_decode_ratio else 0.6,
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
        advice=advice_for(Kind.LARGE_BATCH, measured.now.engine),
    )


def _prefill_interference(measured: ServerRates, comparison: TheoryComparison | None) -> Finding | None:
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
    return Finding(
        kind=Kind.PREFILL_INTERFERENCE,
        confidence=0.8 if measured.computed_prompt_tokens_per_s else 0.6,
        evidence=tuple(evidence),
        advice=advice_for(Kind.PREFILL_INTERFERENCE, measured.now.engine),
    )


def _long_prompts(measured: ServerRates, comparison: TheoryComparison | None) -> Finding | None:
    ttft = measured.latencies.get(Latency.TTFT)
    if comparison is None or not comparison.prompt_tokens_measured or ttft is None or not ttft.p50:
        return None
    floor = comparison.ttft_floor_s
    if (
        floor < THRESHOLDS.serving_long_prompt_ratio * ttft.p50
        or floor < THRESHOLDS.serving_long_prompt_steps * comparison.tpot_floor_s
    ):
        return None
    return Finding(
        kind=Kind.LONG_PROMPTS,
        confidence=0.8,
        evidence=(
            (
                f"Prompts have {comparison.prompt_tokens:.0f} tokens on average, which take at least "
                f"{duration(floor)} to compute; TTFT p50 is {duration(ttft.p50)}."
            ),
        ),
        advice=advice_for(Kind.LONG_PROMPTS, measured.now.engine),
    )


def _kv_memory(measured: ServerRates, _comparison: TheoryComparison | None) -> Finding | None:
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
    return Finding(
        kind=Kind.KV_MEMORY,
        confidence=0.9 if full and preempted else 0.8,
        evidence=tuple(evidence),
        advice=advice_for(Kind.KV_MEMORY, measured.now.engine),
    )


def _unused_kv_memory(measured: ServerRates, _comparison: TheoryComparison | None) -> Finding | None:
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
    return Finding(
        kind=Kind.UNUSED_KV_MEMORY,
        confidence=0.8 if at_limit else 0.4,
        evidence=tuple(evidence),
        advice=advice_for(Kind.UNUSED_KV_MEMORY, now.engine),
    )


def _low_cache_hits(measured: ServerRates, _comparison: TheoryComparison | None) -> Finding | None:
    ratio = measured.prefix_hit_ratio
    prefill_matters = (measured.computed_prompt_tokens_per_s or 0.0) > (
        measured.generation_tokens_per_s or float("inf")
    )
    if ratio is None or ratio >= THRESHOLDS.serving_cache_hit_ratio or not prefill_matters:
        return None
    return Finding(
        kind=Kind.LOW_CACHE_HITS,
        confidence=0.4,
        evidence=(
            (
                f"{percent(ratio)} of prompt tokens come from the prefix cache, while "
                f"{measured.computed_prompt_tokens_per_s:.0f} prompt tokens/s are computed, more than are "
                f"generated."
            ),
        ),
        advice=advice_for(Kind.LOW_CACHE_HITS, measured.now.engine),
    )


def _few_requests(measured: ServerRates, comparison: TheoryComparison | None) -> Finding | None:
    running = measured.now.running_requests
    if comparison is None or not running or measured.now.queued_requests or comparison.step is None:
        return None
    critical = comparison.theory.critical_batch
    if comparison.step.batch >= THRESHOLDS.serving_few_requests_ratio * critical:
        return None
    return Finding(
        kind=Kind.FEW_REQUESTS,
        confidence=0.6,
        evidence=(
            (
                f"{comparison.step.batch:.0f} sequences per replica decode at once and none wait; reading"
                f" the weights would serve about {critical:.0f} at little more cost."
            ),
        ),
        advice=advice_for(Kind.FEW_REQUESTS, measured.now.engine),
    )


def _cuda_graph(measured: ServerRates, _comparison: TheoryComparison | None) -> Finding | None:
    ratio = measured.cuda_graph_ratio
    if ratio is None or ratio >= THRESHOLDS.serving_graph_ratio or not measured.now.running_requests:
        return None
    return Finding(
        kind=Kind.CUDA_GRAPH,
        confidence=0.8 if measured.span_s else 0.4,
        evidence=(
            (
                f"{percent(ratio)} of decode passes run as a CUDA graph; "
                f"{measured.now.running_requests:.0f} requests run."
            ),
        ),
        advice=advice_for(Kind.CUDA_GRAPH, measured.now.engine),
    )


def _cpu_overhead(measured: ServerRates, comparison: TheoryComparison | None) -> Finding | None:
    busy = measured.gpu_busy_ratio
    # A GPU that computed nothing at all is not kept from it by overhead.
    if busy is None or not 0 < busy < THRESHOLDS.serving_gpu_busy_ratio or not measured.now.running_requests:
        return None
    evidence = [f"The GPU runs forward passes in {percent(busy)} of the time in which there is work."]
    if comparison is not None and comparison.tpot_over_step_ratio is not None:
        evidence.append(f"TPOT is {comparison.tpot_over_step_ratio:.1f} times what the batch allows.")
    return Finding(
        kind=Kind.CPU_OVERHEAD,
        confidence=0.8,
        evidence=tuple(evidence),
        advice=advice_for(Kind.CPU_OVERHEAD, measured.now.engine),
    )


def _queueing(measured: ServerRates, _comparison: TheoryComparison | None) -> Finding | None:
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
    return Finding(
        kind=Kind.QUEUEING,
        confidence=0.9 if many and long_wait else 0.6,
        evidence=tuple(evidence),
        advice=advice_for(Kind.QUEUEING, measured.now.engine),
    )


def _replica_imbalance(measured: ServerRates, _comparison: TheoryComparison | None) -> Finding | None:
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
    return Finding(
        kind=Kind.REPLICA_IMBALANCE,
        confidence=0.6,
        evidence=(
            (
                f"Replica {busiest} runs {loads[busiest]:.0f} requests, the mean of {len(loads)} is "
                f"{average:.1f}; with "
                "attention or expert parallelism over them all wait for the busiest."
            ),
        ),
        advice=advice_for(Kind.REPLICA_IMBALANCE, measured.now.engine),
    )


def _speculation(measured: ServerRates, _comparison: TheoryComparison | None) -> Finding | None:
    length = measured.spec_accept_length
    if length is None or length >= THRESHOLDS.serving_accept_tokens:
        return None
    share = "" if measured.spec_accept_ratio is None else f", {percent(measured.spec_accept_ratio)} of drafts"
    return Finding(
        kind=Kind.SPECULATION,
        confidence=0.6,
        evidence=(f"A verification step accepts {length:.2f} tokens, its own included{share}.",),
        advice=advice_for(Kind.SPECULATION, measured.now.engine),
    )


def _slow_decode(measured: ServerRates, comparison: TheoryComparison | None) -> Finding | None:
    if comparison is None or measured.tpot.p50 is None:
        return None
    ratio = comparison.tpot_over_step_ratio
    if ratio is None or comparison.step is None or ratio < THRESHOLDS.serving_slow_decode_ratio:
        return None
    return Finding(
        kind=Kind.SLOW_DECODE,
        confidence=0.4,
        evidence=(
            (
                f"TPOT p50 is {duration(measured.tpot.p50)}; {comparison.step.batch:.0f} sequences with "
                f"{context_tokens(measured) or 0:.0f} tokens each allow "
                f"{duration(comparison.step.total_s)}."
            ),
            *_faster_floors(comparison.theory, comparison.step),
        ),
        advice=advice_for(Kind.SLOW_DECODE, measured.now.engine),
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


def _slow_prefill(measured: ServerRates, comparison: TheoryComparison | None) -> Finding | None:
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
    return Finding(
        kind=Kind.SLOW_PREFILL,
        confidence=0.6 if known else 0.4,
        evidence=(
            (
                f"TTFT p50 is {duration(ttft.p50)}{queued}; the mean prompt of"
                f" {comparison.prompt_tokens:.0f} tokens takes at least {duration(floor)} to compute."
            ),
        ),
        advice=advice_for(Kind.SLOW_PREFILL, measured.now.engine),
    )


_JUDGES: Sequence[Judge] = (
    _large_batch,
    _prefill_interference,
    _long_prompts,
    _kv_memory,
    _unused_kv_memory,
    _low_cache_hits,
    _few_requests,
    _cuda_graph,
    _cpu_overhead,
    _queueing,
    _replica_imbalance,
    _speculation,
)
