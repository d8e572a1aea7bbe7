"""Sends alerts to people: webhooks and e-mail, without an Alertmanager."""

from perfd.exporters.notifications.notification_exporter import NotificationExporter, receivers_of

__all__ = [
    "NotificationExporter",
    "receivers_of",
]
