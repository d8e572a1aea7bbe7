"""The facts that `perfd doctor` probes on a node. None means unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfd.capture.nsys import Installation
from perfd.doctor.stream_facts import StreamFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU by NVML."""

    index: int
    name: str
    gpm: bool | None
    """Whether it has GPU performance monitoring (Hopper and later)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFacts:
    """Responses of NVML."""

    driver: str | None = None
    error: str = ""
    """NVML's error message, when it could not be initialized."""
    library_missing: bool = False
    """NVML is not installed, which is normal without an NVIDIA driver."""
    gpus: Sequence[GpuFacts] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysFacts:
    """The nsys that captures would use."""

    installation: Installation | None = None
    version: str | None = None
    importer_problem: str = ""
    """Why the importer fails; empty when it works, or there is none."""
    libdw: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """How many processes' environments this user can read."""

    total: int
    unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFacts:
    """A directory that perfd writes to, or would create."""

    path: Path
    free_bytes: int
    problem: str = ""
    """Why it is not writable; empty when it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """The wall clock's synchronization by the kernel (adjtimex)."""

    synchronized: bool
    max_error_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorFacts:
    """Whether the aggregator's gRPC port accepts a TCP connection."""

    address: str
    configured: bool
    """Set by the operator; otherwise the default on this machine."""
    error: str = ""
    """Empty on success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFacts:
    """The NATS servers of a gateway."""

    servers: str
    needed_bytes: int
    """Largest batch that it publishes."""
    max_payload_bytes: int = 0
    """Largest message that the servers take; 0: not known."""
    error: str = ""
    """Empty on success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryServerFacts:
    """The PostgreSQL database of a history."""

    place: str
    """Its address without a password; empty when it is not known."""
    version: str = ""
    schema: str | None = None
    """The revision of its tables; None: there are none yet."""
    encrypted: bool = False
    error: str = ""
    """Empty on success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFacts:
    """Where the aggregator that is configured on this machine keeps its history."""

    directory: DirectoryFacts | None
    """None: history is off, or in PostgreSQL."""
    max_bytes: int
    server: HistoryServerFacts | None = None
    repair: str = ""
    """What the last repair of a damaged file saved and lost; empty if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """Object storage, in which a small file was stored."""

    url: str
    problem: str = ""
    """Why it was not; empty if it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFacts:
    """The socket that libkineto polls."""

    place: str
    taken: bool
    owner: str = ""
    """The process that serves it; empty when not visible."""
    problem: str = ""
    """Why it could not be checked."""


@dataclass(frozen=True, slots=True)
class NcclSetting:
    """The value of one of NCCL's variables, and what sets it."""

    value: str
    source: str
    """`the environment`, or a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PySpyFacts:
    """py-spy, and its permissions."""

    path: Path | None
    ptrace_scope: int | None
    """kernel.yama.ptrace_scope; None without Yama."""
    may_trace: bool
    """Whether this user has CAP_SYS_PTRACE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All facts for the checks."""

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
    """The NCCL plugin's output directory."""
    nccl_settings: Mapping[str, NcclSetting] = field(default_factory=dict)
    """NCCL's variables by name, as a job on this node gets them."""
    infiniband: Sequence[str] = ()
    """Devices of /sys/class/infiniband with an active port."""
    interfaces: Sequence[str] = ()
    """Network interfaces."""
    kineto: Mapping[str, str]
    """Kineto's variables in doctor's environment, which jobs started from here inherit."""
    kineto_socket: SocketFacts | None
    """None when Kineto captures are disabled."""
    jax: Mapping[int, str]
    """Processes that have loaded JAX: why its profiler cannot capture them, empty when it can."""
    py_spy: PySpyFacts
    aggregator: AggregatorFacts
    uploads: StorageFacts | None = None
    """Where captures go; None: `capture.object_storage` is not configured."""
    reports: StorageFacts | None = None
    """Where the aggregator reads captures and stores reports; None: not configured, or not known."""
    history: HistoryFacts | None
    """None without the aggregator's configuration."""
    gateway: GatewayFacts | None
    """None without the gateway's configuration."""
    stream: StreamFacts | None = None
    """None where the aggregator's configuration has no `nats`, or is not known."""
    promtool: Path | None
