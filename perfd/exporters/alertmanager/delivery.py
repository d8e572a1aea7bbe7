"""Decides which alerts to send to one Alertmanager now. Pure: time is an argument, nothing is sent here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfd.model import Alert, AlertState

Identity = tuple[tuple[str, str], ...]

RESOLVED_RETENTION_S = 15 * 60.0
"""How long the end of an alert is sent again, for an Alertmanager that lost it; as Prometheus does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingAlert:
    """One alert to send."""

    alert: Alert
    ends_at_unix_s: float
    """The time at which the Alertmanager considers it ended: in the future while it fires."""
    as_resolved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    alert: Alert
    first_sent_unix_s: float | None = None
    """When the Alertmanager first accepted it as firing."""
    sent_unix_s: float | None = None
    """When it last accepted the current state; None: not yet."""
    late: bool = False
    """It ended before the Alertmanager received it."""

    @property
    def firing(self) -> bool:
        return self.alert.firing


class AlertDelivery:
    """The state of one Alertmanager: alerts that it has, and alerts still to send.

    A firing alert is sent again every `resend_s`, with an end `4 * resend_s` ahead: if perfd stops, it
    ends by itself (Prometheus does the same). An alert that ended while the Alertmanager was unreachable
    is sent as firing first and as resolved `resend_s` later, so that people are notified at all. An alert
    that fires again replaces its own earlier end, which would otherwise resolve it.
    """

    def __init__(self, *, resend_s: float, max_alerts: int) -> None:
        self._resend_s = resend_s
        self._max_alerts = max_alerts
        self._known: dict[Identity, _Known] = {}

    def __len__(self) -> int:
        return sum(known.sent_unix_s is None for known in self._known.values())

    def update(self, changes: Iterable[Alert], firing: Iterable[Alert], now_unix_s: float) -> int:
        """Take the changes and all firing alerts; returns the number of changes dropped for lack of room."""
        self._forget_old(now_unix_s)
        refused = sum(not self._take(alert) for alert in changes)
        fires = {alert.identity: alert for alert in firing}
        for alert in fires.values():
            self._take(alert)
        for identity, known in self._known.items():
            if known.firing and identity not in fires:
                # Its rule failed or is gone, so its end was not reported.
                over = replace(known.alert, state=AlertState.RESOLVED, resolved_at_unix_s=now_unix_s)
                self._known[identity] = _ended(known, over)
        return refused

    def due(self, now_unix_s: float) -> list[OutgoingAlert]:
        """What to send now, oldest first."""
        outgoing = [self._outgoing(known, now_unix_s) for known in self._known.values()]
        return [one for one in outgoing if one is not None]

    def mark_sent(self, sent: Sequence[OutgoingAlert], now_unix_s: float) -> None:
        """The Alertmanager accepted these."""
        for one in sent:
            known = self._known.get(one.alert.identity)
            if known is None:
                continue
            first = known.first_sent_unix_s
            if first is None and not one.as_resolved:
                first = now_unix_s
            self._known[one.alert.identity] = replace(known, first_sent_unix_s=first, sent_unix_s=now_unix_s)

    def send_again(self) -> None:
        """The Alertmanager may have lost its state: send all alerts again."""
        for identity, known in self._known.items():
            self._known[identity] = replace(known, sent_unix_s=None)

    def _take(self, alert: Alert) -> bool:
        known = self._known.get(alert.identity)
        if known is None and not self._room():
            return False
        if known is None or alert.began_unix_s > known.alert.began_unix_s:
            self._known[alert.identity] = _Known(alert=alert, late=alert.resolved)
        elif alert.began_unix_s == known.alert.began_unix_s and known.firing:
            if alert.firing:
                self._known[alert.identity] = replace(known, alert=alert)
            else:
                self._known[alert.identity] = _ended(known, alert)
        return True

    def _room(self) -> bool:
        if len(self._known) < self._max_alerts:
            return True
        # The Alertmanager has these; sending them again is a precaution.
        over = (name for name, one in self._known.items() if not one.firing and one.sent_unix_s is not None)
        found = next(over, None)
        if found is None:
            return False
        del self._known[found]
        return True

    def _forget_old(self, now_unix_s: float) -> None:
        for identity, known in list(self._known.items()):
            resolved_at = known.alert.resolved_at_unix_s
            old = resolved_at is not None and now_unix_s - resolved_at >= RESOLVED_RETENTION_S
            if old and known.sent_unix_s is not None and not self._first_sent_lately(known, now_unix_s):
                del self._known[identity]

    def _first_sent_lately(self, known: _Known, now_unix_s: float) -> bool:
        """Whether the end of a late alert is still to be sent."""
        first = known.first_sent_unix_s
        return known.late and first is not None and now_unix_s - first < RESOLVED_RETENTION_S

    def _lately(self, unix_s: float, now_unix_s: float) -> bool:
        # A clock that was set back must not keep an alert from being sent.
        return 0 <= now_unix_s - unix_s < self._resend_s

    def _outgoing(self, known: _Known, now_unix_s: float) -> OutgoingAlert | None:
        resolved_at = known.alert.resolved_at_unix_s
        reported, first = known.sent_unix_s, known.first_sent_unix_s
        if reported is not None and self._lately(reported, now_unix_s):
            return None
        if resolved_at is None or (known.late and first is None):
            return OutgoingAlert(
                alert=known.alert, ends_at_unix_s=now_unix_s + 4 * self._resend_s, as_resolved=False
            )
        if known.late and first is not None and self._lately(first, now_unix_s):
            return None
        return OutgoingAlert(alert=known.alert, ends_at_unix_s=min(resolved_at, now_unix_s), as_resolved=True)


def _ended(known: _Known, alert: Alert) -> _Known:
    return replace(known, alert=alert, sent_unix_s=None, late=known.first_sent_unix_s is None)


def wire_alert(one: OutgoingAlert, generator_url: str | None) -> dict[str, Any]:
    """One alert of Alertmanager's API v2, before its times are formatted."""
    return {
        "labels": {name: value for name, value in one.alert.labels.items() if value},
        "annotations": {name: value for name, value in one.alert.annotations.items() if value},
        "startsAt": one.alert.began_unix_s,
        "endsAt": one.ends_at_unix_s,
        **({"generatorURL": generator_url} if generator_url else {}),
    }
