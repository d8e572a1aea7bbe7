"""The catalog of the collectors of serving engines: one row a server."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.collector import Column, ColumnKind
from perfd.model import Scope

_METRICS = "the server's /metrics, else its log"
_WINDOW = "increase over `window_s` of the server's /metrics"
_THEORY = "perfd.analysis.serving.serving_theory"
_UNSAID = "The server's version does not tell it, or it does not answer."
_NO_LOOK = "Before the second look, after a restart, or when nothing was observed in the window."
_NO_THEORY = "Without the option `gpu` or a `model_config`, where the server does not say them."


def _gauge(name: str, text: str, source: str = _METRICS, absent: str = _UNSAID) -> Column:
    return Column(scope=Scope.SERVER, name=name, help=text, source=source, absent=absent)


def _counter(name: str, text: str) -> Column:
    return Column(
        scope=Scope.SERVER,
        name=name,
        help=text,
        source="the server's /metrics",
        absent=_UNSAID,
        kind=ColumnKind.COUNTER,
    )


_QUANTILES = {"p50": "Median of", "p90": "90th percentile of", "p99": "99th percentile of", "mean": "Mean of"}
LATENCIES = {
    "ttft": "the time to the first token",
    "tpot": "the time between two tokens of a request",
    "e2e": "the time of a whole request",
    "queue": "the time that a request waits for its first prefill",
}

COLUMNS: Sequence[Column] = (
    _gauge("up", "1 when the server answered with metrics, else 0.", "GET /metrics", "Only a log is read."),
    _gauge("running_requests", "Requests that are computed now, over all replicas."),
    _gauge("queued_requests", "Requests that wait, over all replicas."),
    _gauge("kv_cache_used_ratio", "Share of the KV cache in use; mean over replicas of the fullest pool."),
    _gauge("prefix_hit_ratio", "Share of prompt tokens that came from the prefix cache."),
    _gauge("spec_accept_length_tokens", "Tokens that a verification step of speculative decoding gives."),
    _gauge("cuda_graph_ratio", "Share of decode passes that ran as a CUDA graph."),
    _gauge("gpu_busy_ratio", "Share of the time with work in which the GPU ran a forward pass.", _WINDOW),
    _gauge("replica_imbalance_ratio", "Requests of the busiest replica over the mean of all, minus 1."),
    _gauge("generation_tokens_per_s", "Tokens generated per second.", _WINDOW, _NO_LOOK),
    _gauge("prompt_tokens_per_s", "Prompt tokens per second, those from the cache too.", _WINDOW, _NO_LOOK),
    *(
        _gauge(f"{name}_{statistic}_s", f"{words} {text}.", _WINDOW, _NO_LOOK)
        for name, text in LATENCIES.items()
        for statistic, words in _QUANTILES.items()
    ),
    _gauge("tpot_floor_s", "Least time per token of a lone request, by theory.", _THEORY, _NO_THEORY),
    _gauge("tpot_theory_s", "Least time of a decode step at the batch that runs.", _THEORY, _NO_THEORY),
    _gauge("ttft_floor_s", "Least time to compute a prompt of mean length.", _THEORY, _NO_THEORY),
    _gauge(
        "memory_bandwidth_used_ratio",
        "Bytes that decode must read over what memory gives.",
        _THEORY,
        _NO_THEORY,
    ),
    _gauge("prefill_mfu_ratio", "FLOPs of the prompts over the peak of all GPUs.", _THEORY, _NO_THEORY),
    _gauge("generation_tokens_per_gpu_per_s", "Tokens generated per second and GPU.", _WINDOW, _NO_THEORY),
    _counter("finished_requests", "Requests finished since the server started."),
    _counter("prompt_tokens", "Prompt tokens since the server started."),
    _counter("generation_tokens", "Tokens generated since the server started."),
    _counter("preempted_requests", "Requests thrown out for want of KV cache, to be computed again."),
)
