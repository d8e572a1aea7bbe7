"""An alerting rule: its expression, and the states of its alerts. Pure, with the time as an argument.

The transitions are those of rules/alerting.go of Prometheus 2.42.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.metrics.series import Labels, SeriesKey
from perfd.model import JOB_LABEL, JOB_LABELS, OWNER_LABELS, Alert, AlertState
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.series_keys import EvaluationError
from perfd.rules.rule_model import ActiveAlert, AlertingRule, alert_series
from perfd.rules.series_store import SeriesStore, to_ms
from perfd.rules.templates import TemplateData


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """What a server adds to the data of templates."""

    labels: Labels = ()
    url: str = ""


@dataclass(frozen=True, slots=True)
class _Active:
    """An alert that is pending or firing, and since when the expression no longer holds for it."""

    alert: Alert
    gone_since_unix_s: float | None = None
    awaited_until_unix_s: float | None = None
    """It was restored; until then the engine may lack the samples to know whether it still holds."""


class AlertBook:
    """The alerts of one rule that are pending or firing.

    In a store of series, its own are those of `source`. `identity` is stable over restarts.
    """

    def __init__(
        self, rule: AlertingRule, *, limit: int, external: External, source: str = "", identity: str = ""
    ) -> None:
        self.query = compile_query(rule.expression)
        self.identity = identity
        self._source = source
        self._keys: tuple[SeriesKey, ...] = ()
        self._rule = rule
        self._limit = limit
        self._external = external
        self._active: dict[Labels, _Active] = {}

    @property
    def alerts(self) -> list[Alert]:
        """The alerts after the last update."""
        return [active.alert for active in self._active.values()]

    @property
    def active(self) -> list[tuple[Alert, float | None]]:
        """The alerts, each with the time at which its expression ceased to hold."""
        return [(active.alert, active.gone_since_unix_s) for active in self._active.values()]

    def restore(self, alerts: Sequence[ActiveAlert], *, outage_s: float, awaited_until_unix_s: float) -> None:
        """Continue with alerts of an earlier engine; until `awaited` one stays without a result.

        As in Prometheus, the outage does not count toward `for`: whether the expression held is unknown.
        """
        for known in alerts:
            alert = known.alert
            if alert.state is AlertState.PENDING:
                alert = replace(alert, active_at_unix_s=alert.active_at_unix_s + outage_s)
            self._active[alert.identity] = _Active(alert, known.gone_since_unix_s, awaited_until_unix_s)

    def wait(self, silent: Callable[[str], bool], until_unix_s: float) -> None:
        """Keep restored alerts of jobs that are silent, by name, until then at least."""
        for labels, active in self._active.items():
            awaited, job = active.awaited_until_unix_s, active.alert.job
            if job and awaited is not None and awaited < until_unix_s and silent(job):
                self._active[labels] = replace(active, awaited_until_unix_s=until_unix_s)

    def shift(self, by_s: float) -> None:
        """Shift all times after a step of the clock.

        Firing alerts keep their start time, which is part of their identity.
        """
        for labels, active in self._active.items():
            alert = active.alert
            if alert.state is AlertState.PENDING:
                alert = replace(alert, active_at_unix_s=alert.active_at_unix_s + by_s)
            self._active[labels] = _Active(
                alert, _moved(active.gone_since_unix_s, by_s), _moved(active.awaited_until_unix_s, by_s)
            )

    def evaluate(self, store: SeriesStore, now_unix_s: float) -> list[Alert]:
        """Evaluate the rule, and append `ALERTS` to the store; returns and raises as `update`."""
        time_ms = to_ms(now_unix_s)
        changes = self.update(self.query.evaluate(store, time_ms).samples(), now_unix_s)
        series = [pair for alert in self.alerts for pair in alert_series(alert)]
        keys = tuple(key for key, _ in series)
        if keys or self._keys:
            # The same object while the alerts stay, so that the store does not look them up again.
            self._keys = self._keys if keys == self._keys else keys
            values = np.array([value for _, value in series])
            store.append_vector(self._source, time_ms, self._keys, values, np.ones(len(keys), dtype=bool))
        return changes

    def update(self, samples: Sequence[tuple[SeriesKey, float]], now_unix_s: float) -> list[Alert]:
        """Take the expression's result at an instant; returns the alerts that changed their state.

        An alert that is active while more becomes known of its job's origin keeps the labels it began with.
        Raises `EvaluationError`, with the alerts unchanged, if two results make
        the same alert.
        """
        before = self._active
        found = _as_began(self._found(samples, now_unix_s), before)
        after = {}
        for labels, alert in found.items():
            after[labels] = _Active(self._held(alert, before.get(labels), now_unix_s))
        for labels, active in before.items():
            if labels not in found and (kept := self._kept(active, now_unix_s)) is not None:
                after[labels] = kept
        if self._limit and len(after) > self._limit:
            self._active = {}
            raise EvaluationError(f"{len(after)} alerts; the group's limit per rule is {self._limit}")
        self._active = after
        return _changes(before, after, now_unix_s)

    def _found(self, samples: Sequence[tuple[SeriesKey, float]], now_unix_s: float) -> dict[Labels, Alert]:
        found: dict[Labels, Alert] = {}
        for key, value in samples:
            alert = self._new(key, value, now_unix_s)
            labels = alert.identity
            if labels in found:
                raise EvaluationError(
                    f"two results make the same alert {dict(labels)}: keep more labels in the expression"
                )
            found[labels] = alert
        return found

    def _new(self, key: SeriesKey, value: float, now_unix_s: float) -> Alert:
        labels = dict(key.labels)
        named = {**labels, "__name__": key.name} if key.name else labels
        data = TemplateData(
            value=value,
            labels=named,
            external_labels=dict(self._external.labels),
            external_url=self._external.url,
        )
        labels.update((name, template.expand(data)) for name, template in self._rule.labels.items())
        labels["alertname"] = self._rule.alert
        return Alert(
            name=self._rule.alert,
            labels={name: text for name, text in sorted(labels.items()) if text},
            annotations={name: template.expand(data) for name, template in self._rule.annotations.items()},
            state=AlertState.PENDING,
            value=value,
            active_at_unix_s=now_unix_s,
        )

    def _held(self, alert: Alert, known: _Active | None, now_unix_s: float) -> Alert:
        """The alert of a result, with what is known of its past."""
        if known is not None:
            alert = replace(
                alert,
                state=known.alert.state,
                # A clock that was set back must not keep an alert from firing.
                active_at_unix_s=min(known.alert.active_at_unix_s, now_unix_s),
                fired_at_unix_s=known.alert.fired_at_unix_s,
            )
        due = to_ms(now_unix_s - alert.active_at_unix_s) >= to_ms(self._rule.for_s)
        if alert.state is AlertState.PENDING and due:
            return replace(alert, state=AlertState.FIRING, fired_at_unix_s=now_unix_s)
        return alert

    def _kept(self, active: _Active, now_unix_s: float) -> _Active | None:
        """An alert without a result, if it was just restored or `keep_firing_for` keeps it."""
        awaited_until = active.awaited_until_unix_s
        if awaited_until is not None and now_unix_s < awaited_until:
            return active
        if active.alert.state is not AlertState.FIRING or not self._rule.keep_firing_for_s:
            return None
        since = active.gone_since_unix_s
        gone_since = now_unix_s if since is None else min(since, now_unix_s)
        if to_ms(now_unix_s - gone_since) >= to_ms(self._rule.keep_firing_for_s):
            return None
        return _Active(active.alert, gone_since)


def _as_began(found: dict[Labels, Alert], before: Mapping[Labels, _Active]) -> dict[Labels, Alert]:
    """The alerts of a result by the labels that they began with."""
    ended = before.keys() - found.keys()
    if not ended:
        return found
    alerts: dict[Labels, Alert] = {}
    for labels, alert in found.items():
        began = [one for one in ended if labels not in before and _lacks_origin(one, labels)]
        earlier = began[0] if len(began) == 1 and began[0] not in alerts else labels
        alerts[earlier] = alert if earlier is labels else replace(alert, labels=dict(earlier))
    return alerts


def _lacks_origin(earlier: Labels, labels: Labels) -> bool:
    """Whether one alert's labels are those of another one of the same job, but for some of its origin."""
    more = set(labels) - set(earlier)
    return (
        any(name == JOB_LABEL for name, _ in earlier)
        and len(labels) == len(earlier) + len(more)
        and {name for name, _ in more} <= {*JOB_LABELS, *OWNER_LABELS}
    )


def _moved(time_s: float | None, by_s: float) -> float | None:
    return None if time_s is None else time_s + by_s


def _changes(before: dict[Labels, _Active], after: dict[Labels, _Active], now_unix_s: float) -> list[Alert]:
    changes = []
    for labels, active in after.items():
        previous = before[labels].alert.state if labels in before else AlertState.INACTIVE
        if active.alert.state is not previous:
            changes.append(active.alert)
    for labels, active in before.items():
        if labels not in after:
            changes.append(ended(active.alert, now_unix_s))
    return changes


def ended(alert: Alert, now_unix_s: float) -> Alert:
    """A pending or firing alert that has ended."""
    if alert.firing:
        return replace(alert, state=AlertState.RESOLVED, resolved_at_unix_s=now_unix_s)
    return replace(alert, state=AlertState.INACTIVE)
