"""What sends one notification, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perfd.analysis.diagnosis import JobSummary
from perfd.exporters.notifications.notification_groups import Notification


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A notification with what is known of its job."""

    notification: Notification
    summary: JobSummary | None
    """The job's newest while its alerts fired, where the aggregator had one."""
    external_url: str | None
    time_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """Whether the receiver took it."""

    sent: bool
    retry: bool = False
    """Whether another attempt may succeed."""
    text: str = ""
    """Why it was not sent, or not to all addresses, without secrets; empty if it was."""
    retry_after_s: float | None = None


class NotificationSender(Protocol):
    """Sends notifications to one receiver, each within a bounded time."""

    def send(self, message: OutgoingMessage) -> SendResult:
        """Send one; never raises for errors of the network, the receiver or a secret."""

    def close(self) -> None:
        """Release everything."""
