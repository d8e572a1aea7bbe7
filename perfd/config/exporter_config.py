"""Configuration of exporters."""

from __future__ import annotations

from typing import Any, Literal

from perfd.config.http_client_config import HttpClientConfig
from perfd.config.notification_config import NotificationsConfig
from perfd.config.unknown_keys import Strict


class JsonLinesConfig(Strict, frozen=True):
    """One line of JSON per job and second."""

    path: str | None = None
    """null: off."""
    max_bytes: int = 256 * 1024 * 1024
    """A file of this size is renamed to PATH.1, replacing an older one."""


class TensorBoardConfig(Strict, frozen=True):
    """Event files for TensorBoard."""

    directory: str | None = None
    """Each JOB/attempt-N below it is a TensorBoard run; null: off."""
    max_jobs: int = 64
    """Jobs written at a time; further ones are counted as lost."""


class TeamConfig(Strict, frozen=True):
    """Whose jobs: the first team that matches a job counts; what it leaves null is the exporter's."""

    match: dict[str, str]
    """Patterns with `*`, `?` and `[...]` by label: `perfd_job`, `cluster`, `namespace`, `user`, `account` or
    `partition`. All must match; a label that a job lacks matches as empty text."""


class WandbTeam(TeamConfig, frozen=True):
    """Where the runs of a team are."""

    project: str | None = None
    entity: str | None = None
    api_key_file: str | None = None
    api_key_variable: str | None = None
    tags: list[str] = []
    """Besides the exporter's."""


class WandbConfig(Strict, frozen=True):
    """Weights & Biases; needs the package `perfd[wandb]`."""

    mode: Literal["online", "offline", "disabled"] = "disabled"
    """`online`, `offline` (written to `directory`, for `wandb sync`) or `disabled`."""
    project: str = "perfd"
    entity: str | None = None
    run: Literal["same", "sibling"] = "sibling"
    """`same`: the job's own run; `sibling`: a separate run, with `-perfd` appended to the id."""
    run_id: str = "{job}"
    """The id of the job's own run (`WANDB_RUN_ID` in the job); `{job}` is the job's name in perfd."""
    group: str | None = "{job}"
    """Group of a sibling run."""
    directory: str | None = None
    """Directory for W&B's files; null: `wandb` in the working directory."""
    base_url: str | None = None
    """A self-hosted server; null: from W&B's own configuration, else wandb.ai."""
    api_key_file: str | None = None
    """null: `api_key_variable`, else W&B's own configuration, for example ~/.netrc."""
    api_key_variable: str | None = None
    """The environment variable of the aggregator that holds the key."""
    tags: list[str] = []
    """Of a sibling run, at most 64 characters each."""
    teams: list[WandbTeam] = []
    """Jobs whose project, entity, key and tags are others."""
    alerts: bool = True
    timeout_s: float = 30.0
    max_runs: int = 128
    """Runs open at a time; rows of further jobs are counted as lost."""


class MlflowTeam(TeamConfig, frozen=True):
    """Where the runs of a team are."""

    experiment: str | None = None
    tags: dict[str, str] = {}
    """Besides the exporter's, which they override."""
    http: HttpClientConfig | None = None
    """Credentials of the team."""


class MlflowConfig(Strict, frozen=True):
    """An MLflow tracking server, by its REST API 2.0."""

    url: str | None = None
    """For example http://mlflow:5000; null: off."""
    experiment: str = "perfd"
    """Created if it does not exist."""
    tags: dict[str, str] = {}
    """Of every run."""
    teams: list[MlflowTeam] = []
    """Jobs whose experiment, tags and credentials are others."""
    max_runs: int = 128
    """Runs written at a time; rows of further jobs are counted as lost."""
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 60.0
    http: HttpClientConfig = HttpClientConfig()


class PushConfig(Strict, frozen=True):
    """All series, sent over HTTP at an interval."""

    url: str | None = None
    """null: off."""
    interval_s: float = 10.0
    max_pending_bytes: int = 64 * 1024 * 1024
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 60.0
    http: HttpClientConfig = HttpClientConfig()


class RemoteWriteConfig(PushConfig, frozen=True):
    """Prometheus remote write 1.0; needs the package `perfd[remote-write]`."""

    url: str | None = None
    """For example http://prometheus:9090/api/v1/write; null: off."""
    interval_s: float = 5.0
    external_labels: dict[str, str] = {}
    max_samples_per_request: int = 5_000


class OtlpConfig(PushConfig, frozen=True):
    """OTLP over HTTP, to an OpenTelemetry collector; needs the package `perfd[otlp]`."""

    url: str | None = None
    """For example http://collector:4318/v1/metrics; null: off."""
    resource_attributes: dict[str, str] = {}
    """Besides `service.name`, for example `deployment.environment.name`."""
    max_points_per_request: int = 5_000


class AlertmanagerConfig(Strict, frozen=True):
    """Alertmanagers that receive alerts of the embedded engine."""

    urls: list[str] = []
    """All Alertmanagers of a cluster, not a load balancer; empty: off."""
    resend_s: float = 60.0
    external_labels: dict[str, str] = {}
    external_url: str | None = None
    """Public URL of this aggregator, for links in alerts."""
    max_alerts: int = 10_000
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 30.0
    http: HttpClientConfig = HttpClientConfig()


class ExportersConfig(Strict, frozen=True):
    """Receivers of metrics and alerts."""

    jsonl: JsonLinesConfig = JsonLinesConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    wandb: WandbConfig = WandbConfig()
    mlflow: MlflowConfig = MlflowConfig()
    remote_write: RemoteWriteConfig = RemoteWriteConfig()
    otlp: OtlpConfig = OtlpConfig()
    alertmanager: AlertmanagerConfig = AlertmanagerConfig()
    notifications: NotificationsConfig = NotificationsConfig()
    others: dict[str, dict[str, Any]] = {}
    """Options of third-party exporters, by the name of their entry point."""
