"""Configuration of `perfd agent`."""

from __future__ import annotations

from typing import Any

from perfd.collector import OnUnavailable
from perfd.config.nats_config import NatsUplinkConfig
from perfd.config.object_storage_config import ObjectStorageConfig
from perfd.config.unknown_keys import Strict, TlsConfig


class UplinkConfig(Strict, frozen=True):
    """Destination of batches, and retries."""

    address: str = "127.0.0.1:9461"
    nats: NatsUplinkConfig | None = None
    """Publish to NATS JetStream, in place of `address`, `tls`, `token_file` and `allow_plaintext`."""
    tls: TlsConfig | None = None
    token_file: str | None = None
    """File with a token that is shown to the aggregator, for example a projected service-account token."""
    allow_plaintext: bool = False
    """Required for a connection without TLS to an address other than loopback."""
    batch_interval_s: float = 1.0
    quiet_batch_interval_s: float | None = None
    """Interval while nothing changes on the node (docs/scale.md); null: as the aggregator asks."""
    backoff_initial_s: float = 0.5
    backoff_max_s: float = 30.0
    max_unacknowledged: int = 64


class SpoolConfig(Strict, frozen=True):
    """The buffer on disk for batches that the aggregator has not acknowledged."""

    directory: str | None = None
    """Default: `perfd/NODE` under `$XDG_STATE_HOME` or `~/.local/state`."""
    max_bytes: int = 256 * 1024 * 1024


class CollectorConfig(Strict, frozen=True):
    """How the agent runs one collector; absent values default to the collector's own."""

    enabled: bool | None = None
    interval_s: float | None = None
    on_unavailable: OnUnavailable | None = None
    options: dict[str, Any] = {}


class KinetoConfig(Strict, frozen=True):
    """Captures with PyTorch's profiler, in processes started with `KINETO_USE_DAEMON=1`."""

    enabled: bool = False
    """Act as the daemon that libkineto polls, instead of dynolog."""
    socket_directory: str | None = None
    """`KINETO_IPC_SOCKET_DIR` of the job, for containers; null for libkineto's abstract socket."""
    warmup_s: int = 2
    """Time for libkineto to enable CUPTI before the start."""
    cpu_only: bool = False
    """Accept traces without GPU work."""
    iteration_roundup: int | None = None
    """With steps, start at the next multiple of this many optimizer steps; null: start by time."""


class JaxConfig(Strict, frozen=True):
    """Captures with JAX's profiler, in processes that called `jax.profiler.start_server`."""

    ports: tuple[int, ...] = ()
    """Ports of profiler servers; empty: found among those on which the job's processes listen."""
    cpu_only: bool = False
    """Accept traces without work of a GPU or TPU."""


class ServerConfig(Strict, frozen=True):
    """A serving engine on this node that can profile itself."""

    address: str
    """`host:port` or `https://host:port` of its HTTP interface."""
    trace_directory: str
    """Directory for its traces; for vLLM and SGLang before 0.4.4, the one set at launch."""
    authorization_file: str | None = None
    """A file with the value of the `Authorization` header (`Bearer ...`)."""
    ca: str | None = None
    """Certificates (PEM) to trust for https."""
    insecure: bool = False
    """Accept any certificate."""


class AgentCaptureConfig(Strict, frozen=True):
    """Limits and tools of captures on this node."""

    enabled: bool = True
    output_directory: str | None = None
    """Default: `captures` in the spool directory. Captures are written nowhere else."""
    share_directory: str | None = None
    """Directory for redacted copies that other users may read; null: no copies."""
    object_storage: ObjectStorageConfig | None = None
    """Upload such copies to S3-compatible storage instead; excludes `share_directory`."""
    share_unredacted: bool = False
    """Also copy files that cannot be redacted: an .nsys-rep contains the job's environment and output."""
    share_max_bytes: int | None = 100 * 1024 * 1024 * 1024
    """Limit for all nodes' captures there; the oldest are removed for new ones. null: no limit."""
    share_timeout_s: float = 60.0
    """Copies that take longer are canceled."""
    share_retention_days: float | None = 30.0
    """As `retention_days`, for all nodes' captures there."""
    max_bytes: int = 2 * 1024 * 1024 * 1024
    retention_days: float | None = 30.0
    """Captures are removed after this many days on which an agent ran; null: never."""
    min_free_bytes: int = 1024 * 1024 * 1024
    nsys_path: str | None = None
    launch: bool = True
    """`perfd run` starts the job under `nsys launch` if nsys is installed; nsys cannot capture otherwise."""
    trace: str = "cuda,nvtx"
    """Value of `nsys launch --trace`; fixed for the whole job."""
    export_sqlite: bool = True
    """Export each report to SQLite, which perfd needs to check that it contains all ranks' kernels."""
    gpu_metrics: bool = False
    """Sample GPU metrics in captures; needs admin permissions on the GPUs, and excludes DCGM profiling."""
    kineto: KinetoConfig = KinetoConfig()
    jax: JaxConfig = JaxConfig()
    py_spy_path: str | None = None
    """py-spy, which dumps stacks of hanging jobs. Default: the one on `$PATH`, else the one beside perfd."""
    py_spy_nonblocking: bool = True
    """Do not pause the process: stacks may be inconsistent, but the job is not disturbed."""
    sglang: tuple[ServerConfig, ...] = ()
    vllm: tuple[ServerConfig, ...] = ()
    max_slowdown_ratio: float | None = 2.0
    """A capture is stopped when steps take this many times as long as before; null: never."""
    nccl_timeout_s: float = 600.0
    """NCCL's timeout in the job. If its log is silent for half as long, only tools for hangs are used."""


class AgentConfig(Strict, frozen=True):
    """`perfd agent --config FILE`."""

    node: str | None = None
    """Default: `$SLURMD_NODENAME`, else the host name."""
    job: str | None = None
    """Default: found from the job's environment (`SLURM_JOB_ID`, torchelastic's run id), else `default`."""
    listen: str | None = "127.0.0.1:9462"
    """Address of the agent's /metrics; null: none."""
    http_read_token_file: str | None = None
    """File with the bearer token for /metrics; null: whoever reaches the address may read."""
    http_hosts: list[str] = []
    """Further names by which clients may call this server."""
    http_tls: TlsConfig | None = None
    """Certificate of the agent's HTTP server; null: plain HTTP."""
    sandbox: bool | None = None
    """Whether logs and dumps are parsed in processes without rights; null: if the agent is root."""
    proc: str = "/proc"
    sys: str = "/sys"
    uplink: UplinkConfig = UplinkConfig()
    spool: SpoolConfig = SpoolConfig()
    capture: AgentCaptureConfig = AgentCaptureConfig()
    collectors: dict[str, CollectorConfig] = {}
