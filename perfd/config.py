"""What an operator may configure, one type per role, and how a file of it is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from perfd.collector import OnUnavailable
from perfd.errors import ConfigError


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Refuses unknown keys, so that a misspelled one is an error and not silence."""


T = TypeVar("T", bound=msgspec.Struct)


class TlsConfig(_Strict, frozen=True):
    """Certificates in PEM files; with `ca` the other side must show one too (mutual TLS)."""

    certificate: str | None = None
    key: str | None = None
    ca: str | None = None


class UplinkConfig(_Strict, frozen=True):
    """Where batches go, and how the agent tries again."""

    address: str = "127.0.0.1:9461"
    tls: TlsConfig | None = None
    allow_plaintext: bool = False
    """Plaintext to an address that is not loopback must be asked for by name."""
    batch_interval_s: float = 1.0
    backoff_initial_s: float = 0.5
    backoff_max_s: float = 30.0
    max_unacknowledged: int = 64


class SpoolConfig(_Strict, frozen=True):
    """The buffer on disk that survives a lost aggregator and a killed agent."""

    directory: str | None = None
    """Default: `perfd/NODE` under `$XDG_STATE_HOME` or `~/.local/state`."""
    max_bytes: int = 256 * 1024 * 1024


class CollectorConfig(_Strict, frozen=True):
    """How the agent runs one collector; what is absent comes from the collector itself."""

    enabled: bool | None = None
    interval_s: float | None = None
    on_unavailable: OnUnavailable | None = None
    options: dict[str, Any] = {}


class KinetoConfig(_Strict, frozen=True):
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


class ServerConfig(_Strict, frozen=True):
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


class AgentCaptureConfig(_Strict, frozen=True):
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
    """Captures are removed after so many days on which an agent ran; null: they stay until you remove them."""
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


class AgentConfig(_Strict, frozen=True):
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


class HistoryConfig(_Strict, frozen=True):
    """What survives a restart of the aggregator."""

    path: str | None = None
    """An SQLite file; null keeps history in memory only."""
    retention_days: float = 30.0


class RulesConfig(_Strict, frozen=True):
    """Which rules the embedded engine evaluates."""

    builtin: bool = True
    files: list[str] = []
    interval_s: float = 5.0


class AnalysisConfig(_Strict, frozen=True):
    """How derived numbers are defined."""

    flops_convention: str = "megatron"
    """`megatron` (causal attention, as core 0.12 and later print it), `palm`, or `6n`."""
    window_steps: int = 50
    """Steady steps that live numbers are a median of."""
    gpu_peaks_file: str | None = None
    """A file in the form of `perfd/data/gpu_peaks.yaml`; its rows win over the built-in ones."""
    network_bytes_per_s: float | None = None
    """One direction of a GPU's share of the network between nodes (400 Gb/s: 5.0e+10); the ring needs it."""


class CaptureProfile(_Strict, frozen=True):
    """What an alert's `capture: NAME` label starts."""

    tool: str | None = None
    """null: nsys for a job, and for a serving engine the engine's own profiler."""
    steps: int | None = 5
    max_duration_s: float = 30.0
    ranks: str = "all"
    """`all`, a list (`0,3,8-11`), or `alert` for the rank that the alert names."""
    cooldown_s: float = 1800.0
    max_per_hour: int = 4
    quorum_ratio: float = 0.0
    """Of the asked ranks: when fewer can be captured, the others are stopped too; 1: all or none."""


class HttpClientConfig(_Strict, frozen=True):
    """How requests to a server of others are made."""

    timeout_s: float = 10.0
    """For a whole request and its answer."""
    username: str | None = None
    password_file: str | None = None
    bearer_token_file: str | None = None
    ca: str | None = None
    """Certificates to trust, in a PEM file; null for the system's."""
    certificate: str | None = None
    """Shown to a server that asks for one (mutual TLS), with its `key`; PEM files."""
    key: str | None = None
    headers: dict[str, str] = {}
    """Sent as well, for example `X-Scope-OrgID` to Mimir."""


class JsonLinesConfig(_Strict, frozen=True):
    """Numbers of each job as a line of JSON a second."""

    path: str | None = None
    """null: off."""
    max_bytes: int = 256 * 1024 * 1024
    """A file of this size becomes PATH.1, in place of an older one."""


class TensorBoardConfig(_Strict, frozen=True):
    """Event files for TensorBoard."""

    directory: str | None = None
    """JOB/attempt-N below it is a run of TensorBoard's; null: off."""
    max_jobs: int = 64
    """Jobs that are written at once; those beyond are counted as lost."""


class WandbConfig(_Strict, frozen=True):
    """Weights & Biases, by the package `perfd[wandb]`."""

    mode: str = "disabled"
    """`online`, `offline` (written to `directory`, for `wandb sync`) or `disabled`."""
    project: str = "perfd"
    entity: str | None = None
    run: str = "sibling"
    """`same`: the job's own run; `sibling`: one beside it, its id with `-perfd` at the end."""
    run_id: str = "{job}"
    """The id of the job's own run (`WANDB_RUN_ID` in the job); `{job}` is the job's name in perfd."""
    group: str | None = "{job}"
    """Of a sibling run."""
    directory: str | None = None
    """Where W&B keeps its files; null: `wandb` in the working directory."""
    base_url: str | None = None
    """A server of one's own; null for W&B's, or what W&B's own configuration says."""
    api_key_file: str | None = None
    """null: W&B's own configuration, for example ~/.netrc."""
    alerts: bool = True
    timeout_s: float = 30.0
    max_runs: int = 16
    """Runs that are open at once, each a process of W&B's; rows of jobs beyond are counted as lost."""


class RemoteWriteConfig(_Strict, frozen=True):
    """Prometheus remote write 1.0, by the package `perfd[remote-write]`."""

    url: str | None = None
    """For example http://prometheus:9090/api/v1/write; null: off."""
    interval_s: float = 5.0
    external_labels: dict[str, str] = {}
    max_samples_per_request: int = 5_000
    max_pending_bytes: int = 64 * 1024 * 1024
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 60.0
    http: HttpClientConfig = HttpClientConfig()


class AlertmanagerConfig(_Strict, frozen=True):
    """Where alerts of the embedded engine go."""

    urls: list[str] = []
    """All Alertmanagers of a cluster, not a balancer before them; empty: off."""
    resend_s: float = 60.0
    external_labels: dict[str, str] = {}
    external_url: str | None = None
    """How people reach this aggregator, for links in alerts."""
    max_alerts: int = 10_000
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 30.0
    http: HttpClientConfig = HttpClientConfig()


class ExportersConfig(_Strict, frozen=True):
    """To whom the aggregator hands numbers and alerts."""

    jsonl: JsonLinesConfig = JsonLinesConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    wandb: WandbConfig = WandbConfig()
    remote_write: RemoteWriteConfig = RemoteWriteConfig()
    alertmanager: AlertmanagerConfig = AlertmanagerConfig()
    others: dict[str, dict[str, Any]] = {}
    """Options of exporters from other packages, by the name of their entry point."""


class WebhookConfig(_Strict, frozen=True):
    """Where an Alertmanager tells of alerts that start captures: POST /api/v1/webhooks/alertmanager."""

    token_file: str | None = None
    """Holds the bearer token that the Alertmanager must show; null: no receiver."""


class AggregatorConfig(_Strict, frozen=True):
    """`perfd aggregator --config FILE`."""

    listen: str = "127.0.0.1:9461"
    """gRPC, for agents."""
    tls: TlsConfig | None = None
    allow_plaintext: bool = False
    http_listen: str | None = "127.0.0.1:9460"
    """/metrics and /api/v1; null for none."""
    http_token_file: str | None = None
    """Holds the bearer token that lets a request change something; null: only this machine's may."""
    round_interval_s: float = 1.0
    """Between two rounds of analysis; /metrics, rules and exporters see numbers that are so old at most."""
    history: HistoryConfig = HistoryConfig()
    rules: RulesConfig = RulesConfig()
    analysis: AnalysisConfig = AnalysisConfig()
    capture_profiles: dict[str, CaptureProfile] = msgspec.field(
        default_factory=lambda: {
            "default": CaptureProfile(),
            "hang": CaptureProfile(tool="py_spy", steps=None),
            "serving": CaptureProfile(steps=10),
        }
    )
    capture_reports: bool = True
    """Analyse the traces of captures that end, where this machine can read them."""
    webhook: WebhookConfig = WebhookConfig()
    exporters: ExportersConfig = ExportersConfig()
    job_forgotten_after_s: float = 3600.0
    """A job that sent nothing for so long leaves /metrics; history keeps it."""


def parse(text: str, kind: type[T], *, name: str = "configuration") -> T:
    """Read YAML of one configuration type.

    Raises `ConfigError` with `name`, and the path of the key or the line that is wrong.
    """
    return _convert(_mapping(text, name), kind, name)


def load(path: Path, kind: type[T]) -> T:
    """Read a configuration file, and over it the drop-ins beside it.

    Drop-ins of `agent.yaml` are `agent.d/*.yaml`, in the order of their names: mappings are merged, anything
    else replaces what was there. Raises `ConfigError` as `parse` does, and when a file cannot be read.
    """
    merged = _mapping(_read(path), str(path))
    config = _convert(merged, kind, str(path))
    for drop_in in sorted(path.with_suffix(".d").glob("*.yaml")):
        merged = _over(merged, _mapping(_read(drop_in), str(drop_in)))
        # One at a time, so that an error names the file that brought it.
        config = _convert(merged, kind, str(drop_in))
    return config


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is not YAML: it is not UTF-8 text.") from error


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise ConfigError(f"{place}: this is not YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: this is not YAML: {' '.join(str(error).split())}.") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: a configuration is a mapping of keys to values, such as `KEY: VALUE`.")
    return data


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, in which `above` wins."""
    both = {
        key: _over(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in above.items()
    }
    return {**below, **both}


def _convert(data: Mapping[str, Any], kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from error
