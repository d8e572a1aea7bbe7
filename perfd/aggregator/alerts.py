"""The alerts of the embedded engine: evaluated when due, remembered by job with the step they began at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfd.analysis.tables import AlertRecord
from perfd.config import RulesConfig
from perfd.rules.builtin import builtin_rules
from perfd.rules.engine import RuleEngine
from perfd.rules.loader import load_rules
from perfd.rules.model import Alert, AlertChange, AlertState, Evaluation
from perfd.series import SeriesFrame

log = logging.getLogger(__name__)
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedAlert:
    """An alert that fired, and what is told of it."""

    job: str
    alert: Alert
    first_step: int | None
    changed_unix_s: float

    def record(self, captures: Sequence[str] = ()) -> AlertRecord:
        """As the analysis and the summary know it."""
        return AlertRecord(
            name=self.alert.name,
            labels=self.alert.labels,
            first_step=self.first_step,
            state=self.alert.state.value,
            captures=captures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an evaluation changed."""

    changes: Sequence[AlertChange] = ()
    remembered: Sequence[RememberedAlert] = ()
    """Of these changes, the alerts that fired, as they now stand."""


class Alerts:
    """Runs the rules over frames. Not thread-safe: the tick calls it."""

    def __init__(self, config: RulesConfig) -> None:
        files = [*(builtin_rules() if config.builtin else []), *map(Path, config.files)]
        self._engine = RuleEngine(load_rules(files))
        self._store = self._engine.new_store()
        self._interval_s = config.interval_s
        self._evaluated_unix_s: float | None = None
        self._remembered: dict[tuple[str, tuple[tuple[str, str], ...], float], RememberedAlert] = {}
        self._failed: set[tuple[str, str]] = set()
        self.recorded: SeriesFrame | None = None
        """What recording rules gave at the last evaluation."""
        self.active: Sequence[Alert] = ()
        """Pending and firing, as of the last evaluation."""
        self.firing: Mapping[str, Sequence[str]] = {}
        """Names of the alerts that fire now, by job."""

    def evaluate(
        self, frames: Mapping[str, SeriesFrame], now_unix_s: float, step_of: Callable[[str], int | None]
    ) -> Outcome:
        """Take the frames of an instant, by group, and evaluate the rules when they are due."""
        for group, frame in frames.items():
            self._store.append(frame, source=group)
        last = self._evaluated_unix_s
        if last is not None and 0 <= now_unix_s - last < self._interval_s - 1e-3:
            return Outcome()
        self._evaluated_unix_s = now_unix_s
        evaluation = self._engine.evaluate(self._store, now_unix_s)
        self.recorded = evaluation.recorded
        self.active = evaluation.alerts
        self.firing = _firing_by_job(evaluation.alerts)
        self._report_failures(evaluation)
        remembered = [self._remember(change.alert, step_of, now_unix_s) for change in evaluation.changes]
        return Outcome(
            changes=evaluation.changes, remembered=[alert for alert in remembered if alert is not None]
        )

    def of_job(self, job: str) -> list[RememberedAlert]:
        """The alerts of a job that fired, oldest first."""
        return [alert for alert in self._remembered.values() if alert.job == job]

    def list(self) -> list[RememberedAlert]:
        """All alerts that are remembered, oldest first."""
        return list(self._remembered.values())

    def _remember(
        self, alert: Alert, step_of: Callable[[str], int | None], now_unix_s: float
    ) -> RememberedAlert | None:
        if alert.fired_at_unix_s is None:
            return None
        key = (alert.name, tuple(sorted(alert.labels.items())), alert.fired_at_unix_s)
        known = self._remembered.get(key)
        if known is None:
            job = alert.labels.get("job", "")
            known = RememberedAlert(job=job, alert=alert, first_step=step_of(job), changed_unix_s=now_unix_s)
            while len(self._remembered) >= _MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        self._remembered[key] = known = replace(known, alert=alert, changed_unix_s=now_unix_s)
        return known

    def _report_failures(self, evaluation: Evaluation) -> None:
        for failure in evaluation.failures:
            if (failure.group, failure.rule) not in self._failed:
                self._failed.add((failure.group, failure.rule))
                log.warning(
                    "A rule cannot be evaluated: mend its expression.",
                    extra={"group": failure.group, "rule": failure.rule, "error": failure.message},
                )


def _firing_by_job(alerts: Sequence[Alert]) -> dict[str, Sequence[str]]:
    names: dict[str, set[str]] = {}
    for alert in alerts:
        if alert.state is AlertState.FIRING:
            names.setdefault(alert.labels.get("job", ""), set()).add(alert.name)
    return {job: sorted(found) for job, found in names.items()}


def alert_json(alert: RememberedAlert, captures: Sequence[str]) -> dict[str, Any]:
    """One entry of schema perfd.alerts/1."""
    return {
        "job": alert.job or None,
        "name": alert.alert.name,
        "labels": dict(alert.alert.labels),
        "annotations": dict(alert.alert.annotations),
        "state": alert.alert.state.value,
        "value": alert.alert.value,
        "first_step": alert.first_step,
        "active_at_unix_s": alert.alert.active_at_unix_s,
        "fired_at_unix_s": alert.alert.fired_at_unix_s,
        "resolved_at_unix_s": alert.alert.resolved_at_unix_s,
        "captures": list(captures),
    }
