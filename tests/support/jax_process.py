"""`python -m tests.support.jax_process FOLDER [BEHAVIOR]`: stands in for a JAX process with a profiler.

It has a library mapped as jaxlib's is, and answers as XLA's server does. It prints its port once it listens.
Behaviors: `serves`, `host-only` (no work of a device), `busy` (another session is active), `other` (a gRPC
server without a profiler), `none` (no server), `dies` (ends with the profile), `cut` (half a file).
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from perfd.capture.jax.profiler_service_pb2 import ProfileRequest, TerminateRequest
from tests.support.xplane import plane, xplane_space

_WAIT_S = 0.01


class _Profiler:
    def __init__(self, behavior: str) -> None:
        self._behavior = behavior
        self._ended: set[str] = set()
        self.handlers = grpc.method_handlers_generic_handler(
            "tensorflow.ProfilerService",
            {
                "Profile": grpc.unary_unary_rpc_method_handler(
                    self._profile, request_deserializer=ProfileRequest.FromString
                ),
                "Terminate": grpc.unary_unary_rpc_method_handler(
                    self._terminate, request_deserializer=TerminateRequest.FromString
                ),
            },
        )

    def _profile(self, request: ProfileRequest, context: grpc.ServicerContext) -> bytes:
        if self._behavior == "busy":
            context.abort(grpc.StatusCode.INTERNAL, "Another profiling session active.")
        waited_s = 0.0
        while request.session_id not in self._ended and waited_s < request.opts.duration_ms / 1e3:
            threading.Event().wait(_WAIT_S)
            waited_s += _WAIT_S
            if not context.is_active():
                return b""
        if self._behavior == "dies":
            os._exit(3)
        folder = Path(request.repository_root, request.session_id)
        folder.mkdir(exist_ok=True)
        content = plane("/host:CPU", [], {}) if self._behavior == "host-only" else xplane_space()
        content = content[: len(content) // 2] if self._behavior == "cut" else content
        (folder / f"{request.host_name}.xplane.pb").write_bytes(content)
        return b""

    def _terminate(self, request: TerminateRequest, context: grpc.ServicerContext) -> bytes:
        self._ended.add(request.session_id)
        return b""


def main(folder: Path, behavior: str) -> None:
    library = folder / "jaxlib" / "_jax.so"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(bytes(mmap.PAGESIZE))
    with library.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    server = grpc.server(ThreadPoolExecutor(8))
    if behavior != "other":
        server.add_generic_rpc_handlers((_Profiler(behavior).handlers,))
    port = 0
    if behavior != "none":
        port = server.add_insecure_port("[::]:0")
        server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    threading.Event().wait()
    mapped.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "serves")
