"""An alert is stored before anyone hears of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfd.aggregator.history import HistoryRecorder, HistoryStore, history_recorder
from perfd.aggregator.history.history_rows import Statement
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.model import Alert, AlertState
from perfd.rules.rule_model import EngineState


class SlowDatabase(SqliteDatabase):
    """Writes once it may."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked, self.allowed = threading.Event(), threading.Event()

    def write(self, statements: Sequence[Statement]) -> None:
        self.asked.set()
        self.allowed.wait()
        super().write(statements)


def test_an_alert_that_fired_is_stored_before_it_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_recorder, "_ALERT_STORED_WITHIN_S", 600.0)
    database = SlowDatabase(tmp_path / "history.sqlite")
    store = HistoryStore(database)
    recorder = HistoryRecorder(store, retention_days=1.0)
    fired = Alert(
        name="PerfdJobHangs", labels={"perfd_job": "llm"}, state=AlertState.FIRING, fired_at_unix_s=7.0
    )
    announced = threading.Event()

    def evaluate() -> None:
        recorder.alerts([fired], lambda: EngineState(time_unix_s=7.0), 7.0)
        announced.set()

    thread = threading.Thread(target=evaluate)
    thread.start()
    database.asked.wait()
    assert not announced.is_set()
    database.allowed.set()
    thread.join()
    assert [alert.fired_at_unix_s for alert in store.alerts(limit=9)] == [7.0]
    store.close()


def test_an_alert_does_not_wait_for_a_history_that_is_closed(tmp_path: Path) -> None:
    store = HistoryStore(SqliteDatabase(tmp_path / "history.sqlite"))
    store.close()
    assert not store.wait_stored(600.0)
