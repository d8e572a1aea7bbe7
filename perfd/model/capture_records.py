"""Captures: requests to a node, their status, and results from the traces."""

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
    JAX = "jax"


class CaptureState(StrEnum):
    """The state of a capture on one node. All but the first two are final."""

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
        """Whether the state will not change anymore."""
        return self not in {CaptureState.ARMED, CaptureState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """A request to trace on one node; the fields are documented in `telemetry.proto`."""

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
    object_folder: str = ""
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCancel:
    """Stop a capture in any state."""

    capture_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFile:
    """A capture's file on the node."""

    path: str
    size_bytes: int
    upload: bool = False
    """Whether it will be uploaded to object storage; a `CaptureFileUpload` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """The status of a capture on one node."""

    capture_id: str
    state: CaptureState
    time_unix_ns: int
    reason: str = ""
    ranks: Sequence[int] = ()
    files: Sequence[CaptureFile] = ()
    started_unix_ns: int | None = None
    stopped_unix_ns: int | None = None
    whole_steps: int | None = None
    """Complete steps in the traces of these ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFilesRemoved:
    """Files of a capture that were removed since they were reported."""

    capture_id: str
    paths: Sequence[str]
    reason: str
    """A sentence for people."""
    time_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFileUpload:
    """A file of a capture is in object storage, or its upload failed so far; see `telemetry.proto`."""

    capture_id: str
    path: str
    url: str = ""
    size_bytes: int = 0
    sha256: str = ""
    reason: str = ""
    time_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShares:
    """Shares of one operation over all groups of one kind, such as all tensor groups; see `TraceShares`."""

    ranks: tuple[int, ...]
    """The ranks of one of these groups."""
    name: str = ""
    """The framework's name of the groups."""
    operation: str
    """The framework's name: `allreduce`, `_allgather_base`, ...; `sendrecv` for sends and receives."""
    communication_ratio: float
    """Concurrent kernels count separately."""
    exposed_ratio: float
    waiting_ratio: float | None = None
    """The part of it spent waiting for other ranks; None when most of it could not be matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShares:
    """The breakdown of a capture's step time: means over the ranks with complete records.

    compute + exposed communication + exposed copies + launch + synchronization + unexplained idle = 1.
    """

    ranks: tuple[int, ...]
    step_time_s: float | None = None
    """Median of the complete steps in the traces; None when steps are not marked."""
    compute_ratio: float
    matrix_ratio: float | None = None
    """Upper bound of the share of compute in matrix products, attention and convolutions, by kernel names;
    unknown names count as such."""
    communication_ratio: float
    """Including what overlaps with compute."""
    exposed_communication_ratio: float
    waiting_ratio: float | None = None
    """The part of communication spent waiting for other ranks; None when most could not be matched."""
    exposed_copies_ratio: float
    launch_ratio: float
    """Idle because the host had not launched a kernel, or the launch was in progress."""
    long_gaps_ratio: float
    """The part of it in gaps too long for launch overhead: the host did other work."""
    synchronization_ratio: float
    """Idle during, or as a result of, synchronization of the host with the GPU."""
    unexplained_idle_ratio: float
    """Idle of ranks whose traces lack host calls."""
    groups: tuple[GroupShares, ...] = ()
    """Communication by group, largest first; without groups whose ranks are not in the traces."""
