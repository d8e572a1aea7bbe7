"""What `perfd doctor` finds out about a node before it judges. None means that it could not be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.capture.nsys import Installation


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU as NVML names it."""

    index: int
    name: str
    gpm: bool | None
    """Whether it has GPU performance monitoring (Hopper and later)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFacts:
    """What NVML answered."""

    driver: str | None = None
    error: str = ""
    """Its own words, when it could not be initialised."""
    library_missing: bool = False
    """There is no NVML at all, which is normal without an NVIDIA driver."""
    gpus: Sequence[GpuFacts] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysFacts:
    """The nsys that captures would use."""

    installation: Installation | None = None
    version: str | None = None
    importer_problem: str = ""
    """Why the importer does not run; empty when it does, or when there is none to run."""
    libdw: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """How much of /proc/PID/environ this user may read."""

    total: int
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFacts:
    """A directory that perfd writes to, or would make."""

    path: Path
    free_bytes: int
    problem: str = ""
    """Why nothing can be written there; empty when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """What the kernel knows of the wall clock's discipline (adjtimex)."""

    synchronised: bool
    max_error_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorFacts:
    """Whether a TCP connection to the aggregator's gRPC port opens."""

    address: str
    configured: bool
    """The operator named it; otherwise it is the default on this machine."""
    error: str = ""
    """Empty when it opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFacts:
    """The socket that libkineto polls."""

    place: str
    taken: bool
    owner: str = ""
    """Who answers there; empty when that cannot be seen."""
    problem: str = ""
    """Why it cannot be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PySpyFacts:
    """py-spy, and what the kernel allows it."""

    path: Path | None
    ptrace_scope: int | None
    """kernel.yama.ptrace_scope; None where Yama is not."""
    may_trace: bool
    """Whether this user has CAP_SYS_PTRACE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything that the checks judge."""

    perfd_version: str
    python_version: str
    nvml: NvmlFacts
    nsys: NsysFacts
    captures_enabled: bool
    perf_event_paranoid: int | None
    processes: ProcessFacts
    spool: DirectoryFacts
    spool_max_bytes: int
    captures: DirectoryFacts
    captures_min_free_bytes: int
    captures_used_bytes: int
    captures_max_bytes: int
    clock: ClockFacts | None
    nccl_plugin: Path | None
    shared_memory: DirectoryFacts
    """Where the NCCL plugin writes to."""
    kineto: Mapping[str, str]
    """Variables of Kineto in doctor's own environment, which a job started from here inherits."""
    kineto_socket: SocketFacts | None
    """None when perfd is not to be Kineto's daemon."""
    py_spy: PySpyFacts
    aggregator: AggregatorFacts
    promtool: Path | None
