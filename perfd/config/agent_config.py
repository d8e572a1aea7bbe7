"""What an operator may configure of `perfd agent`."""

from __future__ import annotations

from typing import Any

from perfd.collector import OnUnavailable
from perfd.config.strict import Strict, TlsConfig


class UplinkConfig(Strict, frozen=True):
    """Where batches go, and how the agent tries again."""

    address: str = "127.0.0.1:9461"
    tls: TlsConfig | None = None
    allow_plaintext: bool = False
    """Plaintext to an address that is not loopback must be asked for by name."""
    batch_interval_s: float = 1.0
    backoff_initial_s: float = 0.5
    backoff_max_s: float = 30.0
    max_unacknowledged: int = 64


class SpoolConfig(Strict, frozen=True):
    """The buffer on disk that survives a lost aggregator and a killed agent."""

    directory: str | None = None
    """Default: `perfd/NODE` under `$XDG_STATE_HOME` or `~/.local/state`."""
    max_bytes: int = 256 * 1024 * 1024


class CollectorConfig(Strict, frozen=True):
    """How the agent runs one collector; what is absent comes from the collector itself."""

    enabled: bool | None = None
    interval_s: float | None = None
    on_unavailable: OnUnavailable | None = None
    options: dict[str, Any] = {}


class KinetoConfig(Strict, frozen=True):
    """Captures with PyTorch's own profiler, in processes that were started with `KINETO_USE_DAEMON=1`."""

    enabled: bool = False
    """Be the daemon that libkineto polls, in place of dynolog's."""
    socket_directory: str | None = None
    """`KINETO_IPC_SOCKET_DIR` of the job, for containers; null for libkineto's abstract socket."""
    warmup_s: int = 2
    """For libkineto to switch CUPTI on before the start."""
    cpu_only: bool = False
    """A trace without GPU work is a result too."""
    iteration_roundup: int | None = None
    """With steps, start at the next multiple of so many optimizer steps; null: by the clock."""


class ServerConfig(Strict, frozen=True):
    """An inference server of this node that can profile itself."""

    address: str
    """`host:port` or `https://host:port` of its HTTP interface."""
    trace_directory: str
    """Where it may write traces; for vLLM and SGLang before 0.4.4, where it was launched to write them."""
    authorization_file: str | None = None
    """A file with the value of the `Authorization` header (`Bearer ...`)."""
    ca: str | None = None
    """Certificates (PEM) to trust for https."""
    insecure: bool = False
    """Take any certificate."""


class AgentCaptureConfig(Strict, frozen=True):
    """What captures may do on this node."""

    enabled: bool = True
    output_directory: str | None = None
    """Default: `captures` in the spool directory. Nothing is written elsewhere."""
    share_directory: str | None = None
    """Where redacted copies go that others may read; null: nothing leaves the node."""
    share_unredacted: bool = False
    """Put what cannot be redacted there too: an .nsys-rep holds the job's environment and output."""
    share_max_bytes: int | None = 100 * 1024 * 1024 * 1024
    """Of all nodes' captures there: the oldest are removed for new ones; null for no limit."""
    share_timeout_s: float = 60.0
    """A file system that takes longer for a capture's copies does not get them."""
    share_retention_days: float | None = 30.0
    """As `retention_days`, of all nodes' captures there."""
    max_bytes: int = 2 * 1024 * 1024 * 1024
    retention_days: float | None = 30.0
    """A capture is removed after so many days on which an agent ran; null: it stays until you remove it."""
    min_free_bytes: int = 1024 * 1024 * 1024
    nsys_path: str | None = None
    launch: bool = True
    """`perfd run` starts the job under `nsys launch` where nsys is there; without it nsys cannot capture."""
    trace: str = "cuda,nvtx"
    """What `nsys launch --trace` records; fixed for the whole job."""
    export_sqlite: bool = True
    """Export each report, which is how perfd checks that every rank's kernels are in it."""
    gpu_metrics: bool = False
    """Sample GPU metrics in captures; needs admin rights on the GPUs and excludes DCGM's profiling."""
    kineto: KinetoConfig = KinetoConfig()
    py_spy_path: str | None = None
    """Default: py-spy on `$PATH`, else the one beside perfd. It dumps the stacks of jobs that hang."""
    py_spy_nonblocking: bool = True
    """Do not pause the process; a stack can then be inconsistent, and a pause cannot hurt the job."""
    sglang: tuple[ServerConfig, ...] = ()
    vllm: tuple[ServerConfig, ...] = ()
    max_slowdown_ratio: float | None = 2.0
    """A capture is stopped when steps take so many times as long as before it; null for never."""
    nccl_timeout_s: float = 600.0
    """A job whose log is silent for half as long is only touched by tools for hangs."""


class AgentConfig(Strict, frozen=True):
    """`perfd agent --config FILE`."""

    node: str | None = None
    """Default: `$SLURMD_NODENAME`, else the host name."""
    job: str | None = None
    """Default: found from the job's environment (`SLURM_JOB_ID`, torchelastic's run id), else `default`."""
    listen: str | None = "127.0.0.1:9462"
    """The agent's own /metrics; null for none."""
    proc: str = "/proc"
    sys: str = "/sys"
    uplink: UplinkConfig = UplinkConfig()
    spool: SpoolConfig = SpoolConfig()
    capture: AgentCaptureConfig = AgentCaptureConfig()
    collectors: dict[str, CollectorConfig] = {}
