"""The alerts of the embedded engine: evaluated when due, remembered by job with the step they began at."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from perfd.config import RulesConfig
from perfd.metrics.series import SeriesFrame
from perfd.model import Alert
from perfd.rules.files import builtin_rules, load_rules
from perfd.rules.rule_engine import RuleEngine
from perfd.rules.rule_model import EngineState, Evaluation, RuleSet

log = logging.getLogger(__name__)
_MAX_REMEMBERED = 10_000
"""In memory, the newest; history has the others."""
_Key: TypeAlias = tuple[tuple[tuple[str, str], ...], float | None]


@functools.lru_cache(maxsize=4)
def _loaded(files: Sequence[tuple[Path, int]]) -> RuleSet:
    """Rules by file and modification time, cached: each takeover of a partition loads them."""
    return load_rules(path for path, _ in files)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class AlertEvaluation:
    """Runs the rules over the series of rounds. Not thread-safe, but for `list`: the tick calls it."""

    def __init__(self, config: RulesConfig) -> None:
        files = [*(builtin_rules() if config.builtin else []), *map(Path, config.files)]
        self.rules: RuleSet = _loaded(tuple((path, _changed_ns(path)) for path in files))
        """What is evaluated."""
        self._engine = RuleEngine(self.rules)
        self.store = self._engine.new_store()
        """What the rules read; each round adds its frames."""
        self._interval_s = config.interval_s
        self._evaluated_unix_s: float | None = None
        self._remembered: dict[_Key, Alert] = {}
        self._listed: tuple[tuple[_Key, Alert], ...] = ()
        """The same for other threads: replaced as a whole."""
        self._ended: Sequence[Alert] = ()
        """Restored alerts whose rule is gone, as they ended: changes of the first evaluation."""
        self._failed: set[tuple[str, str]] = set()
        self.recorded: SeriesFrame | None = None
        """What recording rules gave at the last evaluation."""
        self.active: Sequence[Alert] = ()
        """Pending and firing, as of the last evaluation."""
        self.firing: Mapping[str, Sequence[str]] = {}
        """Names of the alerts that fire now, by job."""

    def restore(
        self, state: EngineState | None, fired: Sequence[Alert], now_unix_s: float, now_s: float
    ) -> None:
        """Go on where an earlier aggregator was; before the first evaluation."""
        for alert in fired[-_MAX_REMEMBERED:]:
            self._put(alert)
        self._listed = tuple(self._remembered.items())
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
        now_unix_s: float,
        now_s: float,
        step_of: Callable[[str], int | None],
        silent: Callable[[str], bool],
    ) -> Sequence[Alert]:
        """Evaluate the rules over the store when they are due.

        `step_of` gives a job's newest step, `silent` whether it runs, and no agent reports it yet.
        Returns the alerts whose state changed, as they are now.
        """
        if not self._due(now_unix_s):
            return ()
        self._evaluated_unix_s = now_unix_s
        evaluation = self._engine.evaluate(self.store, now_unix_s, now_s, silent)
        self.recorded = evaluation.recorded
        self.active = evaluation.alerts
        self.firing = _firing_by_job(evaluation.alerts)
        self._report_failures(evaluation)
        changes = [*self._ended, *evaluation.changes]
        self._ended = []
        remembered = [self._remember(alert, step_of) for alert in changes]
        if remembered:
            self._listed = tuple(self._remembered.items())
        return remembered

    def reads_all(self, now_unix_s: float) -> bool:
        """Whether rules with an explicit interval, as those about nodes have, are due."""
        return self._due(now_unix_s) and self._engine.due_by_interval(now_unix_s)

    def may_wait(self, now_unix_s: float) -> bool:
        """Whether nothing changes but what is evaluated: no rule is due by its interval, no alert pending."""
        started = self._evaluated_unix_s is not None
        return started and not self.reads_all(now_unix_s) and all(alert.firing for alert in self.active)

    def _due(self, now_unix_s: float) -> bool:
        last = self._evaluated_unix_s
        return last is None or not 0 <= now_unix_s - last < self._interval_s - 1e-3

    def of_job(self, job: str) -> list[Alert]:
        """The alerts of a job that fired, oldest first. Any thread may call it."""
        return [alert for _, alert in self._listed if alert.job == job]

    def list(self) -> list[Alert]:
        """All alerts that are remembered, oldest first; those that fire with their newest value and text.

        Any thread may call it.
        """
        newest = {alert.firing_identity: alert for alert in self.active if alert.firing}
        return [_as_in(newest[key], alert) if key in newest else alert for key, alert in self._listed]

    def _remember(self, alert: Alert, step_of: Callable[[str], int | None]) -> Alert:
        """The alert with the step at which it fired; one that only was pending as it is."""
        if alert.fired_at_unix_s is None:
            return alert
        known = self._remembered.get(alert.firing_identity)
        alert = replace(alert, first_step=known.first_step if known else step_of(alert.job))
        self._put(alert)
        return alert

    def _put(self, alert: Alert) -> None:
        self._remembered[alert.firing_identity] = alert
        while len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _report_failures(self, evaluation: Evaluation) -> None:
        for failure in evaluation.failures:
            if (failure.group, failure.rule) not in self._failed:
                self._failed.add((failure.group, failure.rule))
                log.warning(
                    "A rule cannot be evaluated: fix its expression.",
                    extra={"group": failure.group, "rule": failure.rule, "error": failure.message},
                )


def _as_in(newest: Alert, alert: Alert) -> Alert:
    return replace(alert, value=newest.value, annotations=newest.annotations)


def _firing_by_job(alerts: Sequence[Alert]) -> dict[str, Sequence[str]]:
    names: dict[str, set[str]] = {}
    for alert in alerts:
        if alert.firing:
            names.setdefault(alert.job, set()).add(alert.name)
    return {job: sorted(found) for job, found in names.items()}
