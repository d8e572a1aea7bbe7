"""What to do about each cause that slows a server down, with the options of each engine.

The names were looked up in the argument parsers of SGLang 0.4.6 to 0.5.23 and vLLM 0.6.6 to 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfd.analysis.findings import Kind
from perfd.analysis.serving.engine_snapshot import Engine

_BOTH: Mapping[Kind, str] = {
    Kind.LONG_PROMPTS: (
        "Use the prefix cache (share the start of prompts), more tensor parallelism, or fp8: the hardware is "
        "at work."
    ),
    Kind.FEW_REQUESTS: ("Throughput per GPU needs more load: more concurrent clients, or fewer replicas."),
    Kind.SLOW_DECODE: (
        "Trace a few decode steps (POST /start_profile): gaps between kernels are the CPU's, long all-reduces"
        " the links', long attention kernels the attention backend's."
    ),
}
_SGLANG: Mapping[Kind, str] = {
    Kind.LARGE_BATCH: (
        "For shorter TPOT allow fewer sequences (--max-running-requests) or halve the cache (--kv-cache-dtype"
        " fp8_e4m3); for the same TPOT at this load add replicas (--dp-size)."
    ),
    Kind.PREFILL_INTERFERENCE: (
        "Prefill in smaller pieces (--chunked-prefill-size, --enable-mixed-chunk), or on separate servers "
        "(--disaggregation-mode)."
    ),
    Kind.KV_MEMORY: (
        "Give the cache more memory (--mem-fraction-static), halve its entries (--kv-cache-dtype fp8_e4m3), "
        "or shard the model further (--tp-size); against retractions raise --schedule-conservativeness."
    ),
    Kind.UNUSED_KV_MEMORY: (
        "Raise the limit on running requests (--max-running-requests) if TPOT allows it. If the cache stays"
        " empty, shrink it (--mem-fraction-static) or run another replica on its GPU."
    ),
    Kind.LOW_CACHE_HITS: (
        "If prompts share a start, schedule by it (--schedule-policy lpm) and route by it (the router's "
        "cache-aware policy); see that --disable-radix-cache is not set."
    ),
    Kind.SLOW_PREFILL: (
        "Compute more of a prompt at a time (--chunked-prefill-size, --max-prefill-tokens) if TPOT allows"
        " it, or prefill on separate servers (--disaggregation-mode)."
    ),
    Kind.CUDA_GRAPH: (
        "Capture graphs up to the batch that runs (--cuda-graph-max-bs; --cuda-graph-max-bs-decode since "
        "0.5.20), and see that --disable-cuda-graph is not set."
    ),
    Kind.CPU_OVERHEAD: (
        "The scheduler's CPU work is exposed: keep overlap scheduling on (no --disable-overlap-schedule), "
        "give the server's processes cores of their own, and stream less often (--stream-interval)."
    ),
    Kind.QUEUEING: (
        "Admit more at once (--max-running-requests, up to what the KV cache holds), or add replicas."
    ),
    Kind.REPLICA_IMBALANCE: (
        "Balance by load (--load-balance-method total_tokens, before 0.5.9 minimum_tokens; or the router's "
        "policy)."
    ),
    Kind.SPECULATION: (
        "Draft fewer tokens (--speculative-num-steps, --speculative-num-draft-tokens), use a draft that fits "
        "the model, or turn speculative decoding off: above the critical batch it costs more than it saves."
    ),
}
_VLLM: Mapping[Kind, str] = {
    Kind.LARGE_BATCH: (
        "For shorter TPOT allow fewer sequences (--max-num-seqs) or halve the cache (--kv-cache-dtype fp8); "
        "for the same TPOT at this load add replicas (--data-parallel-size)."
    ),
    Kind.PREFILL_INTERFERENCE: (
        "Prefill in smaller pieces (--max-num-batched-tokens), or on separate servers (--kv-transfer-config)."
    ),
    Kind.KV_MEMORY: (
        "Give the cache more memory (--gpu-memory-utilization), halve its entries (--kv-cache-dtype fp8), or "
        "shard the model further (--tensor-parallel-size)."
    ),
    Kind.UNUSED_KV_MEMORY: (
        "Raise the limit on running requests (--max-num-seqs) if TPOT allows it. If the cache stays empty,"
        " shrink it (--gpu-memory-utilization) or run another replica on its GPU."
    ),
    Kind.LOW_CACHE_HITS: (
        "If prompts share a start, see that prefix caching is on (--enable-prefix-caching) and route requests"
        " with the same start to the same server."
    ),
    Kind.SLOW_PREFILL: (
        "Compute more of a prompt at a time (--max-num-batched-tokens) if TPOT allows it, or prefill on"
        " separate servers (--kv-transfer-config)."
    ),
    Kind.CUDA_GRAPH: (
        "Remove --enforce-eager, and capture graphs up to the batch that runs (--cudagraph-capture-sizes; "
        "--cuda-graph-sizes in 0.10)."
    ),
    Kind.CPU_OVERHEAD: (
        "The scheduler's CPU work is exposed: use --async-scheduling, and give the server's processes cores "
        "of their own."
    ),
    Kind.QUEUEING: ("Admit more at once (--max-num-seqs, up to what the KV cache holds), or add replicas."),
    Kind.REPLICA_IMBALANCE: (
        "Balance by load: let one API server distribute (--data-parallel-size), or route by requests in "
        "flight."
    ),
    Kind.SPECULATION: (
        "Draft fewer tokens (num_speculative_tokens in --speculative-config), use a draft that fits the "
        "model, or turn speculative decoding off: above the critical batch it costs more than it saves."
    ),
}


SERVING_KINDS = (*_BOTH, *_SGLANG)
"""Every kind that a server's findings can have."""


def advice_for(kind: Kind, engine: Engine) -> str:
    """What to do about a finding, by the names of the engine's options."""
    return _BOTH.get(kind) or (_VLLM if engine is Engine.VLLM else _SGLANG)[kind]
