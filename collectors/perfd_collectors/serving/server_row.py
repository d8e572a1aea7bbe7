"""A server's row in the table, from its measured rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfd.analysis.serving import Counter, Distribution, Latency, ReplicaLoad, ServerRates, TheoryComparison
from perfd_collectors.serving.columns import LATENCIES

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
