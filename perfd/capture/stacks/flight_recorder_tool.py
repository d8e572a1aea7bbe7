"""Dumps of PyTorch's NCCL Flight Recorder, through the pipe that each rank reads.

With `TORCH_NCCL_DEBUG_INFO_PIPE_FILE=STEM` rank N makes the pipe `STEM` + N + `.pipe`; a byte written to it
makes the rank write its ring of collectives to `TORCH_FR_DUMP_TEMP_FILE` (before:
`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) + N, and go on (torch/csrc/distributed/c10d, ProcessGroupNCCL and
FlightRecorder). The size of the ring must not be 0.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.capture.node import (
    Begun,
    CaptureOutcome,
    CapturePlan,
    CaptureTarget,
    ProcessTool,
    Readiness,
    environment_of,
    owner_of,
    placed_targets,
)
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.file_access import open_as
from perfd.model import CaptureState, CaptureTool, RankPlacement

_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_RINGS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_POLL_S = 0.1
"""How often the dumps are looked for. Chosen."""
_MOST_BYTES = 256 << 20
"""Of a dump: a ring of 100,000 collectives with their stacks has less. A sparse file can claim any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dump:
    rank: int
    pid: int
    uid: int
    """The process's user, as whom its files are opened."""
    path: Path
    before_ns: int | None
    """When the file was last written before the request; None if it did not exist."""


class FlightRecorderTool(ProcessTool):
    """A `perfd.capture.node.capture_tool.Tool` that requests each rank's ring of collectives once."""

    kind = CaptureTool.FLIGHT_RECORDER
    for_hangs = True

    def __init__(
        self,
        *,
        placements: Callable[[str], Sequence[RankPlacement]],
        clock: Clock,
        proc: Path = Path("/proc"),
        patience_s: float = 30.0,
    ) -> None:
        self._placements = placements
        self._clock = clock
        self._proc = proc
        self._patience_s = patience_s
        self._asked: dict[str, _Dump] = {}

    def available(self) -> bool:
        return True

    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:
        return placed_targets(self._placements(job), ranks, self._proc).mapped(self._fit)

    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:  # noqa: ARG002  (files come in `stop`)
        self._asked = {}
        for target in targets:
            ((pid, rank),) = target.processes.items()
            environment = environment_of(self._proc, pid)
            dump = self._inside(pid, f"{dump_stem(environment)}{rank}")
            owner = owner_of(self._proc, pid)
            if owner is None:
                raise CaptureError(f"Rank {rank} has ended.")
            self._asked[target.handle] = _Dump(
                rank=rank or 0, pid=pid, uid=owner[0], path=dump, before_ns=_written_ns(dump)
            )
            _poke(self._inside(pid, f"{environment.get(_PIPE, '')}{rank}.pipe"), owner[0])
        return Begun(length_s=0.0)

    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:
        deadline_s = self._clock.monotonic_s() + self._patience_s
        return [self._collect(self._asked[target.handle], plan, deadline_s) for target in targets]

    def abort(self, handles: Sequence[str]) -> None:
        """Nothing: a dump ends by itself."""

    def _fit(self, target: CaptureTarget) -> CaptureTarget:
        ((pid, rank),) = target.processes.items()
        if reason := self._unfit(pid, rank or 0):
            raise CaptureError(reason)
        return target

    def _unfit(self, pid: int, rank: int) -> str:
        environment = environment_of(self._proc, pid)
        if not environment.get(_PIPE):
            return f"Rank {rank} was started without {_PIPE}, so it cannot write a dump on request."
        if any(environment.get(name) == "0" for name in _RINGS):
            return f"Rank {rank} records nothing: {' or '.join(_RINGS)} is 0."
        pipe = self._inside(pid, f"{environment[_PIPE]}{rank}.pipe")
        try:
            if stat.S_ISFIFO(pipe.lstat().st_mode):
                return ""
        except OSError:
            return f"Rank {rank} has no pipe {environment[_PIPE]}{rank}.pipe; its NCCL group is not up yet."
        return f"{environment[_PIPE]}{rank}.pipe is not a pipe."

    def _inside(self, pid: int, path: str) -> Path:
        """A path of a process as we see it."""
        return self._proc / str(pid) / "root" / path.lstrip("/")

    def _collect(self, dump: _Dump, plan: CapturePlan, deadline_s: float) -> CaptureOutcome:
        previous = -1
        while self._clock.monotonic_s() < deadline_s:
            # Written in place: complete when it stops growing.
            size = _size(dump)
            if size > 0 and size == previous:
                return _bring(dump, plan)
            previous = size
            self._clock.sleep(_POLL_S)
        reason = f"No dump came within {self._patience_s:.0f} s: the thread that writes it may hang too."
        return CaptureOutcome(state=CaptureState.LOST, ranks=[dump.rank], reason=reason)


def dump_stem(environment: Mapping[str, str]) -> str:
    """The prefix of the names of dumps, for a process with these variables."""
    for name in _DUMPS:
        if environment.get(name):
            return environment[name]
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    return f"{cache}/torch/comm_lib_trace_rank_"


def _poke(pipe: Path, uid: int) -> None:
    try:
        descriptor = open_as(uid, pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise CaptureError(f"No process reads {pipe.name}: {error.strerror}.") from error
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise CaptureError(f"{pipe.name} is not a pipe.")
        os.write(descriptor, b"1")
    finally:
        os.close(descriptor)


def _written_ns(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None


def _size(dump: _Dump) -> int:
    """The size of a new dump; -2 until there is one."""
    try:
        status = dump.path.lstat()
    except OSError:
        return -2
    return status.st_size if status.st_mtime_ns != dump.before_ns and stat.S_ISREG(status.st_mode) else -2


def _unfit_file(status: os.stat_result, uid: int, max_bytes: int) -> str:
    """Why a file is not brought in; empty when it is. A link in its path can lead to a file of others."""
    if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
        return "The dump is not a plain file of the rank's user."
    if status.st_size > min(max_bytes, _MOST_BYTES):
        return "The dump is larger than the space left for this capture."
    return ""


def _bring(dump: _Dump, plan: CapturePlan) -> CaptureOutcome:
    path = plan.directory / f"rank{dump.rank}.flight_recorder.pickle"
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(open_as(dump.uid, dump.path, flags), "rb") as file:  # noqa: PTH123  (a descriptor)
            if reason := _unfit_file(os.fstat(file.fileno()), dump.uid, plan.max_bytes):
                return CaptureOutcome(state=CaptureState.FAILED, ranks=[dump.rank], reason=reason)
            with path.open("xb") as copy:
                left = min(plan.max_bytes, _MOST_BYTES)
                while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                    copy.write(chunk)
                    left -= len(chunk)
    except OSError as error:
        reason = f"The dump cannot be read: {error.strerror}."
        return CaptureOutcome(state=CaptureState.FAILED, ranks=[dump.rank], reason=reason)
    return CaptureOutcome(state=CaptureState.DONE, ranks=[dump.rank], files=[path])
