"""What an operator may configure of the places that numbers and alerts go to."""

from __future__ import annotations

from typing import Any

from perfd.config.strict import Strict


class HttpClientConfig(Strict, frozen=True):
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


class JsonLinesConfig(Strict, frozen=True):
    """Numbers of each job as a line of JSON a second."""

    path: str | None = None
    """null: off."""
    max_bytes: int = 256 * 1024 * 1024
    """A file of this size becomes PATH.1, in place of an older one."""


class TensorBoardConfig(Strict, frozen=True):
    """Event files for TensorBoard."""

    directory: str | None = None
    """JOB/attempt-N below it is a run of TensorBoard's; null: off."""
    max_jobs: int = 64
    """Jobs that are written at once; those beyond are counted as lost."""


class WandbConfig(Strict, frozen=True):
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


class RemoteWriteConfig(Strict, frozen=True):
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


class AlertmanagerConfig(Strict, frozen=True):
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


class ExportersConfig(Strict, frozen=True):
    """To whom the aggregator hands numbers and alerts."""

    jsonl: JsonLinesConfig = JsonLinesConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    wandb: WandbConfig = WandbConfig()
    remote_write: RemoteWriteConfig = RemoteWriteConfig()
    alertmanager: AlertmanagerConfig = AlertmanagerConfig()
    others: dict[str, dict[str, Any]] = {}
    """Options of exporters from other packages, by the name of their entry point."""
