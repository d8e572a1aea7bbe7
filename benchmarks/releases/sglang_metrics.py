"""What SGLang's metric code exposes of two schedulers and one tokenizer, and what was put in."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.releases.stand_ins import MODEL, REQUESTS, Unset, call

OWN_MODULES = (
    "sglang.srt.metrics",
    "sglang.srt.observability.metrics_collector",
    "sglang.srt.observability.utils",
    "sglang.srt.observability.scheduler_stage_metrics",
    "sglang.srt.utils.gauge_histogram",
)
"""The modules that are the release's own, with what is below them."""


def expose(folder: Path) -> Mapping[str, Any]:
    """Two data-parallel schedulers, each a process as in a server, and one tokenizer."""
    new = folder / "sglang/srt/observability/metrics_collector.py"
    name = "sglang.srt.observability.metrics_collector" if new.is_file() else "sglang.srt.metrics.collector"
    # Where 0.5.20 and later keep the server's arguments.
    context = importlib.import_module("sglang.srt.runtime_context")
    for part in ("observability", "schedule", "serving", "disagg"):
        setattr(context, f"get_{part}", _arguments)
    module = importlib.import_module(name)
    for rank in range(2):
        child = os.fork()
        if child == 0:
            _scheduler(module, rank)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(f"a scheduler of {folder.name} failed")
    return _expected_of_schedulers(module) | _tokenizer(module)


def _arguments() -> Unset:
    return Unset(prefill_delayer_max_delay_passes=30, collect_tokens_histogram=True)


def _scheduler(module: types.ModuleType, rank: int) -> None:
    labels = {"model_name": MODEL}
    counts = getattr(module, "QueueCount", None)
    labels |= dict.fromkeys(("tp_rank", "pp_rank", "moe_ep_rank"), "0")
    labels |= {"engine_type": "unified", "dp_rank": str(rank)}
    if counts is not None:
        labels["priority"] = ""
    kind = module.SchedulerMetricsCollector
    takes = inspect.signature(kind).parameters
    collector = kind(labels=labels, **({"server_args": _arguments()} if "server_args" in takes else {}))
    running: Any = 12 + rank
    queued: Any = 3 + rank
    if counts is not None:
        running, queued = (
            counts(total=total, by_priority={0: 1, 1: total - 1}) for total in (running, queued)
        )
    stats = module.SchedulerStats()
    for field in dataclasses.fields(stats):
        if type(getattr(stats, field.name)) in {int, float}:
            setattr(stats, field.name, 0.25)
    for key, value in _stats(rank).items():
        if hasattr(stats, key):
            setattr(stats, key, value)
    stats.num_running_reqs, stats.num_queue_reqs = running, queued
    collector.log_stats(stats)
    call(collector, "increment_realtime_tokens", dp_cooperation_info=None, prefill_compute_tokens=400,
         prefill_cache_tokens=100, decode_tokens=90)  # fmt: skip
    for graph in (True, True, True, False):
        call(collector, "increment_cuda_graph_pass", value=graph)
        call(collector, "increment_decode_cuda_graph_pass", value=graph)
    call(collector, "increment_retracted_reqs", num_retracted_reqs=2, num_retracted_input_tokens=1,
         num_retracted_output_tokens=1)  # fmt: skip
    for name in ("increment_gpu_execution_seconds", "increment_forward_execution_seconds"):
        call(collector, name, category="decode", t=1.5, dp_cooperation_info=None)
    call(collector, "increment_scheduler_idle_seconds", t=0.5)
    call(collector, "increment_estimated_perf", num_flops_per_gpu=1e15, num_read_bytes_per_gpu=3e12)
    call(collector, "observe_queue_time", latency=0.25)


def _stats(rank: int) -> Mapping[str, float]:
    return {
        "num_used_tokens": 40960 + rank,
        "token_usage": 0.42,
        "gen_throughput": 1834.5,
        "cache_hit_rate": 0.31,
        "spec_accept_length": 2.5,
        "spec_accept_rate": 0.5,
    }


def _expected_of_schedulers(module: types.ModuleType) -> dict[str, Any]:
    kind, stats = module.SchedulerMetricsCollector, module.SchedulerStats()
    expected: dict[str, Any] = {
        "model": MODEL,
        "running_requests": 25.0,
        "queued_requests": 7.0,
        "kv_cache_used_ratio": 0.42,
        "kv_used_tokens": 81921.0,
        "reported_generation_tokens_per_s": 3669.0,
        "reported_prefix_hit_ratio": 0.31,
    }
    if hasattr(stats, "spec_accept_length"):
        expected["spec_accept_length"] = 2.5
    if hasattr(kind, "increment_realtime_tokens"):
        expected |= {"live_generation_tokens": 180.0, "live_prompt_tokens": 800.0}
    if hasattr(kind, "increment_cuda_graph_pass") or hasattr(kind, "increment_decode_cuda_graph_pass"):
        expected |= {"graph_passes": 6.0, "eager_passes": 2.0}
    if hasattr(kind, "increment_retracted_reqs"):
        expected["preemptions"] = 4.0
    if hasattr(kind, "increment_gpu_execution_seconds") or hasattr(
        kind, "increment_forward_execution_seconds"
    ):
        expected["forward_s"] = 3.0
    if hasattr(kind, "increment_scheduler_idle_seconds"):
        expected["idle_s"] = 1.0
    if hasattr(kind, "increment_estimated_perf"):
        expected |= {"estimated_flops": 1e15, "estimated_read_bytes": 3e12}
    if hasattr(kind, "observe_queue_time"):
        expected["queue"] = [2.0, 0.5]
    return expected


def _tokenizer(module: types.ModuleType) -> dict[str, Any]:
    labels = {"model_name": MODEL}
    kind = module.TokenizerMetricsCollector
    takes = inspect.signature(kind).parameters
    collector = kind(labels=labels, **({"server_args": _arguments()} if "server_args" in takes else {}))
    for prompt, generated, cached, ttft, e2e in REQUESTS:
        call(collector, "observe_one_finished_request", labels=labels, prompt_tokens=prompt,
             generation_tokens=generated, cached_tokens=cached, e2e_latency=e2e, has_grammar=False,
             retraction_count=0)  # fmt: skip
        call(collector, "observe_e2e_request_latency", value=e2e)
        call(collector, "observe_time_to_first_token", labels=labels, value=ttft, stream=True)
    expected: dict[str, Any] = {
        "prompt_tokens": 768.0,
        "generation_tokens": 192.0,
        "ttft": [2.0, 0.42],
        "e2e": [2.0, 5.0],
    }
    if hasattr(collector, "num_requests_total"):
        expected["requests"] = 2.0
    if "cached_tokens" in inspect.signature(collector.observe_one_finished_request).parameters:
        expected |= {"cache_hit_tokens": 256.0, "cache_query_tokens": 768.0}
    if call(collector, "observe_inter_token_latency", labels=labels, internval=0.048, num_new_tokens=4):
        expected["itl"] = [4.0, 0.048]
    elif call(collector, "observe_time_per_output_token", value=0.012):
        expected["tpot"] = [1.0, 0.012]
    return expected
