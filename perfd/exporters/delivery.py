"""Which alerts one Alertmanager has to be told of now. Pure: time is an argument, nothing is sent here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfd.exporters.contract import AlertUpdate

Identity = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One alert as it is to be sent."""

    alert: AlertUpdate
    ends_at_unix_s: float
    """When the Alertmanager is to take it for ended: in the future while it fires."""
    as_resolved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    alert: AlertUpdate
    first_told_unix_s: float | None = None
    """When the Alertmanager first took it as firing."""
    told_unix_s: float | None = None
    late: bool = False
    """It ended before the Alertmanager heard of it."""


class Deliveries:
    """What one Alertmanager knows and does not know yet.

    An alert that fires is told again each `resend_s`, with an end `4 * resend_s` ahead: if perfd falls
    silent, it ends by itself (Prometheus does the same). One that ended while the Alertmanager was away
    is told as firing first and as resolved `resend_s` later, so that people hear of it at all.
    """

    def __init__(self, *, resend_s: float, max_alerts: int) -> None:
        self._resend_s = resend_s
        self._max_alerts = max_alerts
        self._known: dict[tuple[Identity, float], _Known] = {}

    def __len__(self) -> int:
        return sum(known.told_unix_s is None for known in self._known.values())

    def update(self, changes: Iterable[AlertUpdate], firing: Iterable[AlertUpdate]) -> int:
        """Take what changed and what fires now; how many were given up for want of room."""
        for alert in (*changes, *firing):
            key = (alert.identity, alert.fired_at_unix_s)
            known = self._known.get(key)
            if known is None:
                self._known[key] = _Known(alert=alert, late=alert.resolved_at_unix_s is not None)
            elif alert.resolved_at_unix_s is None:
                self._known[key] = replace(known, alert=alert)
            elif known.alert.resolved_at_unix_s is None:
                late = known.first_told_unix_s is None
                self._known[key] = replace(known, alert=alert, told_unix_s=None, late=late)
        excess = max(0, len(self._known) - self._max_alerts)
        for key in list(self._known)[:excess]:
            del self._known[key]
        return excess

    def due(self, now_unix_s: float) -> list[Outgoing]:
        """What to send now, oldest first."""
        outgoing = [self._outgoing(known, now_unix_s) for known in self._known.values()]
        return [one for one in outgoing if one is not None]

    def told(self, sent: Sequence[Outgoing], now_unix_s: float) -> None:
        """The Alertmanager took these."""
        for one in sent:
            key = (one.alert.identity, one.alert.fired_at_unix_s)
            known = self._known.get(key)
            if known is None:
                continue
            if one.as_resolved:
                del self._known[key]
                continue
            first = now_unix_s if known.first_told_unix_s is None else known.first_told_unix_s
            self._known[key] = replace(known, first_told_unix_s=first, told_unix_s=now_unix_s)

    def _outgoing(self, known: _Known, now_unix_s: float) -> Outgoing | None:
        resolved_at = known.alert.resolved_at_unix_s
        if resolved_at is None or (known.late and known.first_told_unix_s is None):
            told = known.told_unix_s
            if told is not None and now_unix_s - told < self._resend_s:
                return None
            return Outgoing(
                alert=known.alert, ends_at_unix_s=now_unix_s + 4 * self._resend_s, as_resolved=False
            )
        first = known.first_told_unix_s
        if known.late and first is not None and now_unix_s - first < self._resend_s:
            return None
        return Outgoing(alert=known.alert, ends_at_unix_s=min(resolved_at, now_unix_s), as_resolved=True)


def wire_alert(one: Outgoing, generator_url: str | None) -> dict[str, Any]:
    """One alert of Alertmanager's API v2, before its times are written out."""
    return {
        "labels": {name: value for name, value in one.alert.labels.items() if value},
        "annotations": {name: value for name, value in one.alert.annotations.items() if value},
        "startsAt": one.alert.fired_at_unix_s,
        "endsAt": one.ends_at_unix_s,
        **({"generatorURL": generator_url} if generator_url else {}),
    }
