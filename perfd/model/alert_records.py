"""The record of an alert, from the rule engine to history, exporters, captures, summaries and the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from perfd.model.job_origin import JOB_LABEL


class AlertState(StrEnum):
    """Where an alert stands."""

    INACTIVE = "inactive"
    """The expression no longer holds, and never did for as long as `for` asks."""
    PENDING = "pending"
    """The expression holds, not yet for as long as `for` asks."""
    FIRING = "firing"
    """The expression has held for long enough, or ceased to less than `keep_firing_for` ago."""
    RESOLVED = "resolved"
    """The alert fired and no longer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert of one rule: a set of labels for which the expression holds, or just ceased to."""

    name: str
    labels: Mapping[str, str]
    """Those of the series and of the rule, with `alertname`."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    state: AlertState
    value: float | None = None
    """None where another engine evaluated the rule."""
    active_at_unix_s: float = math.nan
    """Since when the expression holds."""
    fired_at_unix_s: float | None = None
    resolved_at_unix_s: float | None = None
    first_step: int | None = None
    """The job's newest step when it fired."""
    captures: Sequence[str] = ()
    """Ids of the captures that this firing asked for and that are still remembered."""

    @property
    def job(self) -> str:
        """The job in its labels; empty without one."""
        return self.labels.get(JOB_LABEL, "")

    @property
    def server(self) -> str:
        """The inference server in its labels, as `NODE/SERVER`; empty without one.

        Prometheus gives alerts about servers a `job` too, that of the scrape.
        """
        node, server = self.labels.get("node"), self.labels.get("server")
        return f"{node}/{server}" if node and server else ""

    @property
    def target(self) -> str:
        """The server or job that it is about."""
        return self.server or self.job

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """What distinguishes it from all others that are active."""
        return tuple(sorted(self.labels.items()))

    @property
    def firing_identity(self) -> tuple[tuple[tuple[str, str], ...], float | None]:
        """What distinguishes this firing of it from all others."""
        return self.identity, self.fired_at_unix_s

    @property
    def began_unix_s(self) -> float:
        """Since when it fires; while it is pending, since when the expression holds."""
        return self.active_at_unix_s if self.fired_at_unix_s is None else self.fired_at_unix_s

    @property
    def firing(self) -> bool:
        """Whether it fires."""
        return self.state is AlertState.FIRING

    @property
    def resolved(self) -> bool:
        """Whether it fired and no longer does."""
        return self.state is AlertState.RESOLVED


def alert_json(alert: Alert) -> dict[str, Any]:
    """An alert as every JSON document of perfd has it, an entry of schema perfd.alerts/1; NaN is null."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(alert))
    return {"job": alert.job or None, **plain}
