"""Checked rules, and the results of their evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Alert
from perfd.rules.templates import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """Records the result of an expression as a series."""

    record: str
    expression: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The metric that is recorded."""
        return self.record


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertingRule:
    """Raises an alert for each series that an expression gives."""

    alert: str
    expression: str
    for_s: float = 0.0
    """How long the expression must hold before an alert fires."""
    keep_firing_for_s: float = 0.0
    """How long an alert continues after the expression has ceased to hold."""
    labels: Mapping[str, Template] = field(default_factory=dict)
    annotations: Mapping[str, Template] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The alert's name."""
        return self.alert


Rule: TypeAlias = RecordingRule | AlertingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleGroup:
    """Rules that are evaluated in order at one instant; each sees what the earlier ones recorded."""

    name: str
    file: str
    rules: Sequence[Rule]
    interval_s: float | None = None
    """None: at each call of the engine."""
    limit: int = 0
    """The most series or alerts per rule; 0 for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """All rules of some files, in the order in which they are evaluated."""

    groups: Sequence[RuleGroup] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveAlert:
    """An alert that is pending or firing, with what an engine needs to go on with it."""

    rule: str
    """The identity of its rule, stable while the rule's file, group and name are."""
    alert: Alert
    gone_since_unix_s: float | None = None
    """Since when the expression no longer holds, while `keep_firing_for` keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """All that an engine knows of alerts at an instant."""

    time_unix_s: float
    alerts: Sequence[ActiveAlert] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFailure:
    """A rule that could not be evaluated this time; its alerts stay as they were."""

    group: str
    rule: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The results of the rules at one instant."""

    time_unix_s: float
    alerts: Sequence[Alert]
    """Pending and firing."""
    changes: Sequence[Alert]
    """Those that went to another state at this evaluation, as they are now."""
    recorded: SeriesFrame
    """The newest results of all recording rules; its `keys` stay the same object while they can."""
    failures: Sequence[RuleFailure]


def alert_series(alert: Alert) -> tuple[tuple[SeriesKey, float], tuple[SeriesKey, float]]:
    """`ALERTS` and `ALERTS_FOR_STATE` of an alert, as Prometheus records them."""
    labels = dict(alert.labels)
    return (
        (SeriesKey.of("ALERTS", {**labels, "alertstate": alert.state.value}), 1.0),
        (SeriesKey.of("ALERTS_FOR_STATE", labels), float(int(alert.active_at_unix_s))),
    )
