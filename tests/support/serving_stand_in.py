"""A stand-in for an SGLang or vLLM server that profiles itself as its version does.

It was written after the sources of SGLang 0.4.3 to 0.5.23 and vLLM 0.6.6 to 0.33: which paths there are, what
a body is good for, where traces go and how their files are called, and what a server says when it is asked
twice. Its traces have the form of `torch.profiler`, with the ranges that the version names steps by.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfd.net.http import Handler, HttpServer, Request, Response
from tests.support.traces import MATMUL, Op, kineto

_STEP_US = 12_000.0


class StandInServer:
    """Serves on loopback until `close`. `steps` lets it work; without them it is idle."""

    def __init__(
        self,
        engine: str,
        version: str,
        traces: Path,
        *,
        profiler: bool = True,
        ranks: int = 1,
        page: bytes = b"",
        authorization: str | None = None,
        documented: bool = True,
    ) -> None:
        """`engine` is `sglang` or `vllm`; `traces` is where it was launched to write them."""
        self.engine = engine
        self.version = version
        self.page = page
        self.asked: list[tuple[str, Any]] = []
        """Path and body of each request to profile."""
        self._traces = traces
        self._profiler = profiler
        self._ranks = ranks
        self._authorization = authorization
        self._documented = documented
        self._changed = threading.Condition()
        self._profile: Mapping[str, Any] | None = None
        self._left: int | None = None
        self._written = 0
        self._http = HttpServer("127.0.0.1:0", {path: self._guarded(path) for path in self._paths()})

    @property
    def address(self) -> str:
        """`host:port`."""
        return self._http.address

    @property
    def profiling(self) -> bool:
        """Whether a profile runs now."""
        with self._changed:
            return self._profile is not None

    def steps(self, count: int) -> None:
        """Run forward passes; a profile that counts them ends by itself."""
        with self._changed:
            if self._left is not None:
                self._left -= count
                if self._left <= 0:
                    self._write()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop serving."""
        with self._changed:
            self._left = 0
            self._changed.notify_all()
        self._http.close()

    def _paths(self) -> Mapping[str, Handler]:
        paths: dict[str, Handler] = {
            "/health": lambda _: Response(body=b""),
            "/metrics": lambda _: Response(body=self.page, content_type="text/plain; version=0.0.4"),
        }
        if self.engine == "sglang":
            info = "/server_info" if self._at_least(0, 5, 9) else "/get_server_info"
            paths |= {info: self._info, "/get_server_info": self._info}
        else:
            paths["/version"] = self._info
        if self.engine == "sglang" or self._profiler:
            paths |= {"/start_profile": self._start, "/stop_profile": self._stop}
        if self._documented:
            paths["/openapi.json"] = self._describe
        return paths

    def _guarded(self, path: str) -> Handler:
        handler = self._paths()[path]

        def answer(request: Request) -> Response:
            closed = self._authorization is not None and path not in {"/health", "/metrics"}
            if closed and request.headers.get("authorization") != self._authorization:
                return Response(status=401, body=b'{"error": "Unauthorized"}')
            if path.endswith("_profile") and request.method == "GET" and self.engine == "vllm":
                return Response(status=405, body=b'{"detail": "Method Not Allowed"}')
            return handler(request)

        return answer

    def _describe(self, _: Request) -> Response:
        return Response(body=json.dumps({"paths": {path: {} for path in self._paths()}}).encode())

    def _info(self, _: Request) -> Response:
        said: dict[str, Any] = {"version": self.version}
        if self.engine == "sglang":
            said |= {"model_path": "m", "tp_size": self._ranks, "dp_size": 1, "pp_size": 1, "nnodes": 1}
        return Response(body=json.dumps(said).encode())

    def _start(self, request: Request) -> Response:
        said = json.loads(request.body) if request.body else {}
        with self._changed:
            self.asked.append(("/start_profile", said))
            if self._profile is not None:
                return Response(status=500, body=b"Internal Server Error")
            self._profile = said if self._takes_body() else {}
            counted = self._profile.get("num_steps" if self.engine == "sglang" else "max_iterations")
            self._left = counted if isinstance(counted, int) else None
            if self.engine == "sglang" and not self._at_least(0, 4, 10):
                # 0.4.6 answers only when the steps are over.
                self._changed.wait_for(lambda: not self._left)
        return Response(body=b"Start profiling.\n" if self.engine == "sglang" else b"")

    def _stop(self, _: Request) -> Response:
        with self._changed:
            self.asked.append(("/stop_profile", None))
            if self._profile is None and self.engine == "sglang" and self._at_least(0, 4, 10):
                return Response(status=500, body=b"Internal Server Error")
            self._write()
        words = b"Stop profiling. This will take some time.\n" if self.engine == "sglang" else b""
        return Response(body=words)

    def _takes_body(self) -> bool:
        return self._at_least(0, 4, 4) if self.engine == "sglang" else self._at_least(0, 33)

    def _write(self) -> None:
        if self._profile is None:
            return
        folder = Path(str(self._profile.get("output_dir") or self._traces))
        self._profile, self._left = None, None
        self._written += 1
        for rank in range(self._ranks):
            name = (
                f"1790857026.{self._written}-TP-{rank}.trace.json.gz"
                if self.engine == "sglang"
                else f"rank{rank}.179085702600000{self._written}.pt.trace.json.gz"
            )
            trace = serving_trace(self.engine, self.version, rank=rank, ranks=self._ranks)
            (folder / name).write_bytes(gzip.compress(json.dumps(trace).encode()))
        if self.engine == "vllm":
            frontend = folder / f"host_7.async_llm.179085702600000{self._written}.pt.trace.json.gz"
            frontend.write_bytes(gzip.compress(json.dumps(kineto([], rank=None)).encode()))

    def _at_least(self, *version: int) -> bool:
        numbers = tuple(int(part) for part in self.version.split(".")[:3] if part.isdigit())
        return numbers >= version


def serving_trace(engine: str, version: str, *, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """A rank's trace of two prefills and six decode steps of 8 requests, each 10 ms of work in 12 ms."""
    operations, ranges = [], []
    for index in range(8):
        start = index * _STEP_US
        prefill = index in {0, 4}
        launched = start + 200
        operations.append(Op(MATMUL, start + 300, start + 10_300, launched=launched))
        ranges.append((_step_name(engine, version, prefill=prefill), start + 100, start + 1000))
    return kineto(
        operations,
        ranges=ranges,
        rank=rank if ranks > 1 else None,
        world_size=ranks,
        captured=(0.0, 8 * _STEP_US),
    )


def _step_name(engine: str, version: str, *, prefill: bool) -> str:
    """SGLang names steps since 0.5.12, vLLM since 0.15; before, a range says only that it is a step."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if engine == "sglang":
        if numbers < (0, 5, 12):
            return "run_batch"
        return "step[EXTEND bs=1 toks=2048]" if prefill else "step[DECODE bs=8]"
    if numbers < (0, 15):
        return "Forward"
    return "execute_context_1(2048)_generation_0(0)" if prefill else "execute_context_0(0)_generation_8(8)"
