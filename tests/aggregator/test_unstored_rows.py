"""What only the aggregator knows survives a takeover while the database takes nothing."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.history import HistoryRecorder, HistoryStore, StoredExporterMemory, history_recorder
from perfd.aggregator.history.database import HistoryUnavailableError
from perfd.aggregator.history.history_rows import Statement, engine_row, exporter_row, job_rows
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.history.unstored_rows import UnstoredRows, unstored
from perfd.model import Alert, AlertState
from perfd.rules.rule_model import EngineState


class Database(SqliteDatabase):
    """Takes nothing while `away`."""

    away = False

    def write(self, statements: Sequence[Statement]) -> None:
        if self.away:
            raise HistoryUnavailableError("It is away.")
        super().write(statements)


class Spare:
    """Keeps one body."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.cleared = threading.Event()

    def keep(self, body: bytes, kept: Callable[[], None]) -> None:
        self.body = body
        kept()

    def take(self) -> bytes | None:
        return self.body

    def clear(self) -> None:
        self.body = None
        self.cleared.set()


def fired(time_unix_s: float) -> Alert:
    labels = {"perfd_job": "llm"}
    return Alert(name="A", labels=labels, state=AlertState.FIRING, fired_at_unix_s=time_unix_s)


def announce(store: HistoryStore, time_unix_s: float) -> None:
    """What a round does that announces an alert."""
    recorder = HistoryRecorder(store, retention_days=1.0)
    recorder.alerts([fired(time_unix_s)], lambda: EngineState(time_unix_s=time_unix_s), time_unix_s)
    StoredExporterMemory(store, "e").save(b"announced %d" % time_unix_s)


def test_the_next_holder_knows_what_was_announced_while_the_database_was_away(tmp_path: Path) -> None:
    spare, path = Spare(), tmp_path / "history.sqlite"
    database = Database(path)
    killed = HistoryStore(database, retry_s=0.01, spare=spare)
    database.away = True
    announce(killed, 7.0)
    while spare.body is None or len(unstored(spare.body, None)) < 3:
        time.sleep(0.01)
    # The file is locked until its aggregator has ended.
    killed.close()
    found = HistoryStore(Database(path), spare=spare)
    assert [alert.fired_at_unix_s for alert in found.alerts(limit=9)] == [7.0]
    state = found.engine_state()
    assert state is not None
    assert state.time_unix_s == 7.0
    assert found.exporter_state("e") == b"announced 7"
    assert spare.body is None
    found.close()


def test_an_alert_is_kept_before_it_is_known_that_the_database_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_recorder, "_ALERT_STORED_WITHIN_S", 0.01)
    hangs, over = threading.Event(), threading.Event()

    class Hanging(SqliteDatabase):
        def write(self, statements: Sequence[Statement]) -> None:
            hangs.set()
            over.wait()
            super().write(statements)

    spare = Spare()
    store = HistoryStore(Hanging(tmp_path / "history.sqlite"), spare=spare)
    announce(store, 7.0)
    hangs.wait()
    assert store.healthy
    assert spare.body is not None
    # What is submitted later, such as that it was announced, is kept too.
    assert len(unstored(spare.body, None)) == 3
    over.set()
    spare.cleared.wait()
    store.close()


def test_nothing_is_kept_once_the_database_has_it(tmp_path: Path) -> None:
    spare, database = Spare(), Database(tmp_path / "history.sqlite")
    store = HistoryStore(database, retry_s=0.01, spare=spare)
    announce(store, 7.0)
    assert spare.body is None
    database.away = True
    announce(store, 8.0)
    while spare.body is None:
        time.sleep(0.01)
    database.away = False
    spare.cleared.wait()
    assert spare.body is None
    assert [alert.fired_at_unix_s for alert in store.alerts(limit=9)] == [7.0, 8.0]
    store.close()


def test_nothing_is_kept_for_long_while_batches_keep_coming(tmp_path: Path) -> None:
    spare, over = Spare(), threading.Event()

    class Busy(Database):
        def write(self, statements: Sequence[Statement]) -> None:
            super().write(statements)
            if not over.is_set():
                store.submit([*job_rows("llm", 1, 0.0, 0.0)], lambda: None)

    database = Busy(tmp_path / "history.sqlite")
    store = HistoryStore(database, retry_s=0.01, spare=spare)
    database.away = True
    announce(store, 8.0)
    while spare.body is None:
        time.sleep(0.01)
    database.away = False
    spare.cleared.wait()
    over.set()
    store.close()


def test_what_is_older_than_the_history_is_not_written(tmp_path: Path) -> None:
    spare, path = Spare(), tmp_path / "history.sqlite"
    with_old = UnstoredRows()
    with_old.add([engine_row(EngineState(time_unix_s=7.0)), exporter_row("e", b"old")])
    store = HistoryStore(Database(path), spare=spare)
    announce(store, 8.0)
    store.close()
    # It could not be cleared, because NATS was away too.
    spare.body = with_old.encoded()
    store = HistoryStore(Database(path), spare=spare)
    assert store.exporter_state("e") == b"announced 8"
    assert spare.body is None
    store.close()


@pytest.mark.parametrize("body", [b"", b"garbage", UnstoredRows().encoded()[:-3]])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, body: bytes) -> None:
    spare = Spare()
    spare.body = body
    store = HistoryStore(Database(tmp_path / "history.sqlite"), spare=spare)
    assert store.healthy
    assert spare.body is None
    store.close()


def test_what_a_newer_version_keeps_besides_is_ignored() -> None:
    packed = msgspec.msgpack.encode([("weather", (1,)), ("exporter", ("e", b"1"))])
    assert unstored(zlib.compress(packed), None) == [exporter_row("e", b"1")]


@given(st.binary(max_size=200))
def test_garbage_is_no_row(body: bytes) -> None:
    assert unstored(body, None) == []


def test_the_newest_of_each_row_is_kept_and_what_agents_send_is_not() -> None:
    rows = UnstoredRows()
    assert not rows.add(list(job_rows("llm", 1, 0.0, 0.0)))
    rows.add([exporter_row("e", b"1"), exporter_row("f", b"2")])
    rows.add([exporter_row("e", b"3")])
    assert unstored(rows.encoded(), None) == [exporter_row("e", b"3"), exporter_row("f", b"2")]
