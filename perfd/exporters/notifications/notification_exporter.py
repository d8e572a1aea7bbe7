"""Sends the alerts of rounds to one receiver of notifications."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import msgspec

from perfd.analysis.diagnosis import JobSummary
from perfd.config import EmailReceiver, NotificationReceiver, NotificationsConfig, WebhookReceiver
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.links import check_external_url
from perfd.exporters.notifications.email_sender import EmailSender
from perfd.exporters.notifications.notification_groups import Notification, NotificationGroups
from perfd.exporters.notifications.notification_sender import NotificationSender, OutgoingMessage, SendResult
from perfd.exporters.notifications.webhook_sender import WebhookSender

log = logging.getLogger(__name__)
_KEY = "exporters.notifications"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SEND_FOR_S = 5.0
"""After this long in one round the rest waits for the next, so that rounds do not pile up."""


class NotificationExporter:
    """Sends messages to one receiver; each has its own exporter, so that none waits for another."""

    def __init__(
        self, receiver: NotificationReceiver, config: NotificationsConfig, context: ExporterContext
    ) -> None:
        self._receiver = receiver
        self._config = config
        self._sender = _sender(receiver)
        self._groups = NotificationGroups(config, receiver.match)
        self._backoff = Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s)
        self._clock = context.clock
        self._tally = context.tally
        self._chance = context.chance
        self._memory = context.memory
        self._failed: Notification | None = None
        self._refused = False
        self._last_unix_s: float | None = None
        self._summaries: dict[str, JobSummary] = {}
        self._restore()

    def export(self, round_: Round) -> None:
        self._tally.lost += self._groups.update(round_.changes, round_.firing, round_.time_unix_s)
        self._last_unix_s = round_.time_unix_s
        self._keep_summaries(round_)
        # What is not sent when history takes nothing more is sent by the next process, and only there.
        if not self._ending and self._backoff.due(self._clock.monotonic_s()):
            self._send(round_.time_unix_s)
        self._remember()
        self._tally.pending = self._groups.waiting

    def close(self) -> None:
        if self._last_unix_s is not None and self._memory is None:
            # There is no next process to send it.
            self._send(self._last_unix_s, at_once=True)
            self._tally.pending = self._groups.waiting
        self._sender.close()

    @property
    def _ending(self) -> bool:
        return self._memory is not None and self._memory.closing

    def _keep_summaries(self, round_: Round) -> None:
        """What limited a job while its alerts fired: it may be over when the message is sent."""
        firing, known = self._groups.firing_jobs, self._groups.jobs
        newest = {job.summary.name: job.summary for job in round_.jobs}
        self._summaries = {
            name: newest[name] if name in newest and (name in firing or name not in self._summaries) else kept
            for name in known
            if (kept := self._summaries.get(name, newest.get(name))) is not None
        }

    def _send(self, now_unix_s: float, *, at_once: bool = False) -> None:
        due = self._groups.due(now_unix_s, at_once=at_once)
        deadline_s = self._clock.monotonic_s() + _SEND_FOR_S
        failed = None if self._failed is None else self._failed.group
        # One that the receiver cannot process must not keep the others from it.
        for notification in sorted(due, key=lambda one: one.group == failed):
            result = self._sender.send(self._message(notification, now_unix_s))
            if not result.sent and result.retry:
                self._fail(notification, result)
                return
            self._backoff = self._backoff.succeeded()
            self._failed = None
            self._note(notification, result)
            self._groups.mark_sent(notification, now_unix_s)
            # At once: after a kill it would be sent again.
            self._remember()
            if self._clock.monotonic_s() > deadline_s:
                return

    def _message(self, notification: Notification, now_unix_s: float) -> OutgoingMessage:
        return OutgoingMessage(
            notification=notification,
            summary=self._summaries.get(notification.group.job),
            external_url=self._config.external_url,
            time_unix_s=now_unix_s,
        )

    def _note(self, notification: Notification, result: SendResult) -> None:
        if result.sent:
            self._tally.sent += len(notification.alerts)
        else:
            self._tally.lost += len(notification.alerts)
        if result.text and not self._refused:
            log.error(
                "A receiver refuses notifications.",
                extra={"receiver": self._receiver.name, "answer": result.text},
            )
        self._refused = bool(result.text)

    def _fail(self, notification: Notification, result: SendResult) -> None:
        self._tally.retries += 1
        if self._backoff.failures == 0 and self._failed is None:
            log.warning(
                "A receiver of notifications cannot be reached; they wait.",
                extra={"receiver": self._receiver.name, "answer": result.text},
            )
        self._failed = notification
        self._backoff = self._backoff.failed(
            self._clock.monotonic_s(), chance=self._chance(), at_least_s=result.retry_after_s
        )

    def _remember(self) -> None:
        if self._memory is not None and self._groups.changed:
            self._memory.save(self._groups.state())
            self._groups.changed = False

    def _restore(self) -> None:
        state = None if self._memory is None else self._memory.load()
        if state is None:
            return
        try:
            self._groups.restore(state)
        except (msgspec.DecodeError, UnicodeDecodeError):
            log.warning(
                "What was sent before the restart cannot be read: what still fires is sent again.",
                extra={"receiver": self._receiver.name},
            )


def receivers_of(config: NotificationsConfig) -> Sequence[NotificationReceiver]:
    """All receivers; raises `ConfigError` for options that can never work."""
    found: list[NotificationReceiver] = [*config.webhooks, *config.emails]
    for key, value, least in (
        ("group_wait_s", config.group_wait_s, 0.0),
        ("group_interval_s", config.group_interval_s, 0.0),
        ("repeat_interval_s", config.repeat_interval_s, 1.0),
        ("max_alerts", config.max_alerts, 1.0),
    ):
        if value is not None and not least <= value < float("inf"):
            raise ConfigError(f"{_KEY}.{key}: it must be at least {least:g}.")
    check_external_url(config.external_url, key=_KEY)
    names = [receiver.name for receiver in found]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{_KEY}: name: {name!r} must have 1 to 64 letters, digits, `_`, `.` or `-`.")
        if names.count(name) > 1:
            raise ConfigError(f"{_KEY}: two receivers are named {name!r}.")
    return found


def _sender(receiver: NotificationReceiver) -> NotificationSender:
    if isinstance(receiver, WebhookReceiver):
        return WebhookSender(receiver, key=f"{_KEY}.webhooks: {receiver.name}")
    if isinstance(receiver, EmailReceiver):
        return EmailSender(receiver, key=f"{_KEY}.emails: {receiver.name}")
    raise TypeError(type(receiver).__name__)
