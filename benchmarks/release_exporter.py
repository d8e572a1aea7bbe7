"""Runs the metric code of one unpacked release of SGLang or vLLM and serves what it exposes.

Started by `benchmarks.serving_releases`, a process a release. Only the modules that make metrics are the
release's own; the rest of the engine, torch and whatever is not installed here are stand-ins. It prints one
line of JSON, the port and what was put in, and serves until its input ends.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

MODEL = "stand-in-8b"
_OWN = {
    "sglang": (
        "sglang.srt.metrics",
        "sglang.srt.observability.metrics_collector",
        "sglang.srt.observability.utils",
        "sglang.srt.observability.scheduler_stage_metrics",
        "sglang.srt.utils.gauge_histogram",
    ),
    "vllm": (
        "vllm.engine.metrics",
        "vllm.engine.metrics_types",
        "vllm.v1.engine",
        "vllm.v1.metrics",
        "vllm.v1.spec_decode.metrics",
    ),
}
"""The modules that are the release's own, with what is below them."""
_PACKAGES = {"sglang.srt.metrics", "vllm.v1.engine", "vllm.v1.metrics"}
_REQUESTS = ((512, 128, 256, 0.12, 2.0), (256, 64, 0, 0.3, 3.0))
"""Prompt, generated and cached tokens; seconds to the first token and to the end."""


class _Meta(type):
    """A class of which every attribute and subscript is there."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __iter__(cls) -> Iterator[object]:
        return iter(())

    def __getitem__(cls, _: object) -> object:
        return cls


class StandIn(metaclass=_Meta):
    """A value that can be called and asked for anything, and is false."""

    def __init__(self, *_: object, **__: object) -> None:
        """Takes whatever the real one takes."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *args: object, **_: object) -> object:
        # As a decorator it leaves what it decorates as it is.
        return args[0] if len(args) == 1 and callable(args[0]) else StandIn()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())


class Unset:
    """Arguments of a server: those that are given, and None for all others."""

    def __init__(self, **given: object) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        # What an environment variable or constant would be counts as unset.
        return False if name.isupper() else _Meta(name, (StandIn,), {})


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


class _Release(MetaPathFinder):
    """Finds the release's own modules in its folder, and a stand-in for all the others of the engine."""

    def __init__(self, engine: str, folder: Path) -> None:
        self._engine = engine
        self._folder = folder

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self._engine:
            return None
        if any(name == own or name.startswith(own + ".") for own in _OWN[self._engine]):
            path = self._folder / name.replace(".", "/")
            for file, below in ((path / "__init__.py", [str(path)]), (path.with_suffix(".py"), None)):
                if file.is_file():
                    return importlib.util.spec_from_file_location(
                        name, file, submodule_search_locations=below
                    )
        return ModuleSpec(name, _StandInLoader(), is_package=True)


class _Missing(MetaPathFinder):
    """Asked last: a stand-in for what is not installed here, such as torch."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in sys.stdlib_module_names
        return None if known else ModuleSpec(name, _StandInLoader(), is_package=True)


def call(target: object, name: str, **values: object) -> bool:
    """Call a method with what it takes of `values`; False when the release has none of that name."""
    method = getattr(target, name, None)
    if method is None:
        return False
    takes = inspect.signature(method).parameters
    method(**{key: value for key, value in values.items() if key in takes})
    return True


def sglang(folder: Path) -> Mapping[str, Any]:
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
    for prompt, generated, cached, ttft, e2e in _REQUESTS:
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


def vllm(folder: Path) -> Mapping[str, Any]:
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
        "model": MODEL,
        "running_requests": 25.0 if several else 12.0,
        "queued_requests": 7.0 if several else 3.0,
        "kv_cache_used_ratio": 0.42,
        "cache_hit_tokens": 512.0 if several else 256.0,
        "cache_query_tokens": 1536.0 if several else 768.0,
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
    made.time_to_first_tokens_iter = [ttft for *_, ttft, _ in _REQUESTS]
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
        for prompt, generated, _, _, e2e in _REQUESTS
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
        "model": MODEL,
        "running_requests": 12.0,
        "queued_requests": 3.0,
        "kv_cache_used_ratio": 0.42,
        "reported_prefix_hit_ratio": 0.31,
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


def main(arguments: Sequence[str]) -> None:
    """Expose one release until the input ends."""
    engine, folder = arguments[0], Path(arguments[1])
    with tempfile.TemporaryDirectory() as shared:
        if engine == "sglang":
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared
        sys.meta_path.insert(0, _Release(engine, folder))
        sys.meta_path.append(_Missing())
        expected = (sglang if engine == "sglang" else vllm)(folder)
        from prometheus_client import REGISTRY, CollectorRegistry, start_http_server  # noqa: PLC0415
        from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415

        registry = REGISTRY
        if engine == "sglang":
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        server, _ = start_http_server(0, addr="127.0.0.1", registry=registry)
        print(json.dumps({"port": server.server_port, "expected": expected}), flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
