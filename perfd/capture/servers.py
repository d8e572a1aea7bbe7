"""Captures of inference servers through their own `/start_profile` and `/stop_profile`."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd.capture.tools import Begun, Outcome, Plan, Readiness, Target, Tool
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.http import split_address
from perfd.model import CaptureState, CaptureTool

_TIMEOUT_S = 60.0
_FILE_S = 60.0
_POLL_S = 0.2
_HANDLE = "server:"
_TRACES = ("*.trace.json.gz", "*.trace.json", "*.pt.trace.json.gz")
_BODY_SINCE = (0, 4, 4)
"""SGLang releases before take no body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a server is, and where its traces go."""

    address: str
    trace_directory: Path
    """SGLang is told to write into a folder of it; for vLLM it is what it was launched with."""
    api_key: str | None = None


class ServerTool(Tool):
    """A `perfd.capture.tools.Tool` for one SGLang or vLLM server of this node."""

    def __init__(self, kind: CaptureTool, server: Server | None, *, clock: Clock) -> None:
        self._kind = kind
        self._server = server
        self._clock = clock
        self._folder: Path | None = None
        self._began_unix_s = 0.0

    @property
    def kind(self) -> CaptureTool:
        return self._kind

    def available(self) -> bool:
        return self._server is not None

    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:  # noqa: ARG002  (a server is one target)
        name = self._kind.value
        if self._server is None:
            return Readiness(reason=f"No server is configured; set capture.{name}.address.")
        paths = self._document("/openapi.json").get("paths", {})
        if not isinstance(paths, dict) or "/start_profile" not in paths:
            return Readiness(
                reason=f"The server at {self._server.address} has no /start_profile; vLLM has it only when "
                "launched with --profiler-config (before 0.15: VLLM_TORCH_PROFILER_DIR)."
            )
        return Readiness(targets=[Target(handle=f"{_HANDLE}{self._server.address}", processes={})])

    def start(self, targets: Sequence[Target], plan: Plan) -> Begun:  # noqa: ARG002  (there is one)
        server = self._configured()
        self._folder = server.trace_directory
        body: Mapping[str, Any] | None = None
        if self._kind is CaptureTool.SGLANG and self._version() >= _BODY_SINCE:
            self._folder = server.trace_directory / f"perfd-{plan.capture_id}-{secrets.token_hex(4)}"
            self._folder.mkdir(mode=0o700, parents=True)
            body = {"output_dir": str(self._folder), "activities": ["CPU", "GPU"]}
            if plan.steps is not None:
                body = {**body, "num_steps": plan.steps}
        self._began_unix_s = self._clock.unix_ns() / 1e9
        status, text = self._ask("POST", "/start_profile", body)
        if status >= 400:
            raise CaptureError(f"/start_profile answers {status}: {text[:200].strip() or 'nothing'}")
        return Begun()

    def alive(self, targets: Sequence[Target]) -> bool:  # noqa: ARG002  (there is one)
        try:
            return self._ask("GET", "/health", None)[0] < 500
        except CaptureError:
            return False

    def stop(self, targets: Sequence[Target], plan: Plan) -> Sequence[Outcome]:  # noqa: ARG002  (as above)
        status, text = self._ask("POST", "/stop_profile", None)
        files = self._files(plan)
        if files:
            return [Outcome(state=CaptureState.DONE, ranks=[], files=files)]
        # With `num_steps` the server has stopped by itself, and says so with an error.
        reason = f"The server left no trace; /stop_profile answers {status}: {text[:200].strip()}"
        return [Outcome(state=CaptureState.EMPTY, ranks=[], reason=reason)]

    def abort(self, handles: Sequence[str]) -> None:
        if any(handle.startswith(_HANDLE) for handle in handles) and self._server is not None:
            try:
                self._ask("POST", "/stop_profile", None)
            except CaptureError:
                return  # It is gone, and its profiler with it.

    def _files(self, plan: Plan) -> list[Path]:
        deadline_s = self._clock.monotonic_s() + _FILE_S
        found: Mapping[Path, int] = {}
        # Ranks write at their own pace, in place: all is there when nothing grows any more.
        while self._clock.monotonic_s() < deadline_s:
            before, found = found, self._fresh()
            if found and found == before:
                break
            self._clock.sleep(_POLL_S)
        brought: list[Path] = []
        for file, size_bytes in sorted(found.items()):
            if size_bytes <= plan.max_bytes:
                copy = plan.directory / file.name
                copy.write_bytes(file.read_bytes())
                brought.append(copy)
        return brought

    def _fresh(self) -> dict[Path, int]:
        """Traces that were written since the start, with their sizes."""
        if self._folder is None:
            return {}
        found = [file for pattern in _TRACES for file in self._folder.glob(pattern) if not file.is_symlink()]
        states = {file: file.stat() for file in found}
        return {
            file: state.st_size
            for file, state in states.items()
            if state.st_mtime >= self._began_unix_s - 1.0 and state.st_size
        }

    def _version(self) -> tuple[int, ...]:
        """The server's version; SGLang has it in `/server_info`, before 0.5.9 in `/get_server_info`."""
        for path in ("/server_info", "/get_server_info"):
            text = str(self._document(path).get("version", ""))
            numbers = [part for part in text.split(".")[:3] if part.isdecimal()]
            if numbers:
                return tuple(int(number) for number in numbers)
        return (0,)

    def _document(self, path: str) -> dict[str, Any]:
        status, text = self._ask("GET", path, None)
        try:
            document = json.loads(text) if status < 400 else {}
        except ValueError:
            document = {}
        return document if isinstance(document, dict) else {}

    def _configured(self) -> Server:
        if self._server is None:
            raise CaptureError("No server is configured.")
        return self._server

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        server = self._configured()
        host, port = split_address(server.address)
        headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read(1 << 20).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise CaptureError(f"The server at {server.address} does not answer: {error}.") from error
        finally:
            connection.close()
