"""The alerts of the embedded engine: evaluated when due, remembered by job with the step they began at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from perfd.aggregator.history import StoredAlert
from perfd.analysis.data.job_data import AlertRecord
from perfd.config import RulesConfig
from perfd.metrics.series import SeriesFrame
from perfd.rules.files import builtin_rules, load_rules
from perfd.rules.rule_engine import RuleEngine
from perfd.rules.rule_model import Alert, AlertChange, AlertState, EngineState, Evaluation, RuleSet

log = logging.getLogger(__name__)
_MAX_REMEMBERED = 10_000
_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...], float | None]


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
class EvaluationOutcome:
    """What an evaluation changed."""

    changes: Sequence[AlertChange] = ()
    remembered: Sequence[RememberedAlert] = ()
    """Of these changes, the alerts that fired, as they now stand."""


class AlertEvaluation:
    """Runs the rules over frames. Not thread-safe: the tick calls it."""

    def __init__(self, config: RulesConfig) -> None:
        files = [*(builtin_rules() if config.builtin else []), *map(Path, config.files)]
        self.rules: RuleSet = load_rules(files)
        """What is evaluated."""
        self._engine = RuleEngine(self.rules)
        self._store = self._engine.new_store()
        self._interval_s = config.interval_s
        self._evaluated_unix_s: float | None = None
        self._remembered: dict[_Key, RememberedAlert] = {}
        self._ended: Sequence[AlertChange] = ()
        """The end of restored alerts whose rule is gone, for the first evaluation to tell."""
        self._failed: set[tuple[str, str]] = set()
        self.recorded: SeriesFrame | None = None
        """What recording rules gave at the last evaluation."""
        self.active: Sequence[Alert] = ()
        """Pending and firing, as of the last evaluation."""
        self.firing: Mapping[str, Sequence[str]] = {}
        """Names of the alerts that fire now, by job."""

    def restore(
        self, state: EngineState | None, fired: Sequence[StoredAlert], now_unix_s: float, now_s: float
    ) -> None:
        """Go on where an earlier aggregator was; before the first evaluation."""
        for stored in fired[-_MAX_REMEMBERED:]:
            self._put(
                RememberedAlert(
                    job=stored.alert.labels.get("job", ""),
                    alert=stored.alert,
                    first_step=stored.first_step,
                    changed_unix_s=stored.changed_unix_s,
                )
            )
        if state is not None:
            self._ended = self._engine.restore(state, now_unix_s, now_s)
            self.active = [active.alert for active in self._engine.state(now_unix_s).alerts]
            self.firing = _firing_by_job(self.active)

    def state(self, now_unix_s: float) -> EngineState:
        """What a later aggregator goes on from."""
        evaluated = self._evaluated_unix_s
        return self._engine.state(now_unix_s if evaluated is None else evaluated)

    def evaluate(
        self,
        frames: Mapping[str, SeriesFrame],
        now_unix_s: float,
        now_s: float,
        step_of: Callable[[str], int | None],
    ) -> EvaluationOutcome:
        """Take the frames of an instant, by group, and evaluate the rules when they are due."""
        for group, frame in frames.items():
            self._store.append(frame, source=group)
        last = self._evaluated_unix_s
        if last is not None and 0 <= now_unix_s - last < self._interval_s - 1e-3:
            return EvaluationOutcome()
        self._evaluated_unix_s = now_unix_s
        evaluation = self._engine.evaluate(self._store, now_unix_s, now_s)
        self.recorded = evaluation.recorded
        self.active = evaluation.alerts
        self.firing = _firing_by_job(evaluation.alerts)
        self._report_failures(evaluation)
        changes = [*self._ended, *evaluation.changes]
        self._ended = []
        remembered = [self._remember(change.alert, step_of, now_unix_s) for change in changes]
        return EvaluationOutcome(
            changes=changes, remembered=[alert for alert in remembered if alert is not None]
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
        known = self._remembered.get(_key(alert))
        if known is None:
            job = alert.labels.get("job", "")
            known = RememberedAlert(job=job, alert=alert, first_step=step_of(job), changed_unix_s=now_unix_s)
        known = replace(known, alert=alert, changed_unix_s=now_unix_s)
        self._put(known)
        return known

    def _put(self, alert: RememberedAlert) -> None:
        self._remembered[_key(alert.alert)] = alert
        while len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _report_failures(self, evaluation: Evaluation) -> None:
        for failure in evaluation.failures:
            if (failure.group, failure.rule) not in self._failed:
                self._failed.add((failure.group, failure.rule))
                log.warning(
                    "A rule cannot be evaluated: mend its expression.",
                    extra={"group": failure.group, "rule": failure.rule, "error": failure.message},
                )


def _key(alert: Alert) -> _Key:
    return alert.name, tuple(sorted(alert.labels.items())), alert.fired_at_unix_s


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
