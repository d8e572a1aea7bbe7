"""Runs the metric code of one unpacked release of SGLang or vLLM and serves what it exposes.

Started by `benchmarks.serving_releases`, a process a release. Only the modules that make metrics are the
release's own; the rest of the engine, torch and whatever is not installed here are stand-ins. It prints one
line of JSON, the port and what was put in, and serves until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.releases import sglang_metrics, vllm_metrics
from benchmarks.releases.stand_ins import Missing, Release


def main(arguments: Sequence[str]) -> None:
    """Expose one release until the input ends."""
    engine, folder = arguments[0], Path(arguments[1])
    with tempfile.TemporaryDirectory() as shared:
        if engine == "sglang":
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared
        code = sglang_metrics if engine == "sglang" else vllm_metrics
        sys.meta_path.insert(0, Release(engine, folder, code.OWN_MODULES))
        sys.meta_path.append(Missing())
        expected = code.expose(folder)
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
