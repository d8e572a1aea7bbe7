"""What slows a server down, and the knob against it by the name that each engine gives it.

The names were looked up in the argument parsers of SGLang 0.4.6 to 0.5.23 and vLLM 0.6.6 to 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from perfd.analysis.serving.engine_snapshot import Engine


class ServingCause(StrEnum):
    """What slows a server down."""

    LARGE_BATCH = "large_batch"
    """Decode is slow because KV reads of many or long sequences dominate its steps."""
    PREFILL_INTERFERENCE = "prefill_interference"
    LONG_PROMPTS = "long_prompts"
    KV_MEMORY = "kv_memory"
    LOW_CACHE_HITS = "low_cache_hits"
    FEW_REQUESTS = "few_requests"
    CUDA_GRAPH = "cuda_graph"
    CPU_OVERHEAD = "cpu_overhead"
    QUEUEING = "queueing"
    REPLICA_IMBALANCE = "replica_imbalance"
    SPECULATION = "speculation"
    SLOW_DECODE = "slow_decode"
    """Decode is slower than its batch allows, and nothing else here explains it."""


_BOTH: Mapping[ServingCause, str] = {
    ServingCause.LONG_PROMPTS: (
        "Use the prefix cache (share the start of prompts), more tensor parallelism, or fp8: the hardware is "
        "at work."
    ),
    ServingCause.FEW_REQUESTS: (
        "Throughput per GPU needs more load: more concurrent clients, or fewer replicas."
    ),
    ServingCause.SLOW_DECODE: (
        "Trace a few decode steps (POST /start_profile): gaps between kernels are the CPU's, long all-reduces"
        " the links', long attention kernels the attention backend's."
    ),
}
_SGLANG: Mapping[ServingCause, str] = {
    ServingCause.LARGE_BATCH: (
        "For shorter TPOT allow fewer sequences (--max-running-requests) or halve the cache (--kv-cache-dtype"
        " fp8_e4m3); for the same TPOT at this load add replicas (--dp-size)."
    ),
    ServingCause.PREFILL_INTERFERENCE: (
        "Prefill in smaller pieces (--chunked-prefill-size, --enable-mixed-chunk), or on servers of its own "
        "(--disaggregation-mode)."
    ),
    ServingCause.KV_MEMORY: (
        "Give the cache more memory (--mem-fraction-static), halve its entries (--kv-cache-dtype fp8_e4m3), "
        "or shard the model further (--tp-size); against retractions raise --schedule-conservativeness."
    ),
    ServingCause.LOW_CACHE_HITS: (
        "If prompts share a start, schedule by it (--schedule-policy lpm) and route by it (the router's "
        "cache-aware policy); see that --disable-radix-cache is not set."
    ),
    ServingCause.CUDA_GRAPH: (
        "Capture graphs up to the batch that runs (--cuda-graph-max-bs; --cuda-graph-max-bs-decode since "
        "0.5.20), and see that --disable-cuda-graph is not set."
    ),
    ServingCause.CPU_OVERHEAD: (
        "The scheduler's CPU work is exposed: keep overlap scheduling on (no --disable-overlap-schedule), "
        "give the server's processes cores of their own, and stream less often (--stream-interval)."
    ),
    ServingCause.QUEUEING: (
        "Admit more at once (--max-running-requests, as far as the KV cache reaches), or add replicas."
    ),
    ServingCause.REPLICA_IMBALANCE: (
        "Balance by load (--load-balance-method total_tokens, before 0.5.9 minimum_tokens; or the router's "
        "policy)."
    ),
    ServingCause.SPECULATION: (
        "Draft fewer tokens (--speculative-num-steps, --speculative-num-draft-tokens), use a draft that fits "
        "the model, or turn speculative decoding off: above the critical batch it costs more than it saves."
    ),
}
_VLLM: Mapping[ServingCause, str] = {
    ServingCause.LARGE_BATCH: (
        "For shorter TPOT allow fewer sequences (--max-num-seqs) or halve the cache (--kv-cache-dtype fp8); "
        "for the same TPOT at this load add replicas (--data-parallel-size)."
    ),
    ServingCause.PREFILL_INTERFERENCE: (
        "Prefill in smaller pieces (--max-num-batched-tokens), or on servers of its own "
        "(--kv-transfer-config)."
    ),
    ServingCause.KV_MEMORY: (
        "Give the cache more memory (--gpu-memory-utilization), halve its entries (--kv-cache-dtype fp8), or "
        "shard the model further (--tensor-parallel-size)."
    ),
    ServingCause.LOW_CACHE_HITS: (
        "If prompts share a start, see that prefix caching is on (--enable-prefix-caching) and route requests"
        " with the same start to the same server."
    ),
    ServingCause.CUDA_GRAPH: (
        "Remove --enforce-eager, and capture graphs up to the batch that runs (--cudagraph-capture-sizes; "
        "--cuda-graph-sizes in 0.10)."
    ),
    ServingCause.CPU_OVERHEAD: (
        "The scheduler's CPU work is exposed: use --async-scheduling, and give the server's processes cores "
        "of their own."
    ),
    ServingCause.QUEUEING: (
        "Admit more at once (--max-num-seqs, as far as the KV cache reaches), or add replicas."
    ),
    ServingCause.REPLICA_IMBALANCE: (
        "Balance by load: let one API server distribute (--data-parallel-size), or route by requests in "
        "flight."
    ),
    ServingCause.SPECULATION: (
        "Draft fewer tokens (num_speculative_tokens in --speculative-config), use a draft that fits the "
        "model, or turn speculative decoding off: above the critical batch it costs more than it saves."
    ),
}


def knob(kind: ServingCause, engine: Engine) -> str:
    """What to turn."""
    return _BOTH.get(kind) or (_VLLM if engine is Engine.VLLM else _SGLANG)[kind]
