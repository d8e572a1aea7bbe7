"""Captures: what is asked of a node, how it goes, and what the traces say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class CaptureTool(StrEnum):
    """A profiler that an agent can drive."""

    NSYS = "nsys"
    KINETO = "kineto"
    SGLANG = "sglang"
    VLLM = "vllm"
    PY_SPY = "py_spy"
    FLIGHT_RECORDER = "flight_recorder"


class CaptureState(StrEnum):
    """Where a capture stands on one node. All but the first two are final."""

    ARMED = "armed"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    LATE = "late"
    LOST = "lost"
    EMPTY = "empty"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Whether nothing more will be heard of the capture from that node."""
        return self not in {CaptureState.ARMED, CaptureState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What to trace on one node; see `telemetry.proto` for each field's meaning."""

    capture_id: str
    job: str
    tool: CaptureTool
    ranks: Sequence[int] = ()
    steps: int | None = None
    max_duration_s: float
    start_unix_ns: int | None = None
    profile: str = ""
    alert: str = ""
    max_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCancel:
    """Stop a capture, whatever it is doing."""

    capture_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFile:
    """An artefact on the node."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """Where a capture stands on one node."""

    capture_id: str
    state: CaptureState
    time_unix_ns: int
    reason: str = ""
    ranks: Sequence[int] = ()
    files: Sequence[CaptureFile] = ()
    started_unix_ns: int | None = None
    stopped_unix_ns: int | None = None
    whole_steps: int | None = None
    """Steps that the traces of these ranks hold from begin to end, by what is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFilesRemoved:
    """Artefacts of a capture are no longer where they were reported."""

    capture_id: str
    paths: Sequence[str]
    reason: str
    """A sentence for people."""
    time_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShares:
    """One operation of all groups whose members lie alike, as of all tensor groups; see `TraceShares`."""

    ranks: tuple[int, ...]
    """Of one of these groups."""
    name: str = ""
    """What the framework calls it."""
    operation: str
    """As the framework calls it: `allreduce`, `_allgather_base`, ...; `sendrecv` for sends and receives."""
    communication_ratio: float
    """Kernels that run at one time count each."""
    exposed_ratio: float
    waiting_ratio: float | None = None
    """Of it, what was waiting for other ranks; None where most of it could not be matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShares:
    """Where the time of a capture's steps went: means over the ranks whose records are all there.

    compute + exposed communication + exposed copies + launch + synchronization + unexplained idle = 1.
    """

    ranks: tuple[int, ...]
    step_time_s: float | None = None
    """Median of the steps that are whole in the traces; None where they mark none."""
    compute_ratio: float
    matrix_ratio: float | None = None
    """Of compute, matrix products, attention and convolutions at most, by the names of kernels: one whose
    name says nothing counts as such."""
    communication_ratio: float
    """What compute hides included."""
    exposed_communication_ratio: float
    waiting_ratio: float | None = None
    """Of communication, what was waiting for other ranks; None where most of it could not be matched."""
    exposed_copies_ratio: float
    launch_ratio: float
    """Idle because the host had not launched, or the launch was on its way."""
    long_gaps_ratio: float
    """The part of it in gaps so long that the host must have done something else."""
    synchronization_ratio: float
    """Idle while the host waited for the GPU, or because it had."""
    unexplained_idle_ratio: float
    """Idle of ranks whose traces have no calls of the host."""
    groups: tuple[GroupShares, ...] = ()
    """Communication by group, the largest first; without groups whose ranks the traces do not tell."""
