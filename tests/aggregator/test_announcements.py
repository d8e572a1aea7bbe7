"""An alert of a partition is announced once it is stored: whoever continues announces no other start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from perfd.aggregator.alerts import Announcements
from perfd.aggregator.history import HistoryRecorder, HistoryStore, history_recorder
from perfd.aggregator.history.database import HistoryUnavailableError
from perfd.aggregator.history.history_rows import Statement
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.model import Alert, AlertState
from perfd.rules.rule_model import EngineState


def fired(time_unix_s: float, name: str = "A") -> Alert:
    labels = {"perfd_job": "llm"}
    return Alert(name=name, labels=labels, state=AlertState.FIRING, fired_at_unix_s=time_unix_s)


class Away(SqliteDatabase):
    """Takes nothing until it is `back`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.back = threading.Event()

    def write(self, statements: Sequence[Statement]) -> None:
        if not self.back.is_set():
            raise HistoryUnavailableError("It is away.")
        super().write(statements)


class Spare:
    """Keeps one body, and says so when it is asked to."""

    def __init__(self) -> None:
        self.kept: list[Callable[[], None]] = []

    def keep(self, _body: bytes, kept: Callable[[], None]) -> None:
        self.kept.append(kept)

    def take(self) -> bytes | None:
        return None

    def clear(self) -> None:
        pass


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_recorder, "_ALERT_STORED_WITHIN_S", 0.01)


def record(store: HistoryStore, alert: Alert) -> Callable[[], bool]:
    """What a round does with an alert that began to fire."""
    recorder = HistoryRecorder(store, retention_days=1.0)
    return recorder.alerts([alert], lambda: EngineState(time_unix_s=7.0), 7.0)


def test_what_is_not_stored_is_not_announced_and_does_not_fire_for_others(tmp_path: Path) -> None:
    database = Away(tmp_path / "history.sqlite")
    store = HistoryStore(database, retry_s=0.01)
    announcements = Announcements(lambda: True)
    alert, known = fired(7.0), fired(5.0, "B")
    stored = record(store, alert)
    announcements.add([alert], stored, 1.0)
    assert announcements.due(2.0) == []
    assert announcements.known([known, alert]) == [known]
    database.back.set()
    while not stored():
        threading.Event().wait(0.01)
    assert announcements.due(3.0) == [alert]
    assert announcements.due(3.0) == []
    assert announcements.known([known, alert]) == [known, alert]
    store.close()


def test_what_nats_keeps_while_the_database_is_away_is_announced(tmp_path: Path) -> None:
    spare = Spare()
    store = HistoryStore(Away(tmp_path / "history.sqlite"), retry_s=0.01, spare=spare)
    first = record(store, fired(7.0))
    while not spare.kept:
        threading.Event().wait(0.01)
    second = record(store, fired(8.0))
    assert not first()
    assert not second()
    spare.kept[0]()
    assert first()
    assert not second()
    spare.kept[-1]()
    assert second()
    store.close()


def test_changes_are_announced_in_order_and_after_a_while_only_by_who_holds_the_lease() -> None:
    stored = [False, True]
    held = False
    announcements = Announcements(lambda: held)
    announcements.add([fired(7.0)], lambda: stored[0], 1.0)
    announcements.add([fired(8.0)], lambda: stored[1], 2.0)
    assert announcements.due(3.0) == []
    assert announcements.due(100.0) == []
    held = True
    assert [one.fired_at_unix_s for one in announcements.due(100.0)] == [7.0, 8.0]


def test_without_others_that_continue_nothing_waits() -> None:
    announcements = Announcements()
    announcements.add([fired(7.0)], lambda: False, 1.0)
    assert [one.fired_at_unix_s for one in announcements.due(1.0)] == [7.0]
