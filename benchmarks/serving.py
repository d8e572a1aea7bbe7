"""`python benchmarks/serving.py`: what reading a page of 2,000 lines once a second costs of a core.

With `--real DIRECTORY` it runs the metric code of SGLang itself instead: DIRECTORY holds one unpacked wheel a
release (`pip download --no-deps sglang==X && unzip`), of which only the collector's module is imported; each
value that it exposes must come back.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
import time
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from perfd_collectors.serving.exposition import PageReader
from perfd_collectors.serving.servers import WANTED, read_page

_LINES = 2000
_ROUNDS = 200
_MODULES = ("sglang/srt/observability/metrics_collector.py", "sglang/srt/metrics/collector.py")
_VALUES = {"num_running_reqs": 12, "num_queue_reqs": 3, "token_usage": 0.42, "num_used_tokens": 40960}


def page() -> bytes:
    """A page with as many lines as that of a server with several ranks."""
    lines = ["# TYPE sglang:inter_token_latency_seconds histogram"]
    rank = 0
    while len(lines) < _LINES:
        labels = f'model_name="m",engine_type="unified",tp_rank="0",dp_rank="{rank}"'
        bounds = [*(0.001 * 1.3**step for step in range(30)), float("inf")]
        lines += [
            f'sglang:inter_token_latency_seconds_bucket{{{labels},le="{bound}"}} {index}.0'
            for index, bound in enumerate(bounds)
        ]
        lines += [f"sglang:unknown_{index}{{{labels}}} {index}.0" for index in range(60)]
        lines.append(f"sglang:num_running_reqs{{{labels}}} 4.0")
        rank += 1
    return ("\n".join(lines) + "\n").encode()


def measure_cost() -> None:
    """Print the CPU time of a look."""
    reader, body = PageReader(WANTED), page()
    read_page(reader, body, "page")
    start = time.process_time()
    for _ in range(_ROUNDS):
        read_page(reader, body, "page")
    each = (time.process_time() - start) / _ROUNDS
    print(f"{_LINES} lines: {1000 * each:.2f} ms a look, {100 * each:.2f} % of a core once a second")


def run_release(wheel: Path) -> bool:
    """Expose the values through a release's own collector, read them back and print how that went."""
    from prometheus_client import REGISTRY, generate_latest  # noqa: PLC0415

    for name in [name for name in sys.modules if name.startswith("sglang")]:
        del sys.modules[name]
    for collector in {*REGISTRY._collector_to_names}:  # noqa: SLF001
        REGISTRY.unregister(collector)
    module = _load(wheel)
    labels = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    kind = getattr(module, "SchedulerMetricsCollector", None) or module.PrometheusMetricsCollector
    more = {"server_args": _Nothing()} if "server_args" in inspect.signature(kind).parameters else {}
    collector = kind(labels=labels, **more)
    for name, value in _VALUES.items():
        gauge = getattr(collector, name)
        gauge.labels(**labels).set(value)
    found = read_page(PageReader(WANTED), generate_latest(REGISTRY), wheel.name)
    expected = (12.0, 3.0, 0.42, 40960.0)
    seen = (found.running_requests, found.queued_requests, found.kv_cache_used_ratio, found.kv_used_tokens)
    print(f"{wheel.name}: {'same' if seen == expected else f'{seen} instead of {expected}'}")
    return seen == expected


def _load(wheel: Path) -> types.ModuleType:
    path = next(wheel / name for name in _MODULES if (wheel / name).exists())
    sys.meta_path[:] = [
        _Stubs(wheel),
        *(finder for finder in sys.meta_path if not isinstance(finder, _Stubs)),
    ]
    spec = importlib.util.spec_from_file_location("release_metrics", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["release_metrics"] = module
    spec.loader.exec_module(module)
    return module


class _Meta(type):
    """A class whose attributes are all there, as the members of an enumeration are."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def __iter__(cls) -> Iterator[str]:
        return iter(())


class _Nothing:
    """Arguments of a server, none of which is set but one without which no release makes its buckets."""

    prefill_delayer_max_delay_passes = 30

    def __getattr__(self, name: str) -> None:
        return None


class _Anything(types.ModuleType):
    """Stands for the parts of the engine that the metrics module imports and does not need here."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Meta(name, (_Nothing,), {"__init__": lambda *_, **__: None})


class _Stubs:
    """Finds a stand-in for each module of the engine and of torch but those that compute buckets."""

    def __init__(self, wheel: Path) -> None:
        self._wheel = wheel

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in {"sglang", "torch", "orjson", "zmq"}:
            return None
        real = self._wheel / (name.replace(".", "/") + ".py")
        if name.endswith(("metrics.utils", "observability.utils")):
            return importlib.util.spec_from_file_location(name, real)
        return importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def main() -> int:
    """Measure, or compare with releases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, metavar="DIRECTORY")
    args = parser.parse_args()
    if args.real is None:
        measure_cost()
        return 0
    return 0 if all(run_release(wheel) for wheel in sorted(args.real.iterdir()) if wheel.is_dir()) else 1


if __name__ == "__main__":
    sys.exit(main())
