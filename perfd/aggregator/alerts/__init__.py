"""Alerts: those of the embedded rule engine and those an Alertmanager sends."""

from perfd.aggregator.alerts.alert_evaluation import AlertEvaluation, RememberedAlert, alert_json
from perfd.aggregator.alerts.alertmanager import (
    Decision,
    ReceivedAlert,
    WebhookOutcome,
    read_webhook,
    server_of,
    unknown_job,
)

__all__ = [
    "AlertEvaluation",
    "Decision",
    "ReceivedAlert",
    "RememberedAlert",
    "WebhookOutcome",
    "alert_json",
    "read_webhook",
    "server_of",
    "unknown_job",
]
