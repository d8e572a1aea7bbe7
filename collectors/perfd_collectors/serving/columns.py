"""The columns of the collectors for serving engines, and a server's row of them, from its measured rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfd.analysis.serving import Counter, Distribution, Latency, ReplicaLoad, ServerRates, TheoryComparison
from perfd.collector import Column, ColumnKind
from perfd.model import Scope

_METRICS = "the server's /metrics, else its log"
_WINDOW = "increase over `window_s` of the server's /metrics"
_THEORY = "perfd.analysis.serving.serving_theory"
_UNREPORTED = "When the server's version does not report it, or the server does not respond."
_NO_WINDOW = "Before the second scrape, after a restart, or without observations in the window."
_NO_THEORY = (
    "Without GPU name and model configuration, from the server or the options `gpu` and `model_config_file`."
)


def _gauge(name: str, text: str, source: str = _METRICS, absent: str = _UNREPORTED) -> Column:
    return Column(scope=Scope.SERVER, name=name, help=text, source=source, absent=absent)


def _counter(name: str, text: str) -> Column:
    return Column(
        scope=Scope.SERVER,
        name=name,
        help=text,
        source="the server's /metrics",
        absent=_UNREPORTED,
        kind=ColumnKind.COUNTER,
    )


_QUANTILES = {"p50": "Median of", "p90": "90th percentile of", "p99": "99th percentile of", "mean": "Mean of"}
LATENCIES = {
    "ttft": "the time to the first token",
    "tpot": "the time between two output tokens of a request",
    "e2e": "the end-to-end latency of a request",
    "queue": "the time that a request waits for its prefill",
}

COLUMNS: Sequence[Column] = (
    _gauge(
        "up", "1 when the server responded with metrics, else 0.", "GET /metrics", "When only a log is read."
    ),
    _gauge("running_requests", "Running requests over all replicas."),
    _gauge("queued_requests", "Queued requests over all replicas."),
    _gauge(
        "kv_cache_used_ratio",
        "Share of the KV cache in use: the fullest pool of each replica, averaged over replicas.",
    ),
    _gauge("prefix_hit_ratio", "Share of prompt tokens found in the prefix cache."),
    _gauge("spec_accept_length_tokens", "Tokens per verification step of speculative decoding."),
    _gauge("cuda_graph_ratio", "Share of decode passes run as a CUDA graph."),
    _gauge("gpu_busy_ratio", "Share of the time with requests in which the GPU ran a forward pass.", _WINDOW),
    _gauge("replica_imbalance_ratio", "Requests of the busiest replica over the mean of all, minus 1."),
    _gauge("generation_tokens_per_s", "Tokens generated per second.", _WINDOW, _NO_WINDOW),
    _gauge("prompt_tokens_per_s", "Prompt tokens per second, including cached ones.", _WINDOW, _NO_WINDOW),
    *(
        _gauge(f"{name}_{statistic}_s", f"{words} {text}.", _WINDOW, _NO_WINDOW)
        for name, text in LATENCIES.items()
        for statistic, words in _QUANTILES.items()
    ),
    _gauge("tpot_floor_s", "Lower bound of the time per token of a single request.", _THEORY, _NO_THEORY),
    _gauge(
        "tpot_theory_s",
        "Lower bound of the time of a decode step at the current batch size.",
        _THEORY,
        _NO_THEORY,
    ),
    _gauge(
        "ttft_floor_s", "Lower bound of the time to compute a prompt of mean length.", _THEORY, _NO_THEORY
    ),
    _gauge(
        "memory_bandwidth_used_ratio",
        "Bytes that decode must read over the memory's peak bandwidth.",
        _THEORY,
        _NO_THEORY,
    ),
    _gauge(
        "prefill_mfu_ratio",
        "MFU of prefill: FLOPs of the prompts over the peak of all GPUs.",
        _THEORY,
        _NO_THEORY,
    ),
    _gauge("generation_tokens_per_gpu_per_s", "Tokens generated per second, per GPU.", _WINDOW, _NO_THEORY),
    _counter("finished_requests", "Requests finished since the server started."),
    _counter("prompt_tokens", "Prompt tokens since the server started."),
    _counter("generation_tokens", "Tokens generated since the server started."),
    _counter("preempted_requests", "Requests preempted for lack of KV cache, to be recomputed."),
)


_LATENCY = {"ttft": Latency.TTFT, "e2e": Latency.E2E, "queue": Latency.QUEUE}
_COUNTERS = {
    "finished_requests": Counter.REQUESTS,
    "prompt_tokens": Counter.PROMPT_TOKENS,
    "generation_tokens": Counter.GENERATION_TOKENS,
    "preempted_requests": Counter.PREEMPTIONS,
}


def row(measured: ServerRates, comparison: TheoryComparison | None) -> Mapping[str, float]:
    """The known columns of a server."""
    now = measured.now
    values: dict[str, float | None] = {
        "running_requests": now.running_requests,
        "queued_requests": now.queued_requests,
        "kv_cache_used_ratio": now.kv_cache_used_ratio,
        "prefix_hit_ratio": measured.prefix_hit_ratio,
        "spec_accept_length_tokens": measured.spec_accept_length,
        "cuda_graph_ratio": measured.cuda_graph_ratio,
        "gpu_busy_ratio": measured.gpu_busy_ratio,
        "replica_imbalance_ratio": _imbalance(now.replicas),
        "generation_tokens_per_s": measured.generation_tokens_per_s,
        "prompt_tokens_per_s": measured.prompt_tokens_per_s,
        **{name: now.counters.get(counter) for name, counter in _COUNTERS.items()},
    }
    # From a single snapshot they cover the server's whole lifetime, not the present.
    if measured.span_s is not None or now.latencies:
        for name in LATENCIES:
            found = measured.tpot if name == "tpot" else measured.latencies.get(_LATENCY[name])
            values |= _latency(name, found or Distribution())
    if comparison is not None:
        values |= {
            "tpot_floor_s": comparison.tpot_floor_s,
            "tpot_theory_s": None if comparison.step is None else comparison.step.total_s,
            "ttft_floor_s": comparison.ttft_floor_s if comparison.prompt_tokens_measured else None,
            "memory_bandwidth_used_ratio": comparison.mbu_ratio if measured.span_s is not None else None,
            "prefill_mfu_ratio": comparison.prefill_mfu_ratio,
            "generation_tokens_per_gpu_per_s": comparison.generation_tokens_per_s_per_gpu,
        }
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _latency(name: str, found: Distribution) -> Mapping[str, float | None]:
    return {
        f"{name}_p50_s": found.p50,
        f"{name}_p90_s": found.p90,
        f"{name}_p99_s": found.p99,
        f"{name}_mean_s": found.mean,
    }


def _imbalance(replicas: Sequence[ReplicaLoad]) -> float | None:
    loads = [load.running_requests for load in replicas if load.running_requests is not None]
    total = sum(loads)
    return max(loads) * len(loads) / total - 1 if len(loads) > 1 and total else None
