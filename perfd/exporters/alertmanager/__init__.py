"""Sends alerts to an Alertmanager, and silences them there."""

from perfd.exporters.alertmanager.alertmanager_exporter import AlertmanagerExporter
from perfd.exporters.alertmanager.api_v2 import create_silence, silence_body

__all__ = [
    "AlertmanagerExporter",
    "create_silence",
    "silence_body",
]
