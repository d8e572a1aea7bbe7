"""Alerts: those of the embedded rule engine and those an Alertmanager sends."""

from perfd.aggregator.alerts.alert_evaluation import AlertEvaluation
from perfd.aggregator.alerts.alertmanager_webhook import (
    Decision,
    WebhookOutcome,
    job_of,
    read_webhook,
    unknown_job,
)
from perfd.aggregator.alerts.announcements import Announcements

__all__ = [
    "AlertEvaluation",
    "Announcements",
    "Decision",
    "WebhookOutcome",
    "job_of",
    "read_webhook",
    "unknown_job",
]
