"""Captures of inference servers through their own `/start_profile` and `/stop_profile`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd.capture.node import Begun, CaptureOutcome, CapturePlan, CaptureTarget, Readiness, Tool
from perfd.capture.server.profile_api import abilities, body, expected_traces, length_s, version_of
from perfd.capture.server.server_client import ServerClient, ServerResponse
from perfd.capture.server.server_traces import brought, own_folder, remove_own_folders, settled, whole
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.formatting import data_size
from perfd.model import CaptureState, CaptureTool

_QUICK_S = 10.0
"""For what a server answers at once, unless it is busy. Chosen."""
_START_S = 60.0
"""To start the profiler in all its workers. Chosen."""
_STOP_S = 120.0
"""The request lasts until the traces are written."""
_FILES_S = 60.0
"""For the last trace file after the profile was stopped; the server writes it beside its requests."""
_HANDLE = "server:"
_NO_ENDPOINT = (
    "has no /start_profile; vLLM has it only when launched with --profiler-config (before 0.15: "
    "VLLM_TORCH_PROFILER_DIR)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureServer:
    """A server's address, and the folder for its traces."""

    client: ServerClient
    trace_directory: Path
    """SGLang writes into a folder of it; for vLLM it is what it was launched with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profile:
    """A profile requested from a server."""

    server: CaptureServer
    folder: Path
    counted: bool
    began_unix_s: float
    began_s: float
    expected: int | None
    """The number of traces that its ranks on this node will write."""


class ServerTool(Tool):
    """A `perfd.capture.node.capture_tool.Tool` for the SGLang or the vLLM servers of this node.

    A capture covers one server. Its job is `NODE/ADDRESS`; any other job means the only server.
    """

    def __init__(self, kind: CaptureTool, servers: Sequence[CaptureServer], *, clock: Clock) -> None:
        self.kind = kind
        self._servers = servers
        self._clock = clock
        self._profile: _Profile | None = None
        self._may_stop = True
        """Not profiles of other users; a new tool stops what an earlier agent left."""

    def available(self) -> bool:
        return bool(self._servers)

    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:  # noqa: ARG002  (a server is one target)
        if not self._servers:
            return Readiness(reason=f"No server is configured; set capture.{self.kind.value}.")
        server = self._named(job)
        if server is None:
            known = ", ".join(one.client.address for one in self._servers)
            return Readiness(reason=f"{job!r} names none of capture.{self.kind.value}: {known}.")
        described = server.client.ask("GET", "/openapi.json", _QUICK_S)
        if described.status in {401, 403}:
            return Readiness(reason=_refusal(server, described))
        # A server without a description (`--disable-fastapi-docs`) gets the request anyway.
        if described.status < 400 and '"/start_profile"' not in described.text:
            return Readiness(reason=f"The server at {server.client.address} {_NO_ENDPOINT}")
        return Readiness(targets=[CaptureTarget(handle=_HANDLE + server.client.address, processes={})])

    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:
        server = self._target([target.handle for target in targets])
        if server is None:
            raise CaptureError("The server is no longer configured.")
        self._may_stop = False
        info = self._info(server)
        can = abilities(self.kind, version_of(info.get("version")))
        folder = _own_folder(server, plan) if can.folder else server.trace_directory
        self._profile = _Profile(
            server=server,
            folder=folder,
            counted=can.steps and plan.steps is not None,
            began_unix_s=self._clock.unix_ns() / 1e9,
            began_s=self._clock.monotonic_s(),
            expected=expected_traces(self.kind, info),
        )
        asked = body(self.kind, can, folder, plan.steps)
        self._may_stop = True
        answer = server.client.ask("POST", "/start_profile", _START_S, asked)
        if answer.status >= 400:
            # It may profile for another user.
            self._may_stop = False
            raise CaptureError(_refusal(server, answer))
        return Begun(length_s=length_s(plan.steps, plan.max_duration_s))

    def alive(self, targets: Sequence[CaptureTarget]) -> bool:
        server = self._target([target.handle for target in targets])
        return server is not None and server.client.listens()

    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:  # noqa: ARG002  (one profile)
        profile = self._profile
        if profile is None:
            raise CaptureError("Nothing was started.")
        if profile.counted:
            # It stops by itself; without work it is stopped when the time is up.
            self._settled(profile, profile.began_s + plan.max_duration_s)
        problem = self._stop(profile.server)
        found = self._settled(profile, self._clock.monotonic_s() + _FILES_S)
        outcome = self._outcome(profile, found, plan, problem)
        remove_own_folders(profile.server.trace_directory)
        return [outcome]

    def abort(self, handles: Sequence[str]) -> None:
        server = self._target(handles)
        if server is None:
            return
        if self._may_stop:
            self._stop(server)
        remove_own_folders(server.trace_directory)

    def _outcome(
        self, profile: _Profile, found: Mapping[Path, int], plan: CapturePlan, problem: str
    ) -> CaptureOutcome:
        address, complete = profile.server.client.address, [file for file in found if whole(file)]
        if not found:
            reason = f"The server at {address} left no trace in {profile.folder}. {problem}".strip()
            return CaptureOutcome(state=CaptureState.EMPTY, ranks=[], reason=reason)
        size_bytes = sum(found.values())
        if size_bytes > plan.max_bytes:
            for file in found:
                file.unlink(missing_ok=True)
            reason = (
                f"The traces of the server at {address} have {data_size(size_bytes)}, more than "
                "capture.max_bytes leaves; they were deleted. Ask for fewer steps."
            )
            return CaptureOutcome(state=CaptureState.FAILED, ranks=[], reason=reason)
        files = brought(list(found), plan.directory)
        missing = max(0, (profile.expected or 0) - len(found))
        notes = [
            f"{len(found) - len(complete)} of {len(found)} traces are truncated."
            if len(complete) < len(found)
            else "",
            f"{missing} of {profile.expected} ranks wrote no trace." if missing else "",
        ]
        state = CaptureState.DONE if complete else CaptureState.FAILED
        return CaptureOutcome(state=state, ranks=[], reason=" ".join(filter(None, notes)), files=files)

    def _settled(self, profile: _Profile, deadline_s: float) -> Mapping[Path, int]:
        return settled(profile.folder, profile.began_unix_s, self._clock, deadline_s, profile.expected)

    def _stop(self, server: CaptureServer) -> str:
        """End a profile; returns the server's error, which is harmless if the profile has ended itself."""
        try:
            answer = server.client.ask("POST", "/stop_profile", _STOP_S)
        except CaptureError as error:
            return str(error)
        return "" if answer.status < 400 else f"/stop_profile answers {answer.status}: {answer.words}"

    def _named(self, job: str) -> CaptureServer | None:
        address = job.rpartition("/")[2]
        for server in self._servers:
            if server.client.serves(address):
                return server
        names_server = ":" in address and address.rpartition(":")[2].isdigit()
        return self._servers[0] if len(self._servers) == 1 and not names_server else None

    def _target(self, handles: Sequence[str]) -> CaptureServer | None:
        known = {_HANDLE + server.client.address: server for server in self._servers}
        return next((known[handle] for handle in handles if handle in known), None)

    def _info(self, server: CaptureServer) -> Mapping[str, Any]:
        """A server's description: SGLang since 0.5.9 and before, vLLM."""
        sglang = self.kind is CaptureTool.SGLANG
        for path in ("/server_info", "/get_server_info") if sglang else ("/version",):
            found = server.client.document(path, _QUICK_S)
            if "version" in found:
                return found
        return {}


def _own_folder(server: CaptureServer, plan: CapturePlan) -> Path:
    try:
        return own_folder(server.trace_directory, f"{plan.capture_id}-{secrets.token_hex(4)}")
    except OSError as error:
        raise CaptureError(
            f"trace_directory {server.trace_directory} is not writable: {error.strerror or error}."
        ) from error


def _refusal(server: CaptureServer, answer: ServerResponse) -> str:
    if answer.status == 404:
        return f"The server at {server.client.address} {_NO_ENDPOINT}"
    if answer.status in {401, 403}:
        return (
            f"The server at {server.client.address} requires authorization (status {answer.status}): set "
            "`authorization_file` (SGLang: the admin key, if there is one)."
        )
    return f"/start_profile of {server.client.address} answers {answer.status}: {answer.words}"
