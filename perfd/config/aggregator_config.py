"""Configuration of `perfd aggregator`."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfd.config.exporter_config import ExportersConfig
from perfd.config.http_client_config import HttpClientConfig
from perfd.config.nats_config import NatsListenConfig
from perfd.config.object_storage_config import ObjectReadingConfig
from perfd.config.page_links import PageLinksConfig
from perfd.config.unknown_keys import Strict, TlsConfig

HISTORY_REPAIR_SUFFIX = ".damaged.txt"
"""Of the file beside `history.path` that has what its last repair saved and lost, in one line."""


class HistoryConfig(Strict, frozen=True):
    """Data that survives a restart of the aggregator."""

    path: str | None = None
    """An SQLite file; null without `url`: history only in memory, and a kill or restart loses it."""
    url: str | None = None
    """A PostgreSQL database instead: `postgresql://USER@HOST:PORT/DATABASE?sslmode=verify-full`, any
    parameters of libpq, no password."""
    password_file: str | None = None
    """File with the password for `url`, read for each connection; null: PGPASSFILE or PGPASSWORD."""
    allow_plaintext: bool = False
    """Required for a `url` on another machine without TLS."""
    retention_days: float = 30.0
    """In days in which the aggregator ran, so that a clock that is set ahead deletes nothing."""
    max_bytes: int = 8_000_000_000
    """Size of the file at `path` from which the jobs with the oldest data are deleted."""
    query_url: str | None = None
    """A Prometheus-compatible server that has perfd's metrics, for ranges of charts that neither memory nor
    history has: `http://prometheus:9090`, for Mimir with `/prometheus`. null: none."""
    query_http: HttpClientConfig = HttpClientConfig()
    """Requests to `query_url`."""


class RulesConfig(Strict, frozen=True):
    """Rules of the embedded engine."""

    builtin: bool = True
    files: list[str] = []
    interval_s: float = 1.0


class AnalysisConfig(Strict, frozen=True):
    """Definitions of derived metrics."""

    flops_convention: str = "megatron"
    """`megatron` (causal attention, as printed by core 0.12 and later), `palm`, or `6n`."""
    window_steps: int = 50
    """Number of newest steady steps over which live medians are computed."""
    gpu_peaks_file: str | None = None
    """A file in the format of `perfd/data/gpu_peaks.yaml`; its rows override built-in ones."""
    network_bytes_per_s: float | None = None
    """A GPU's share of network bandwidth between nodes, one direction (400 Gb/s: 5.0e+10), for expected
    times."""


class CaptureProfile(Strict, frozen=True):
    """The capture started by an alert's label `capture: NAME`."""

    tool: str | None = None
    """null: `capture_tool` for jobs, the engine's own profiler for serving engines."""
    steps: int | None = 5
    max_duration_s: float = 30.0
    ranks: str = "all"
    """`all`, a list (`0,3,8-11`), or `alert` for the alert's rank."""
    cooldown_s: float = 1800.0
    max_per_hour: int = 4
    quorum_ratio: float = 0.0
    """Minimum share of requested ranks; if fewer can be captured, all are stopped. 1: all or none."""


class WebhookConfig(Strict, frozen=True):
    """Webhook through which Alertmanager starts captures: POST /api/v1/webhooks/alertmanager."""

    token_file: str | None = None
    """File with the bearer token that Alertmanager must send; null: webhook disabled."""


class KubernetesIdentityConfig(Strict, frozen=True):
    """Agents show service-account tokens, which the API server reviews."""

    audience: str = "perfd"
    """The audience of the agents' projected tokens."""
    any_namespace: list[str] = []
    """Service accounts (`NAMESPACE/NAME`) whose agents may report jobs of all namespaces: a DaemonSet's."""
    api_server: str = "https://kubernetes.default.svc"
    ca: str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    token_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  (names a file)
    """The aggregator's own token; its service account needs the ClusterRole system:auth-delegator."""


class AgentIdentityConfig(Strict, frozen=True):
    """Who agents are. With `tls.ca` each is the node that its certificate names (docs/threat-model.md)."""

    any_node: list[str] = []
    """DNS names or URIs of certificates that many nodes share: who shows one may be every node. `*`: all."""
    kubernetes: KubernetesIdentityConfig | None = None
    """null: agents need no token."""
    any_job: list[str] = []
    """Nodes that may report every job, for example one that reads the logs of others."""


class NodeDrainConfig(Strict, frozen=True):
    """Take suspects out of scheduling without asking."""

    scheduler: Literal["slurm", "kubernetes"]
    """`scontrol update ... State=DRAIN`, or `kubectl taint`, run as the aggregator's user."""
    nodes_per_day: int = 1
    """The most nodes in 24 hours, attempts that failed included."""


class NodesConfig(Strict, frozen=True):
    """What nodes were blamed for over all jobs (docs/nodes.md)."""

    half_life_days: float = 14.0
    """Time after which an incident counts half."""
    drain: NodeDrainConfig | None = None
    """null: perfd only advises."""


class AggregatorConfig(Strict, frozen=True):
    """`perfd aggregator --config FILE`."""

    listen: str = "127.0.0.1:9461"
    """gRPC, for agents. Not used by a group (`nats.group`)."""
    nats: NatsListenConfig | None = None
    """Also read from NATS JetStream what agents with `uplink.nats` publish."""
    tls: TlsConfig | None = None
    allow_plaintext: bool = False
    """Required for `listen` without `tls` and for `http_listen` without `http_tls` on an address other than
    loopback."""
    agent_identity: AgentIdentityConfig = AgentIdentityConfig()
    audit_file: str | None = None
    """A file for captures and refusals, a JSON object per line; null: they are only logged and counted."""
    http_listen: str | None = "127.0.0.1:9460"
    """/metrics and /api/v1; null: none."""
    http_token_file: str | None = None
    """File with the bearer token for requests that change something; null: only local ones may."""
    http_read_token_file: str | None = None
    """File with the bearer token for reading; null: whoever reaches the address may read."""
    http_hosts: list[str] = []
    """Further names by which clients may call this server; others are refused (DNS rebinding)."""
    http_tls: TlsConfig | None = None
    """Certificate of the HTTP server; null: plain HTTP."""
    health_listen: str | None = None
    """A second address for /api/v1/healthz and /api/v1/readyz only, which other clients cannot keep busy."""
    round_interval_s: float = 1.0
    """Interval of analysis, hence the maximum age of values in /metrics, rules and exporters."""
    history: HistoryConfig = HistoryConfig()
    rules: RulesConfig = RulesConfig()
    analysis: AnalysisConfig = AnalysisConfig()
    capture_profiles: dict[str, CaptureProfile] = msgspec.field(
        default_factory=lambda: {
            "default": CaptureProfile(),
            "hang": CaptureProfile(tool="py_spy", steps=None),
            "flight_recorder": CaptureProfile(tool="flight_recorder", steps=None),
            "serving": CaptureProfile(steps=10),
        }
    )
    capture_tool: Literal["nsys", "kineto", "jax"] = "nsys"
    """Default tool of captures of jobs."""
    capture_reports: bool = True
    """Analyze traces of finished captures, if readable on this machine."""
    object_storage: ObjectReadingConfig | None = None
    """Where agents upload captures (`capture.object_storage`): for reports and links."""
    webhook: WebhookConfig = WebhookConfig()
    exporters: ExportersConfig = ExportersConfig()
    nodes: NodesConfig = NodesConfig()
    links: PageLinksConfig = PageLinksConfig()
    """Links that the page shows besides its own."""
    max_jobs: int = 256
    """Jobs in memory, of a group per partition. Beyond it, new jobs are left out, or take the place of one
    of the owner who has most."""
    job_forgotten_after_s: float = 3600.0
    """A job that sent nothing for so long is removed from /metrics; history keeps it."""
