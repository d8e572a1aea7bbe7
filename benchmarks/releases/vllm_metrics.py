"""What vLLM's metric code exposes of one or two engines, and what was put in."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.releases.stand_ins import MODEL, REQUESTS, Unset, call

OWN_MODULES = (
    "vllm.engine.metrics",
    "vllm.engine.metrics_types",
    "vllm.v1.engine",
    "vllm.v1.metrics",
    "vllm.v1.spec_decode.metrics",
)
"""The modules that are the release's own, with what is below them."""
_EXPECTED: Mapping[str, Any] = {
    "model": MODEL,
    "kv_cache_used_ratio": 0.42,
    "prompt_tokens": 768.0,
    "generation_tokens": 192.0,
    "preemptions": 2.0,
    "requests": 2.0,
    "ttft": [2.0, 0.42],
    "itl": [2.0, 0.024],
    "e2e": [2.0, 5.0],
    "queue": [2.0, 0.5],
    "prompt_length": [2.0, 768.0],
    "generation_length": [2.0, 192.0],
}
"""What both of its engines expose alike."""


def expose(folder: Path) -> Mapping[str, Any]:
    """Two engines where the release logs for several, else one."""
    if not (folder / "vllm/v1/metrics/loggers.py").is_file():
        return _vllm_v0()
    loggers = importlib.import_module("vllm.v1.metrics.loggers")
    stats = importlib.import_module("vllm.v1.metrics.stats")
    finish = importlib.import_module("vllm.v1.engine").FinishReason
    config = Unset(
        observability_config=Unset(),
        model_config=Unset(served_model_name=MODEL, max_model_len=8192),
        cache_config=Unset(num_gpu_blocks=100, metrics_info=lambda: {"block_size": "16"}),
    )
    several = "engine_indexes" in inspect.signature(loggers.PrometheusStatLogger).parameters
    logger = loggers.PrometheusStatLogger(config, **({"engine_indexes": [0, 1]} if several else {}))
    for engine in range(2 if several else 1):
        scheduler = _scheduler_stats(stats, engine)
        call(logger, "record", scheduler_stats=scheduler, engine_idx=engine,
             iteration_stats=_iteration(stats, finish.STOP) if engine == 0 else None)  # fmt: skip
    return {
        **_EXPECTED,
        "running_requests": 25.0 if several else 12.0,
        "queued_requests": 7.0 if several else 3.0,
        "cache_hit_tokens": 512.0 if several else 256.0,
        "cache_query_tokens": 1536.0 if several else 768.0,
    }


def _scheduler_stats(stats: types.ModuleType, engine: int) -> object:
    made = stats.SchedulerStats(prefix_cache_stats=stats.PrefixCacheStats())
    given = {"num_running_reqs": 12 + engine, "num_waiting_reqs": 3 + engine}
    usage = "kv_cache_usage" if hasattr(made, "kv_cache_usage") else "gpu_cache_usage"
    for key, value in {**given, usage: 0.42}.items():
        setattr(made, key, value)
    made.prefix_cache_stats.queries, made.prefix_cache_stats.hits = 768, 256
    return made


def _iteration(stats: types.ModuleType, stopped: object) -> object:
    made = stats.IterationStats()
    if hasattr(made, "prompt_token_stats"):
        made.prompt_token_stats.total = 768
    else:
        made.num_prompt_tokens = 768
    made.num_generation_tokens, made.num_preempted_reqs = 192, 2
    made.time_to_first_tokens_iter = [ttft for *_, ttft, _ in REQUESTS]
    inter = "inter_token_latencies_iter"
    setattr(made, inter if hasattr(made, inter) else "time_per_output_tokens_iter", [0.012, 0.012])
    takes = inspect.signature(stats.FinishedRequestStats).parameters
    made.finished_requests = [
        stats.FinishedRequestStats(
            **{
                key: value
                for key, value in {
                    "finish_reason": stopped,
                    "e2e_latency": e2e,
                    "num_prompt_tokens": prompt,
                    "num_generation_tokens": generated,
                    "max_tokens_param": 1024,
                    "queued_time": 0.25,
                    "mean_time_per_output_token": 0.012,
                }.items()
                if key in takes
            }
        )
        for prompt, generated, _, _, e2e in REQUESTS
    ]
    return made


def _vllm_v0() -> Mapping[str, Any]:
    metrics, kinds = (importlib.import_module(f"vllm.engine.{name}") for name in ("metrics", "metrics_types"))
    config = Unset(
        model_config=Unset(max_model_len=8192), compilation_config=Unset(capture_sizes=[1, 2, 4, 8])
    )
    logger = metrics.PrometheusStatLogger(1e9, {"model_name": MODEL}, config)
    lists: Mapping[str, object] = {field.name: [] for field in dataclasses.fields(kinds.Stats)}
    given: Mapping[str, object] = {
        **lists,
        "now": 1.0,
        "num_running_sys": 12,
        "num_waiting_sys": 3,
        "num_swapped_sys": 0,
        "gpu_cache_usage_sys": 0.42,
        "cpu_cache_usage_sys": 0.0,
        "cpu_prefix_cache_hit_rate": -1.0,
        "gpu_prefix_cache_hit_rate": 0.31,
        "num_prompt_tokens_iter": 768,
        "num_generation_tokens_iter": 192,
        "num_tokens_iter": 960,
        "num_preemption_iter": 2,
        "time_to_first_tokens_iter": [0.12, 0.3],
        "time_per_output_tokens_iter": [0.012, 0.012],
        "time_e2e_requests": [2.0, 3.0],
        "time_queue_requests": [0.25, 0.25],
        "num_prompt_tokens_requests": [512, 256],
        "num_generation_tokens_requests": [128, 64],
        "finished_reason_requests": ["stop", "length"],
        "max_lora": "0",
        "spec_decode_metrics": None,
    }
    logger.log(kinds.Stats(**given))
    return {
        **_EXPECTED,
        "running_requests": 12.0,
        "queued_requests": 3.0,
        "reported_prefix_hit_ratio": 0.31,
    }
