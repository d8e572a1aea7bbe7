"""A server's numbers beside what its hardware allows."""

from __future__ import annotations

from dataclasses import dataclass

from perfd.analysis.serving.engine_snapshot import Latency
from perfd.analysis.serving.server_rates import ServerRates
from perfd.analysis.serving.serving_theory import DecodeStep, Theory

_TYPICAL_PROMPT_TOKENS = 1024
"""Assumed where metrics do not say how long prompts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryComparison:
    """Measured over theory; None where one of the two is unknown."""

    theory: Theory
    prompt_tokens: float
    """Length of the prompt that `ttft_floor_s` is for: the mean of the server's, else 1024."""
    prompt_tokens_measured: bool
    ttft_floor_s: float
    tpot_floor_s: float
    """Of a lone sequence with a short context."""
    step: DecodeStep | None
    """What the batch and context that the server has now allow."""
    tpot_over_floor_ratio: float | None
    tpot_over_step_ratio: float | None
    ttft_over_floor_ratio: float | None
    mbu_ratio: float | None
    prefill_mfu_ratio: float | None
    estimated_mfu_ratio: float | None
    """By the server's own count of FLOPs."""
    estimated_mbu_ratio: float | None
    generation_tokens_per_s_per_gpu: float | None


def compare(measured: ServerRates, theory: Theory) -> TheoryComparison:
    """Compare a server with theory."""
    prompt = measured.mean_prompt_tokens or _TYPICAL_PROMPT_TOKENS
    step = _step(measured, theory)
    tpot, ttft = measured.tpot.p50, measured.latencies.get(Latency.TTFT)
    # With speculative decoding a step gives several tokens.
    step_s = None if tpot is None else tpot * (measured.spec_accept_length or 1.0)
    ttft_floor = theory.prefill_s(prompt)
    computed = measured.computed_prompt_tokens_per_s
    flops, read = measured.estimated_flops_per_s_per_gpu, measured.estimated_read_bytes_per_s_per_gpu
    rate = measured.generation_tokens_per_s
    return TheoryComparison(
        theory=theory,
        prompt_tokens=prompt,
        prompt_tokens_measured=measured.mean_prompt_tokens is not None,
        ttft_floor_s=ttft_floor,
        tpot_floor_s=theory.tpot_floor_s,
        step=step,
        tpot_over_floor_ratio=None if tpot is None else tpot / theory.tpot_floor_s,
        tpot_over_step_ratio=None if step is None or step_s is None else step_s / step.total_s,
        ttft_over_floor_ratio=None if ttft is None or ttft.p50 is None else ttft.p50 / ttft_floor,
        mbu_ratio=None if step is None or not step_s else theory.memory_bandwidth_use_ratio(step, step_s),
        prefill_mfu_ratio=None if computed is None else theory.prefill_mfu_ratio(computed, prompt),
        estimated_mfu_ratio=None if flops is None else flops / theory.flops_per_s,
        estimated_mbu_ratio=None if read is None else read / theory.bandwidth_bytes_per_s,
        generation_tokens_per_s_per_gpu=None if rate is None else rate / theory.layout.gpus,
    )


def context_tokens(measured: ServerRates) -> float | None:
    """Mean tokens in the cache of a running request, or None if unknown."""
    now = measured.now
    if not now.running_requests:
        return None
    if now.kv_used_tokens:
        return now.kv_used_tokens / now.running_requests
    if now.kv_total_tokens and now.kv_cache_used_ratio:
        return now.kv_total_tokens * now.kv_cache_used_ratio / now.running_requests
    if measured.mean_prompt_tokens is None:
        return None
    # A running request has made half of its tokens on average.
    return measured.mean_prompt_tokens + (measured.mean_generation_tokens or 0.0) / 2


def _step(measured: ServerRates, theory: Theory) -> DecodeStep | None:
    running, context = measured.now.running_requests, context_tokens(measured)
    if not running or context is None:
        return None
    replicas = 1 if theory.layout.attention_dp else max(theory.layout.dp, 1)
    # Fewer requests than replicas keep only some of these busy.
    return theory.decode_step(max(1.0, running / replicas), context)
