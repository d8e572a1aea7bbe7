"""The /metrics of SGLang 0.3.6 to 0.5.23 as a snapshot. Names by version are in docs/serving.md."""

from __future__ import annotations

from collections.abc import Mapping

from perfd.analysis.serving import Counter, Engine, Latency, Length, Snapshot
from perfd_collectors.serving import metric_families
from perfd_collectors.serving.exposition_reader import Labels, Page

PREFIX = "sglang:"

_RUNNING, _QUEUED = "sglang:num_running_reqs", "sglang:num_queue_reqs"
_USAGES = (
    "sglang:token_usage",
    "sglang:full_token_usage",
    "sglang:swa_token_usage",
    "sglang:mamba_usage",
)
_USED, _CAPACITY = ("sglang:num_used_tokens",), ("sglang:max_total_num_tokens",)
_GENERATION_RATE, _HIT_RATE = ("sglang:gen_throughput",), ("sglang:cache_hit_rate",)
_ACCEPT_LENGTH, _ACCEPT_RATE = ("sglang:spec_accept_length",), ("sglang:spec_accept_rate",)
_GRAPH, _OCCUPANCY = ("sglang:is_cuda_graph",), ("sglang:fwd_occupancy",)
_REALTIME, _PASSES = ("sglang:realtime_tokens_total",), ("sglang:cuda_graph_passes_total",)
_COUNTERS: Mapping[Counter, tuple[str, ...]] = {
    Counter.PROMPT_TOKENS: ("sglang:prompt_tokens_total",),
    Counter.GENERATION_TOKENS: ("sglang:generation_tokens_total",),
    Counter.REQUESTS: ("sglang:num_requests_total",),
    Counter.ABORTED_REQUESTS: ("sglang:num_aborted_requests_total", "sglang:num_aborted_requests"),
    Counter.CACHE_HIT_TOKENS: ("sglang:cached_tokens_total",),
    Counter.CACHE_QUERY_TOKENS: ("sglang:prompt_tokens_total",),
    # The gauge of 0.4.10 to 0.5.1 is cumulative, too.
    Counter.PREEMPTIONS: ("sglang:num_retracted_requests_total", "sglang:total_retracted_reqs"),
    Counter.FORWARD_S: ("sglang:forward_execution_seconds_total", "sglang:gpu_execution_seconds_total"),
    Counter.IDLE_S: ("sglang:scheduler_idle_seconds_total",),
}
_ESTIMATES: Mapping[Counter, tuple[str, ...]] = {
    Counter.ESTIMATED_FLOPS: ("sglang:estimated_flops_per_gpu_total",),
    Counter.ESTIMATED_READ_BYTES: ("sglang:estimated_read_bytes_per_gpu_total",),
}
_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    Latency.TTFT: ("sglang:time_to_first_token_seconds",),
    Latency.ITL: ("sglang:inter_token_latency_seconds",),
    Latency.TPOT: (
        "sglang:request_time_per_output_token_seconds",
        "sglang:time_per_output_token_seconds",
    ),
    Latency.E2E: ("sglang:e2e_request_latency_seconds",),
    Latency.QUEUE: ("sglang:queue_time_seconds",),
    Length.PROMPT: ("sglang:prompt_tokens_histogram",),
    Length.GENERATION: ("sglang:generation_tokens_histogram",),
}
FAMILIES = frozenset(
    {
        _RUNNING,
        _QUEUED,
        *_USAGES,
        *_USED,
        *_CAPACITY,
        *_GENERATION_RATE,
        *_HIT_RATE,
        *_ACCEPT_LENGTH,
        *_ACCEPT_RATE,
        *_GRAPH,
        *_OCCUPANCY,
        *_REALTIME,
        *_PASSES,
        *(name for names in _COUNTERS.values() for name in names),
        *(name for names in _ESTIMATES.values() for name in names),
        *(name for names in _HISTOGRAMS.values() for name in names),
    }
)
"""The families that `snapshot` reads."""


def snapshot(page: Page) -> Snapshot:
    """The snapshot of an SGLang page; gauges that are stale while the server is idle are None."""
    running, queued = metric_families.by_replica(page, _RUNNING), metric_families.by_replica(page, _QUEUED)
    used = _fullest(page)
    idle = bool(running) and not any(running.values()) and not any(queued.values())
    occupancy = None if idle else metric_families.mean(page, _OCCUPANCY)
    return Snapshot(
        engine=Engine.SGLANG,
        model=metric_families.first_label(page, "model_name"),
        roles=metric_families.label(page, (_RUNNING,), "engine_type"),
        replicas=metric_families.loads(running, queued, used),
        running_requests=sum(running.values()) if running else None,
        queued_requests=sum(queued.values()) if queued else None,
        kv_cache_used_ratio=sum(used.values()) / len(used) if used else None,
        kv_used_tokens=metric_families.total(page, _USED),
        kv_total_tokens=metric_families.total(page, _CAPACITY) or None,
        reported_generation_tokens_per_s=None if idle else metric_families.total(page, _GENERATION_RATE),
        reported_prefix_hit_ratio=None if idle else metric_families.mean(page, _HIT_RATE),
        # Both are 0 without speculative decoding; with it, each step accepts at least its bonus token.
        spec_accept_length=None if idle else metric_families.mean(page, _ACCEPT_LENGTH) or None,
        spec_accept_ratio=None if idle else metric_families.mean(page, _ACCEPT_RATE) or None,
        cuda_graph_ratio=None if idle else metric_families.mean(page, _GRAPH),
        forward_occupancy_ratio=None if occupancy is None else occupancy / 100,
        counters=_counters(page),
        histograms=metric_families.histograms(page, _HISTOGRAMS),
        notes=metric_families.notes(page),
    )


def _fullest(page: Page) -> Mapping[str, float]:
    """Usage of the fullest pool by replica (full attention, sliding window, Mamba)."""
    used: dict[str, float] = {}
    for name in _USAGES:
        for replica, ratio in metric_families.by_replica(page, name).items():
            used[replica] = max(ratio, used.get(replica, 0.0))
    return used


def _counters(page: Page) -> Mapping[str, float]:
    found: dict[Counter, float | None] = {
        counter: metric_families.total(page, names) for counter, names in _COUNTERS.items()
    }
    if found[Counter.CACHE_HIT_TOKENS] is None:
        # The counter appears with the first hit (0.4.6 and later); older versions have none.
        found[Counter.CACHE_QUERY_TOKENS] = None
    found |= {counter: metric_families.mean(page, names) for counter, names in _ESTIMATES.items()}
    found[Counter.LIVE_GENERATION_TOKENS] = metric_families.total(page, _REALTIME, _mode("decode"))
    found[Counter.LIVE_PROMPT_TOKENS] = metric_families.total(page, _REALTIME, _mode("prefill_compute"))
    found[Counter.GRAPH_PASSES] = metric_families.total(page, _PASSES, _decode_pass(graph=True))
    found[Counter.EAGER_PASSES] = metric_families.total(page, _PASSES, _decode_pass(graph=False))
    return {counter: value for counter, value in found.items() if value is not None}


def _mode(mode: str) -> metric_families.Where:
    return lambda labels: labels.get("mode") == mode


def _decode_pass(*, graph: bool) -> metric_families.Where:
    def where(labels: Labels) -> bool:
        mode = labels.get("mode", "")
        return mode.startswith("decode") and mode.endswith("_none") != graph

    return where
