"""Sends alerts to an Alertmanager."""

from perfd.exporters.alertmanager.alertmanager_exporter import AlertmanagerExporter

__all__ = [
    "AlertmanagerExporter",
]
