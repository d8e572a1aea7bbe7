"""Decides which notifications to send to one receiver now. Pure: time is an argument, nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import msgspec

from perfd.config import NotificationsConfig
from perfd.model import JOB_LABEL, Alert, AlertState

Identity = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AlertGroup:
    """What one message is about; empty texts for what the alerts do not have."""

    cluster: str
    namespace: str
    job: str
    server: str
    """`NODE/SERVER`"""

    @classmethod
    def of(cls, alert: Alert) -> AlertGroup:
        """That of an alert; those about no job or server share one in each cluster and namespace."""
        label = alert.labels.get
        server = alert.server
        job = "" if server else label(JOB_LABEL, "")
        return cls(label("cluster", ""), label("namespace", ""), job, server)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message to send."""

    group: AlertGroup
    new: Sequence[Alert]
    """Alerts of which the receiver does not know that they fire, or that they ended; oldest first."""
    known: Sequence[Alert]
    """Further alerts of the group that fire, of which it knows."""
    previous_unix_s: float | None
    """When the last message about the group was sent; the same for each attempt to send this one."""

    @property
    def alerts(self) -> Sequence[Alert]:
        """All of them, the new ones first."""
        return (*self.new, *self.known)

    @property
    def repeated(self) -> bool:
        """Whether there is nothing new in it."""
        return not self.new


class _Tracked(msgspec.Struct, frozen=True, kw_only=True):
    alert: Alert
    known: bool = False
    """The receiver was notified that it fires."""
    waits_since_unix_s: float | None = None
    """Since when its state waits to be sent; None: it was sent."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    alerts: list[_Tracked]
    sent: list[tuple[AlertGroup, float]]


_STATES = msgspec.msgpack.Decoder(_State)
"""Made at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


class NotificationGroups:
    """The alerts of one receiver: what it was notified of, and what waits.

    The first alert of a group waits `group_wait_s` for others; later ones also until `group_interval_s`
    after the last message. A message names all firing alerts of its group, and is sent again after
    `repeat_interval_s` while they fire. An alert that ended before it was sent is sent as ended, so that
    each alert is sent at least once.
    """

    def __init__(self, config: NotificationsConfig, match: Mapping[str, str]) -> None:
        """`match` has the receiver's patterns."""
        self._config = config
        self._match = match
        self._tracked: dict[Identity, _Tracked] = {}
        self._sent: dict[AlertGroup, float] = {}
        self.changed = False
        """Whether `state` differs from what was stored; the owner resets it."""

    @property
    def waiting(self) -> int:
        """Alerts whose state was not sent yet."""
        return sum(one.waits_since_unix_s is not None for one in self._tracked.values())

    @property
    def firing_jobs(self) -> set[str]:
        """The jobs with an alert that fires."""
        return {AlertGroup.of(one.alert).job for one in self._tracked.values() if one.alert.firing} - {""}

    @property
    def jobs(self) -> set[str]:
        """The jobs with an alert that fires, or whose end was not sent yet."""
        return {AlertGroup.of(one.alert).job for one in self._tracked.values()} - {""}

    def update(self, changes: Iterable[Alert], firing: Iterable[Alert], now_unix_s: float) -> int:
        """Take the changes and all firing alerts; returns the number of changes dropped for lack of room."""
        refused = sum(not self._take(alert, now_unix_s) for alert in changes if self._matches(alert))
        fires = {alert.identity: alert for alert in firing if self._matches(alert)}
        for alert in fires.values():
            self._take(alert, now_unix_s)
        for identity, one in list(self._tracked.items()):
            if one.alert.firing and identity not in fires:
                # Its rule failed or is gone, so its end was not reported.
                over = replace(one.alert, state=AlertState.RESOLVED, resolved_at_unix_s=now_unix_s)
                self._end(identity, over, now_unix_s)
        self._forget_groups(now_unix_s)
        return refused

    def due(self, now_unix_s: float, *, at_once: bool = False) -> list[Notification]:
        """What to send now, the group that waits for longest first; `at_once` does not wait for others."""
        groups: dict[AlertGroup, list[_Tracked]] = {}
        for one in self._tracked.values():
            groups.setdefault(AlertGroup.of(one.alert), []).append(one)
        found = [
            (
                min((one.waits_since_unix_s or now_unix_s) for one in members),
                self._notification(group, members),
            )
            for group, members in groups.items()
            if self._is_due(group, members, now_unix_s)
            or (at_once and any(one.waits_since_unix_s is not None for one in members))
        ]
        return [notification for _, notification in sorted(found, key=lambda one: one[0])]

    def mark_sent(self, notification: Notification, now_unix_s: float) -> None:
        """The receiver has it."""
        self.changed = True
        self._sent[notification.group] = now_unix_s
        for alert in notification.alerts:
            one = self._tracked.get(alert.identity)
            if one is None:
                continue
            if one.alert.firing:
                self._tracked[alert.identity] = _Tracked(alert=one.alert, known=True)
            else:
                del self._tracked[alert.identity]

    def state(self) -> bytes:
        """What a later process goes on from."""
        return msgspec.msgpack.encode(
            _State(alerts=list(self._tracked.values()), sent=list(self._sent.items()))
        )

    def restore(self, state: bytes) -> None:
        """Go on from the state of an earlier process; raises `msgspec.DecodeError` if it is not one."""
        found = _STATES.decode(state)
        self._tracked = {one.alert.identity: one for one in found.alerts if self._matches(one.alert)}
        self._sent = dict(found.sent)

    def _matches(self, alert: Alert) -> bool:
        return all(fnmatchcase(alert.labels.get(name, ""), pattern) for name, pattern in self._match.items())

    def _take(self, alert: Alert, now_unix_s: float) -> bool:
        identity = alert.identity
        one = self._tracked.get(identity)
        if one is None and len(self._tracked) >= self._config.max_alerts:
            return False
        if one is None or alert.began_unix_s > one.alert.began_unix_s:
            waits = one.waits_since_unix_s if one is not None and not one.known else None
            self._tracked[identity] = _Tracked(
                alert=alert, waits_since_unix_s=now_unix_s if waits is None else waits
            )
            self.changed = True
        elif alert.began_unix_s == one.alert.began_unix_s and one.alert.firing:
            if alert.firing:
                self._tracked[identity] = msgspec.structs.replace(one, alert=alert)
            else:
                self._end(identity, alert, now_unix_s)
        return True

    def _end(self, identity: Identity, alert: Alert, now_unix_s: float) -> None:
        one = self._tracked[identity]
        self.changed = True
        if one.known and not self._config.resolved:
            del self._tracked[identity]
            return
        waits = now_unix_s if one.waits_since_unix_s is None else one.waits_since_unix_s
        self._tracked[identity] = msgspec.structs.replace(one, alert=alert, waits_since_unix_s=waits)

    def _is_due(self, group: AlertGroup, members: Sequence[_Tracked], now_unix_s: float) -> bool:
        waiting = [one.waits_since_unix_s for one in members if one.waits_since_unix_s is not None]
        sent = self._sent.get(group)
        if waiting:
            return _passed(min(waiting), self._config.group_wait_s, now_unix_s) and (
                sent is None or _passed(sent, self._config.group_interval_s, now_unix_s)
            )
        return (
            self._config.repeat_interval_s is not None
            and sent is not None
            and _passed(sent, self._config.repeat_interval_s, now_unix_s)
        )

    def _notification(self, group: AlertGroup, members: Sequence[_Tracked]) -> Notification:
        by_age = sorted(members, key=lambda one: one.alert.began_unix_s)
        return Notification(
            group=group,
            new=tuple(one.alert for one in by_age if one.waits_since_unix_s is not None),
            known=tuple(one.alert for one in by_age if one.waits_since_unix_s is None),
            previous_unix_s=self._sent.get(group),
        )

    def _forget_groups(self, now_unix_s: float) -> None:
        if not self._sent:
            return
        active = {AlertGroup.of(one.alert) for one in self._tracked.values()}
        for group, sent in list(self._sent.items()):
            if group not in active and _passed(sent, self._config.group_interval_s, now_unix_s):
                del self._sent[group]


def _passed(since_unix_s: float, length_s: float, now_unix_s: float) -> bool:
    # A clock that was set back must not keep a message from being sent.
    return not 0 <= now_unix_s - since_unix_s < length_s
