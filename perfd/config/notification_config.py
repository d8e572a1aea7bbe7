"""Configuration of notifications: alerts sent to people without an Alertmanager."""

from __future__ import annotations

from typing import Literal

from perfd.config.http_client_config import HttpClientConfig
from perfd.config.unknown_keys import Strict


class NotificationReceiver(Strict, frozen=True, kw_only=True):
    """What every receiver has."""

    name: str
    """Letters, digits, `_`, `.` and `-`: its metrics and log lines have it."""
    match: dict[str, str] = {}
    """Patterns with `*`, `?` and `[...]` by label of an alert, for example `severity: critical`. All must
    match; a label that an alert lacks matches as empty text. Empty: all alerts."""


class WebhookReceiver(NotificationReceiver, frozen=True, kw_only=True):
    """A URL to which notifications are posted as JSON."""

    format: Literal["json", "slack"] = "json"
    """`json`: schema perfd.notification/1; `slack`: what Slack, Mattermost and Rocket.Chat accept."""
    url: str | None = None
    """For a URL without a secret in it."""
    url_file: str | None = None
    """A file with the URL; that of Slack is a secret."""
    url_variable: str | None = None
    """The environment variable of the aggregator that holds the URL."""
    http: HttpClientConfig = HttpClientConfig()


class EmailReceiver(NotificationReceiver, frozen=True, kw_only=True):
    """Addresses that get e-mail by SMTP."""

    host: str
    port: int | None = None
    """null: 587 for `starttls`, 465 for `tls`, 25 for `none`."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls` refuses a server without it; with `none` there is no login."""
    sender: str
    to: list[str]
    username: str | None = None
    password_file: str | None = None
    password_variable: str | None = None
    """The environment variable of the aggregator that holds the password."""
    ca: str | None = None
    """Certificates to trust, in a PEM file; null: the system's."""
    timeout_s: float = 20.0
    """For a whole e-mail."""


class NotificationsConfig(Strict, frozen=True):
    """Alerts of the embedded engine as messages to people (docs/notifications.md)."""

    webhooks: list[WebhookReceiver] = []
    emails: list[EmailReceiver] = []
    external_url: str | None = None
    """Public URL of this aggregator, for links to a job's page; null: no links."""
    group_wait_s: float = 30.0
    """How long further alerts of a job are awaited, so that they come in one message."""
    group_interval_s: float = 300.0
    """The shortest time between two messages about a job to one receiver."""
    repeat_interval_s: float | None = 14_400.0
    """After this time a message is sent again while its alerts fire; null: never."""
    resolved: bool = True
    """Whether the end of alerts is sent, too."""
    max_alerts: int = 2_000
    """Alerts remembered per receiver; further ones are counted as lost."""
    backoff_initial_s: float = 1.0
    backoff_max_s: float = 60.0
