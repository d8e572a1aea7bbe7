"""The /metrics of vLLM 0.6.6 to 0.33, of V0 and V1, as a snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from perfd.analysis.serving import Counter, Engine, Latency, Length, Snapshot
from perfd_collectors.serving import metric_families
from perfd_collectors.serving.exposition_reader import Page

PREFIX = "vllm:"

_RUNNING, _QUEUED = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_GENERATION_RATE = ("vllm:avg_generation_throughput_toks_per_s",)
_PROMPT_RATE = ("vllm:avg_prompt_throughput_toks_per_s",)
_HIT_RATE = ("vllm:gpu_prefix_cache_hit_rate",)
_ACCEPT_RATE = ("vllm:spec_decode_draft_acceptance_rate",)
_COUNTERS: Mapping[Counter, tuple[str, ...]] = {
    Counter.PROMPT_TOKENS: ("vllm:prompt_tokens_total",),
    Counter.GENERATION_TOKENS: ("vllm:generation_tokens_total",),
    # V0 and V1 count tokens at each iteration.
    Counter.LIVE_GENERATION_TOKENS: ("vllm:generation_tokens_total",),
    Counter.REQUESTS: ("vllm:request_success_total",),
    Counter.CACHE_HIT_TOKENS: ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    Counter.CACHE_QUERY_TOKENS: ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    Counter.PREEMPTIONS: ("vllm:num_preemptions_total",),
    Counter.SPEC_DRAFTS: ("vllm:spec_decode_num_drafts_total",),
    Counter.SPEC_DRAFT_TOKENS: ("vllm:spec_decode_num_draft_tokens_total",),
    Counter.SPEC_ACCEPTED_TOKENS: ("vllm:spec_decode_num_accepted_tokens_total",),
}
_ESTIMATES: Mapping[Counter, tuple[str, ...]] = {
    Counter.ESTIMATED_FLOPS: ("vllm:estimated_flops_per_gpu_total",),
    Counter.ESTIMATED_READ_BYTES: ("vllm:estimated_read_bytes_per_gpu_total",),
}
_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    Latency.TTFT: ("vllm:time_to_first_token_seconds",),
    # V0 and early V1 observe `time_per_output_token` at each token: it is the inter-token latency.
    Latency.ITL: ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    Latency.TPOT: ("vllm:request_time_per_output_token_seconds",),
    Latency.E2E: ("vllm:e2e_request_latency_seconds",),
    Latency.QUEUE: ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    Length.PROMPT: ("vllm:request_prompt_tokens",),
    Length.GENERATION: ("vllm:request_generation_tokens",),
}
_SAMPLES = (
    _RUNNING,
    _QUEUED,
    *_USAGES,
    *_GENERATION_RATE,
    *_PROMPT_RATE,
    *_HIT_RATE,
    *_ACCEPT_RATE,
    *(name for names in (*_COUNTERS.values(), *_ESTIMATES.values()) for name in names),
    *(name for names in _HISTOGRAMS.values() for name in names),
)
FAMILIES = frozenset({*_SAMPLES, *(name.removesuffix("_total") for name in _SAMPLES)})
"""The families that `snapshot` reads, with and without the suffix, which depends on the version."""


def snapshot(page: Page) -> Snapshot:
    """The snapshot of a vLLM page."""
    running, queued = metric_families.by_replica(page, _RUNNING), metric_families.by_replica(page, _QUEUED)
    used = next(filter(None, (metric_families.by_replica(page, name) for name in _USAGES)), {})
    hit_ratio = metric_families.mean(page, _HIT_RATE)
    idle = bool(running) and not any(running.values()) and not any(queued.values())
    return Snapshot(
        engine=Engine.VLLM,
        model=metric_families.first_label(page, "model_name"),
        replicas=metric_families.loads(running, queued, used),
        running_requests=sum(running.values()) if running else None,
        queued_requests=sum(queued.values()) if queued else None,
        kv_cache_used_ratio=sum(used.values()) / len(used) if used else None,
        reported_generation_tokens_per_s=None if idle else metric_families.total(page, _GENERATION_RATE),
        reported_prompt_tokens_per_s=None if idle else metric_families.total(page, _PROMPT_RATE),
        # V0 reports -1 when prefix caching is off.
        reported_prefix_hit_ratio=hit_ratio if hit_ratio is not None and hit_ratio >= 0 else None,
        spec_accept_ratio=metric_families.mean(page, _ACCEPT_RATE),
        counters=_counters(page),
        histograms=metric_families.histograms(page, _HISTOGRAMS),
        notes=metric_families.notes(page),
    )


def _counters(page: Page) -> Mapping[str, float]:
    found = {counter: metric_families.total(page, names) for counter, names in _COUNTERS.items()}
    found |= {counter: metric_families.mean(page, names) for counter, names in _ESTIMATES.items()}
    return {counter: value for counter, value in found.items() if value is not None}
