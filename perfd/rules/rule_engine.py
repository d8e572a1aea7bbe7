"""Evaluates rules over a store of series, as a Prometheus server would over its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Alert
from perfd.rules.alert_states import AlertBook, External, ended
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.instant_vectors import Vector, empty
from perfd.rules.promql.series_keys import EvaluationError, Keys, Remembered
from perfd.rules.rule_model import (
    ActiveAlert,
    EngineState,
    Evaluation,
    RecordingRule,
    Rule,
    RuleFailure,
    RuleGroup,
    RuleSet,
)
from perfd.rules.series_store import Read, SeriesStore, to_ms

_PUNCTUAL = 0.95
"""A group is due this share of its interval early, because otherwise a jittering timer would skip rounds."""
_EARLY = 0.5
"""A group comes with another one that is due, by this share of the shorter interval early at most: each by
itself would need all series anew, for as long as the aggregator runs."""
_OUTAGE_TOLERANCE_S = 3600.0
"""After a longer outage a `for` starts over; Prometheus' `--rules.alert.for-outage-tolerance`."""
_RETURN_WITHIN_S = 60.0
"""Time for agents to reconnect after a restart: twice their longest reconnect delay."""
_LONGEST_RETURN_S = 900.0
"""Longest time for that, if the message system between agents and aggregator fails, too. Chosen."""
_STEP_S = 1.0
"""Drift of the wall clock above which it counts as a step."""


class RuleEngine:
    """Holds the state of alerts between evaluations. One thread at a time.

    The argument `steady_s` is the same instant on a clock that never steps: `for` and
    `keep_firing_for` then last as long as configured, whatever the wall clock does. Without it the
    wall clock counts as steady.

    `restore` takes the `state` of an earlier process: alerts then continue.
    """

    def __init__(self, rules: RuleSet, *, external: External | None = None) -> None:
        self._groups = [_Group(group, external or External()) for group in rules.groups]
        self._recorded_keys = Remembered(_concatenated)
        self._ahead_s: float | None = None
        """By how much the wall clock is ahead of the steady one."""

    def new_store(self) -> SeriesStore:
        """A store that keeps what these rules read, and no more."""
        return SeriesStore(self.reads())

    def reads(self) -> list[Read]:
        """What the rules read: which series, and how far back."""
        return [read for group in self._groups for read in group.reads]

    def state(self, now_unix_s: float) -> EngineState:
        """The state to save for a later engine."""
        alerts = tuple(active for group in self._groups for active in group.active())
        return EngineState(time_unix_s=now_unix_s, alerts=alerts)

    def restore(self, state: EngineState, now_unix_s: float, steady_s: float | None = None) -> list[Alert]:
        """Continue from the state of an earlier engine with these rules; before the first evaluation.

        A restored alert stays for a minute, or for the longest range that its rule reads, even if
        its expression does not hold: agents must reconnect, and ranges must fill. While its job is
        silent the minute does not begin, for a quarter of an hour. Returns the end of alerts whose
        rule is gone. After an hour's outage pending alerts are dropped.
        """
        self._follow(now_unix_s, steady_s)
        outage_s = max(0.0, now_unix_s - state.time_unix_s)
        by_rule: dict[str, list[ActiveAlert]] = {}
        for active in state.alerts:
            if active.alert.firing or outage_s <= _OUTAGE_TOLERANCE_S:
                by_rule.setdefault(active.rule, []).append(active)
        for group in self._groups:
            group.restore(by_rule, outage_s, now_unix_s)
        return [ended(active.alert, now_unix_s) for alerts in by_rule.values() for active in alerts]

    def evaluate(
        self,
        store: SeriesStore,
        now_unix_s: float,
        steady_s: float | None = None,
        silent: Callable[[str], bool] = lambda _job: False,
    ) -> Evaluation:
        """Evaluate the groups that are due, and append what they record, `ALERTS` too, to the store.

        Time is only ever that of the arguments. If it went back since the last call,
        all groups are due. `silent` says of a job that it has not ended, if known, and that no agent
        has reported it since the alerts were restored.
        """
        self._follow(now_unix_s, steady_s)
        changes: list[Alert] = []
        failures: list[RuleFailure] = []
        early_s = _EARLY * min((group.interval_s for group in self._due_by_interval(now_unix_s)), default=0.0)
        for group in self._groups:
            if group.due(now_unix_s, early_s):
                group.wait(silent, now_unix_s)
                group.evaluate(store, now_unix_s, changes, failures)
        return Evaluation(
            time_unix_s=now_unix_s,
            alerts=tuple(alert for group in self._groups for alert in group.alerts()),
            changes=tuple(changes),
            recorded=self._recorded(now_unix_s),
            failures=tuple(failures),
        )

    def due_by_interval(self, now_unix_s: float) -> bool:
        """Whether a group with an explicit interval is due; all others are at any time."""
        return any(True for _ in self._due_by_interval(now_unix_s))

    def _due_by_interval(self, now_unix_s: float) -> Iterator[_Group]:
        return (group for group in self._groups if group.interval_s and group.due(now_unix_s))

    def _follow(self, now_unix_s: float, steady_s: float | None) -> None:
        """Detect a step of the wall clock, and shift all times."""
        if steady_s is None:
            return
        ahead_s = now_unix_s - steady_s
        stepped_s = 0.0 if self._ahead_s is None else ahead_s - self._ahead_s
        if self._ahead_s is None or abs(stepped_s) >= _STEP_S:
            self._ahead_s = ahead_s
            for group in self._groups:
                group.shift(stepped_s)

    def _recorded(self, now_unix_s: float) -> SeriesFrame:
        results = [rule.result for group in self._groups for rule in group.recording]
        keys = self._recorded_keys(*(result.keys for result in results))
        values = [np.where(result.present, result.values, np.nan) for result in results]
        return SeriesFrame(now_unix_s, keys.items, np.concatenate(values) if values else np.zeros(0))


def _concatenated(*keys: Keys) -> Keys:
    return Keys(item for some in keys for item in some.items)


class _Group:
    def __init__(self, group: RuleGroup, external: External) -> None:
        self._group = group
        self._evaluated_unix_s: float | None = None
        self._returns_by_unix_s: float | None = None
        """When restored alerts are kept for their jobs no longer."""
        self._rules: list[AlertBook | _Recording] = []
        named: Counter[str] = Counter()
        for place, rule in enumerate(group.rules):
            source = f"{group.file};{group.name};{place}"
            identity = f"{Path(group.file).name};{group.name};{rule.name};{named[rule.name]}"
            named[rule.name] += 1
            self._rules.append(_compiled(rule, group, source, identity, external))
        self.reads: list[Read] = [read for rule in self._rules for read in rule.query.reads]
        self._alerting = [rule for rule in self._rules if isinstance(rule, AlertBook)]
        self.recording = [rule for rule in self._rules if isinstance(rule, _Recording)]

    def shift(self, by_s: float) -> None:
        """Shift all times by a step of the clock."""
        if self._evaluated_unix_s is not None:
            self._evaluated_unix_s += by_s
        if self._returns_by_unix_s is not None:
            self._returns_by_unix_s += by_s
        for rule in self._alerting:
            rule.shift(by_s)

    @property
    def interval_s(self) -> float:
        """How often it is evaluated; 0 if it does not say."""
        return self._group.interval_s or 0.0

    def due(self, now_unix_s: float, early_s: float = 0.0) -> bool:
        """Whether the group's interval has passed, but for `early_s`."""
        last, interval_s = self._evaluated_unix_s, self.interval_s
        if last is None or not interval_s or now_unix_s < last:
            return True
        early_s = max(min(early_s, _EARLY * interval_s), (1 - _PUNCTUAL) * interval_s)
        return now_unix_s - last >= interval_s - early_s

    def evaluate(
        self, store: SeriesStore, now_unix_s: float, changes: list[Alert], failures: list[RuleFailure]
    ) -> None:
        self._evaluated_unix_s = now_unix_s
        for named, rule in zip(self._group.rules, self._rules, strict=True):
            try:
                changes.extend(rule.evaluate(store, now_unix_s))
            except EvaluationError as error:
                failures.append(RuleFailure(group=self._group.name, rule=named.name, message=str(error)))

    def alerts(self) -> Iterator[Alert]:
        for rule in self._alerting:
            yield from rule.alerts

    def active(self) -> Iterator[ActiveAlert]:
        for rule in self._alerting:
            for alert, gone in rule.active:
                yield ActiveAlert(rule=rule.identity, alert=alert, gone_since_unix_s=gone)

    def restore(self, by_rule: dict[str, list[ActiveAlert]], outage_s: float, now_unix_s: float) -> None:
        """Take the entries of this group's rules out of `by_rule`."""
        self._returns_by_unix_s = now_unix_s + _LONGEST_RETURN_S
        for rule in self._alerting:
            known = by_rule.pop(rule.identity, [])
            until = now_unix_s + self._return_s
            rule.restore(known, outage_s=outage_s, awaited_until_unix_s=until)

    def wait(self, silent: Callable[[str], bool], now_unix_s: float) -> None:
        """Keep the restored alerts of silent jobs."""
        if self._returns_by_unix_s is None or now_unix_s >= self._returns_by_unix_s:
            return
        for rule in self._alerting:
            rule.wait(silent, now_unix_s + self._return_s)

    @property
    def _return_s(self) -> float:
        """How long agents reconnect, and the longest range that is read fills."""
        return max(_RETURN_WITHIN_S, max((read.horizon_ms for read in self.reads), default=0) / 1000)


def _compiled(
    rule: Rule, group: RuleGroup, source: str, identity: str, external: External
) -> AlertBook | _Recording:
    if isinstance(rule, RecordingRule):
        return _Recording(rule, source, group.limit)
    return AlertBook(rule, limit=group.limit, external=external, source=source, identity=identity)


class _Recording:
    def __init__(self, rule: RecordingRule, source: str, limit: int) -> None:
        self.query = compile_query(rule.expression)
        self.result = empty()
        self._source = source
        self._limit = limit
        labels = dict(rule.labels)
        self._renamed = Remembered(
            lambda keys: Keys(SeriesKey.of(rule.record, {**dict(key.labels), **labels}) for key in keys.items)
        )

    def evaluate(self, store: SeriesStore, now_unix_s: float) -> Sequence[Alert]:
        time_ms = to_ms(now_unix_s)
        found = self.query.evaluate(store, time_ms)
        # Copies, as what a selector gives is the store's own and changes with the next frame.
        result = Vector(self._renamed(found.keys), found.values.copy(), found.present.copy()).checked()
        if self._limit and int(result.present.sum()) > self._limit:
            raise EvaluationError(f"more series than the group's limit of {self._limit} per rule")
        self.result = result
        store.append_vector(self._source, time_ms, result.keys.items, result.values, result.present)
        return ()
