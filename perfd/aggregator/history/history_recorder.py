"""What rounds and exporters write to history, and how often: changes at once, the rest when it is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perfd.aggregator.history.history_rows import Statement, alert_row, engine_row, exporter_row, summary_row
from perfd.aggregator.history.history_store import HistoryStore
from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.model import Alert
from perfd.rules.rule_model import EngineState

_SUMMARY_EVERY_S = 60.0
"""At most this much of a summary is lost by a kill."""
_ALERTS_EVERY_S = 15.0
"""How exactly it is known, after a kill, until when rules were evaluated."""
_ALERT_STORED_WITHIN_S = 1.0
"""Chosen: a commit takes milliseconds, and an alert must be announced even if the disk hangs."""
_EXPIRE_EVERY_S = 3600.0
"""Between two deletions of old rows, which read whole tables. Chosen."""


class HistoryRecorder:
    """Writes to a store, or nowhere without one. Not thread-safe: the analysis loop calls it."""

    def __init__(self, store: HistoryStore | None, *, retention_days: float) -> None:
        self._store = store
        self._retention_s = retention_days * 86_400
        self._summary_s: dict[str, float] = {}
        self._alerts_unix_s: float | None = None
        self._expired_s: float | None = None

    def add(self, rows: Sequence[Statement]) -> None:
        """Write rows."""
        if self._store is not None and rows:
            self._store.submit(rows)

    def alerts(
        self, changed: Sequence[Alert], state: Callable[[], EngineState], now_unix_s: float
    ) -> Callable[[], bool]:
        """Write alerts that changed with the state of the rules; that alone now and then.

        Returns, once they are stored or that takes too long, whether they are by now: an alert that is
        announced and not stored would fire again, with another time, after a kill.
        """
        stored = self._alerts_unix_s
        if changed or stored is None or not 0 <= now_unix_s - stored < _ALERTS_EVERY_S:
            self.last_alerts(changed, state, now_unix_s)
        if self._store is not None and any(alert.fired_at_unix_s is not None for alert in changed):
            return self._store.safe_within(_ALERT_STORED_WITHIN_S)
        return lambda: True

    def last_alerts(
        self, changed: Sequence[Alert], state: Callable[[], EngineState], now_unix_s: float
    ) -> None:
        """Write them whether due or not."""
        if self._store is None:
            return
        rows = [alert_row(alert, now_unix_s) for alert in changed if alert.fired_at_unix_s is not None]
        self.add([*rows, engine_row(state())])
        self._alerts_unix_s = now_unix_s

    def summaries_due(self, jobs: Iterable[str], now_s: float) -> list[str]:
        """The jobs whose summary was not written for a minute; they count as written."""
        due = [job for job in jobs if now_s - self._summary_s.setdefault(job, now_s) >= _SUMMARY_EVERY_S]
        self._summary_s |= dict.fromkeys(due, now_s)
        return due if self._store is not None else []

    def summary(self, make: Callable[[], JobSummary | None], attempt: int) -> None:
        """Write a summary, which is made only where there is a store."""
        if self._store is not None and (summary := make()) is not None:
            self.add([summary_row(summary.name, attempt, to_json([summary])["jobs"][0])])

    def forget(self, jobs: Iterable[str]) -> None:
        """Forget what was written of jobs that are gone."""
        for job in jobs:
            self._summary_s.pop(job, None)

    def expire(self, now_unix_s: float, now_s: float) -> None:
        """Let go of what is older than the retention, once an hour."""
        if self._store is not None and (
            self._expired_s is None or now_s - self._expired_s >= _EXPIRE_EVERY_S
        ):
            self._expired_s = now_s
            self._store.expire(self._retention_s, now_unix_s, now_s)


class StoredExporterMemory:
    """The memory of one exporter. A full disk costs what it would have stored."""

    def __init__(self, store: HistoryStore, exporter: str) -> None:
        self._store = store
        self._exporter = exporter

    @property
    def closing(self) -> bool:
        return self._store.closing

    def load(self) -> bytes | None:
        return self._store.exporter_state(self._exporter)

    def save(self, state: bytes) -> None:
        self._store.submit([exporter_row(self._exporter, state)])
