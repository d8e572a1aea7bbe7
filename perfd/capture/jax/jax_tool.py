"""Captures of JAX: asks the profiler server of each process for a profile, fetches and checks the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from perfd.capture.jax.profiler_client import Profile, ProfilerClient
from perfd.capture.jax.server_search import find_server
from perfd.capture.jax.xplane_contents import CHECK_DECODER, CHECK_FUNCTION
from perfd.capture.node import (
    NSYS_SESSION_VARIABLE,
    Begun,
    CaptureOutcome,
    CapturePlan,
    CaptureTarget,
    ProcessTool,
    Readiness,
    TraceDirectory,
    environment_of,
    owner_of,
    placed_targets,
    plan_trace_directory,
    runs,
    started_pythons,
    trace_directory_of,
)
from perfd.capture.trace_check import check_trace
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.model import CaptureState, CaptureTool, RankPlacement

_SUFFIX = ".xplane.pb"
_PLACE_VARIABLE = "TMPDIR"
_DEFAULT_PLACE = "/tmp"  # noqa: S108  (the folder below it is private)
_LONGER_S = 10.0
"""A profile ends by itself this much after the limit, should it never be ended."""
_FILE_S = 90.0
"""After the end of a profile: XLA collects all events in memory and then writes them."""
_END_S, _LOOK_S = 2.0, 0.05
"""How long a process may take to exit once its server stops answering, and how often that is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxOptions:
    """The operator's settings for captures with JAX's profiler."""

    ports: Sequence[int] = ()
    """Where profiler servers may be; none: wherever the job's processes listen."""
    cpu_only: bool = False
    """Accept traces without work of a device."""


@dataclass(slots=True, kw_only=True)
class _Profiled:
    """One process that has a profiler server."""

    rank: int | None
    pid: int
    port: int
    box: TraceDirectory
    client: ProfilerClient | None = None
    profile: Profile | None = None

    @property
    def host(self) -> str:
        return f"{'process' if self.rank is None else f'rank{self.rank}'}_{self.pid}"

    @property
    def ranks(self) -> tuple[int, ...]:
        return () if self.rank is None else (self.rank,)


class JaxTool(ProcessTool):
    """A `perfd.capture.node.capture_tool.Tool` for processes that called `jax.profiler.start_server`."""

    kind = CaptureTool.JAX

    def __init__(
        self,
        *,
        placements: Callable[[str], Sequence[RankPlacement]],
        clock: Clock,
        proc: Path = Path("/proc"),
        options: JaxOptions | None = None,
        run: str | None = None,
    ) -> None:
        """With `run`, processes of that `perfd run` are captured even if none is known to be a rank."""
        self._placements = placements
        self._clock = clock
        self._proc = proc
        self._options = options or JaxOptions()
        self._run_id = run
        self._profiled: dict[str, _Profiled] = {}

    def available(self) -> bool:
        return True

    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:
        self._profiled = {}
        placed = placed_targets(self._placements(job), ranks, self._proc)
        ready = placed.mapped(self._with_server)
        if ready.targets or ready.refused or self._run_id is None:
            return ready
        return self._of_run(self._run_id)

    def _with_server(self, target: CaptureTarget) -> CaptureTarget:
        ((pid, rank),) = target.processes.items()
        return self._target(pid, rank)

    def _of_run(self, run: str) -> Readiness:
        """The processes that a `perfd run` started, whatever their ranks are."""
        targets: list[CaptureTarget] = []
        reason = "No Python process of this job runs on this node."
        for pid in started_pythons(self._proc, run):
            # One that another started is found through that.
            if any(pid in target.processes for target in targets):
                continue
            try:
                targets.append(self._target(pid, None))
            except CaptureError as error:
                reason = str(error)
        return Readiness(targets=targets, reason="" if targets else reason)

    def _target(self, pid: int, rank: int | None) -> CaptureTarget:
        server_pid, port = find_server(self._proc, pid, self._options.ports)
        environment = environment_of(self._proc, server_pid)
        if NSYS_SESSION_VARIABLE in environment:
            raise CaptureError(
                f"Process {server_pid} runs under `nsys launch`, and CUPTI has one subscriber per process: "
                "capture it with nsys, or start the job with perfd run --jax."
            )
        place = environment.get(_PLACE_VARIABLE) or _DEFAULT_PLACE
        box = plan_trace_directory(self._proc, server_pid, place, source=_PLACE_VARIABLE, profiler="jax")
        self._profiled[box.handle] = _Profiled(rank=rank, pid=server_pid, port=port, box=box)
        return CaptureTarget(handle=box.handle, processes={server_pid: rank})

    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:
        profiled = [self._profiled[target.handle] for target in targets]
        try:
            for one in profiled:
                # The owner of a process that is gone does not matter: its profile fails, with a reason.
                one.box.create(*(owner_of(self._proc, one.pid) or (os.geteuid(), os.getegid())))
            for one in profiled:
                one.client = ProfilerClient(one.port)
                one.profile = one.client.profile(one.box.inside, one.host, plan.max_duration_s + _LONGER_S)
        except CaptureError:
            self.abort([target.handle for target in targets])
            raise
        return Begun()

    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:
        profiled = [self._profiled[target.handle] for target in targets]
        try:
            # All of them before the first is waited for: they end together.
            for one in profiled:
                _end(one)
            deadline_s = self._clock.monotonic_s() + _FILE_S
            return [self._outcome(one, plan, deadline_s) for one in profiled]
        finally:
            self.abort([target.handle for target in targets])

    def abort(self, handles: Sequence[str]) -> None:
        """End profiles without a result. One of an agent that is gone ended with its connection."""
        for handle in handles:
            one = self._profiled.get(handle)
            if one is not None and one.client is not None:
                one.client.close()
                one.client = None
        for box in map(trace_directory_of, handles):
            if box is not None:
                box.remove()

    def _outcome(self, one: _Profiled, plan: CapturePlan, deadline_s: float) -> CaptureOutcome:
        path = plan.directory / f"{one.host}{_SUFFIX}"
        try:
            self._answered(one, deadline_s)
            one.box.fetch(path.name, path, max_bytes=plan.max_bytes)
            found = check_trace(CHECK_FUNCTION, path, plan, CHECK_DECODER)
        except CaptureError as error:
            files = [path] if path.is_file() else []
            return CaptureOutcome(state=CaptureState.FAILED, ranks=one.ranks, reason=str(error), files=files)
        if not (found.device_work or self._options.cpu_only):
            reason = "The profile has no GPU or TPU work (capture.jax.cpu_only allows that)."
            return CaptureOutcome(state=CaptureState.EMPTY, ranks=one.ranks, reason=reason, files=[path])
        return CaptureOutcome(
            state=CaptureState.DONE,
            ranks=one.ranks,
            reason="" if found.device_work else "The profile has host activity only.",
            files=[path],
            whole_steps=found.whole_steps,
        )

    def _answered(self, one: _Profiled, deadline_s: float) -> None:
        """Wait until the server has written its file; raises `CaptureError`."""
        if one.profile is None:
            raise CaptureError("Nothing was started.")
        try:
            one.profile.result(max(0.0, deadline_s - self._clock.monotonic_s()))
        except grpc.FutureTimeoutError as error:
            raise CaptureError(f"JAX's profiler wrote no file within {_FILE_S:.0f} s.") from error
        except grpc.FutureCancelledError as error:
            raise CaptureError("The profile was canceled.") from error
        except grpc.RpcError as error:
            if self._ends(one.pid):
                raise CaptureError("The process ended before it wrote its trace.") from error
            raise CaptureError(f"JAX's profiler server answers: {_details(error)}.") from error

    def _ends(self, pid: int) -> bool:
        """Whether a process has exited; its connections close a moment earlier."""
        until_s = self._clock.monotonic_s() + _END_S
        while (alive := runs(self._proc, pid)) and self._clock.monotonic_s() < until_s:
            self._clock.sleep(_LOOK_S)
        return not alive


def _end(one: _Profiled) -> None:
    """End a profile; one that has failed has its reason already."""
    if one.client is not None and one.profile is not None and not one.profile.done():
        try:
            one.client.terminate(one.box.name)
        except grpc.RpcError:
            # It ended at the same moment, or waiting for its answer says why.
            return


def _details(error: grpc.RpcError) -> str:
    said = error.details() if isinstance(error, grpc.Call) else ""
    return (said or "nothing").strip().rstrip(".")
