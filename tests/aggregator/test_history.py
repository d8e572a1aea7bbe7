"""What survives a restart, and what a bad disk costs."""

import contextlib
import json
import logging
import os
import resource
import shutil
import sqlite3
import threading
import time
import urllib.request
from functools import partial
from random import Random

import pytest
from aggregator.support import START_S, aggregator, fleet, place, step, values
from exporters.support import until
from history.support import keep, step_rows, write
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfd.agent.spool import Spool
from perfd.agent.uplink import GrpcUplink
from perfd.aggregator.history import HistoryStore
from perfd.aggregator.history.history_rows import (
    agent_row,
    job_rows,
    without_replaced,
)
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.history.sqlite.sqlite_tables import SCHEMA, WRITES
from perfd.aggregator.history.startup_recovery import restore
from perfd.aggregator.limits import Limits
from perfd.aggregator.state.agent_registry import AgentState
from perfd.aggregator.state.aggregator_state import AggregatorState
from perfd.clock import SystemClock
from perfd.config import HistoryConfig, UplinkConfig
from perfd.errors import PerfdError
from perfd.model import (
    Batch,
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
)
from perfd.wire.convert import encode_message
from tests.support.examples import examples
from tests.support.fake_agent import FakeAgent

DAY_S = 86_400.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "history.sqlite"


def opened(path, *, max_bytes=None, busy_timeout_s=2.0, **options):
    return HistoryStore(SqliteDatabase(path, max_bytes=max_bytes, busy_timeout_s=busy_timeout_s), **options)


def restored(path, *, after_s=60.0, now_s=100.0):
    state = AggregatorState.empty(Limits())
    history = opened(path)
    restore(state, history, now_unix_s=START_S + after_s, now_s=now_s, forgotten_after_s=3600.0)
    history.close()
    return state


def test_a_file_that_grows_too_large_loses_the_jobs_that_were_reported_longest_ago(path):
    history = opened(path, max_bytes=400_000)
    made = fleet()
    for number in range(1, 200):
        for job in ("old", "new") if number < 100 else ("new",):
            keep(history, made, step(number, job=job, tokens_per_s=1.0), now_s=float(number))
        text = Event(kind=EventKind.CHECKPOINT, time_unix_ns=number, message="x" * 4000, job="new")
        keep(history, made, text, now_s=float(number))
    assert history.steps("old", first_step=0, limit=9) == []
    assert history.steps("new", first_step=199, limit=9) != []
    history.close()
    assert path.stat().st_size < 1_000_000


@pytest.fixture
def small_files():
    """Files cannot grow: what a full disk is like."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_full_disk_does_not_take_waits_for_room(path, small_files, caplog):
    history = opened(path, retry_s=0.02)
    write(history)
    small_files(0)
    stored = []
    with caplog.at_level(logging.ERROR):
        for number in range(1, 4):
            history.submit(step_rows(number), partial(stored.append, number))
        until(lambda: not history.healthy)
        time.sleep(0.1)
    assert stored == []
    assert len(caplog.records) == 1
    small_files(resource.RLIM_INFINITY)
    keep(history, fleet(), step(9))
    assert stored == [1, 2, 3]
    assert history.healthy
    assert history.failed_rows == 0
    assert [line["step"] for line in history.steps("llm", first_step=0, limit=9)] == [1, 2, 3, 9]
    history.close()


def test_a_file_that_another_program_writes_is_written_later(path):
    history = opened(path, busy_timeout_s=0.01, retry_s=0.02)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    stored = threading.Event()
    history.submit(list(job_rows("llm", 1, None, 0.0)), stored.set)
    until(lambda: not history.healthy)
    assert not stored.is_set()
    other.execute("ROLLBACK")
    other.close()
    assert stored.wait(20)
    assert history.healthy
    assert history.failed_rows == 0
    history.close()


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, 3]), st.integers(0, 3), st.booleans()),
        max_size=12,
    )
)
@settings(max_examples=examples(40), deadline=None)
def test_rows_of_agents_in_one_transaction_end_as_if_written_one_by_one(written):
    def statement(agent, sequence, now_s, moved):
        state = AgentState(agent_id=agent, node="n1" if moved else "n0", epoch=f"{agent}{now_s}")
        return agent_row(state, sequence, START_S + now_s)

    with contextlib.closing(sqlite3.connect(":memory:")) as one_by_one:
        one_by_one.executescript(SCHEMA)
        statements = [statement(*row) for row in written]
        for kind, values_of in statements:
            one_by_one.execute(WRITES[kind], values_of)
        kept = without_replaced(statements)
        with contextlib.closing(sqlite3.connect(":memory:")) as together:
            together.executescript(SCHEMA)
            for kind, values_of in kept:
                together.execute(WRITES[kind], values_of)
            tables = [
                connection.execute("SELECT * FROM agents").fetchall() for connection in (one_by_one, together)
            ]
    assert tables[0] == tables[1]


def test_only_the_last_of_an_agents_rows_in_a_transaction_is_written():
    state = AgentState(agent_id="a", node="n")
    statements = [agent_row(state, sequence, START_S) for sequence in range(1, 17)]
    assert without_replaced([*step_rows(1), *statements]) == [*step_rows(1), statements[-1]]


def test_a_path_that_is_a_folder_is_refused_with_a_sentence(path):
    path.mkdir(parents=True)
    with pytest.raises(PerfdError, match=r"history\.path"):
        opened(path)


def test_two_aggregators_cannot_have_one_file(path):
    first = opened(path)
    with pytest.raises(PerfdError, match=rf"process {os.getpid()}\) uses the history file .*stop it, or"):
        opened(path)
    first.close()
    opened(path).close()


# Damage


def filled(path):
    """The bytes of a history with a job of many pages, which are also written to this path."""
    if "bytes" not in WHOLE:
        WHOLE["bytes"] = written(path)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(WHOLE["bytes"])
    return WHOLE["bytes"]


WHOLE = {}


def written(path):
    history, made = opened(path), fleet()
    keep(history, made, *(step(number) for number in range(1, 400)))
    keep(history, made, GpuInfo(index=3, name="H200"), place(0, 3), JobDescription(job="llm", framework="f"))
    for number in range(400):
        keep_event = Event(kind=EventKind.CHECKPOINT, time_unix_ns=number, message="m" * 200, job="llm")
        keep(history, made, keep_event)
    history.close()
    return path.read_bytes()


@pytest.mark.parametrize("damage", ["empty", "zeros", "header", "magic", "half", "pages"])
def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_kept(path, damage, caplog):
    whole = filled(path)
    size = len(whole)
    path.write_bytes(
        {
            "empty": b"",
            "zeros": bytes(8 * 4096),
            "header": bytes(100) + whole[100:],
            "magic": b"no database now." + whole[16:],
            "half": whole[: size // 2],
            "pages": b"".join(
                os.urandom(4096) if page % 13 == 12 else whole[page * 4096 : (page + 1) * 4096]
                for page in range(size // 4096)
            ),
        }[damage]
    )
    state = restored(path)
    history = opened(path)
    write(history, *step_rows(500))
    assert history.healthy
    lines = history.steps("llm", first_step=1, limit=1000)
    assert lines[-1]["step"] == 500
    if damage == "pages":
        assert len(lines) > 1
        assert "llm" in state.fleet.jobs
    if damage != "empty":
        assert path.with_name(path.name + ".damaged").exists()
        assert "moved aside" in caplog.text
    history.close()


@pytest.mark.parametrize("content", ["text", "binary", "tables", "a table of the same name", "version"])
def test_a_file_that_is_no_history_is_refused_and_left_as_it_is(path, content):
    path.parent.mkdir(exist_ok=True)
    if content in {"text", "binary"}:
        path.write_bytes(
            {"text": b"root:x:0:0:root:/root:/bin/bash\n", "binary": Random(1).randbytes(9000)}[content]
        )
    else:
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute(
                f"CREATE TABLE {'bookmarks' if content != 'a table of the same name' else 'jobs'} (a, b)"
            )
            other.execute("CREATE TABLE places (c)")
            other.execute(f"PRAGMA user_version = {2 if content == 'version' else 0}")
    before = path.read_bytes()
    with pytest.raises(
        PerfdError, match=r"is not a history of perfd, and was not changed: set history\.path"
    ):
        opened(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_pipe_is_no_history(path):
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(PerfdError, match="is not a history of perfd"):
        opened(path)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25), deadline=None
)
@given(seed=st.integers(0, 2**32), flips=st.sampled_from([1, 30]))
# In the name of a column.
@example(seed=403086952, flips=1)
def test_whatever_bits_flip_the_aggregator_starts_and_stores(tmp_path_factory, seed, flips):
    path = tmp_path_factory.mktemp("flipped") / "h.sqlite"
    damaged, chance = bytearray(filled(path)), Random(seed)
    for _ in range(flips):
        damaged[chance.randrange(100, len(damaged))] ^= 1 << chance.randrange(8)
    path.write_bytes(damaged)
    with aggregator(history=HistoryConfig(path=str(path))) as running:
        with FakeAgent(running.grpc_address, agent_id="new") as agent:
            agent.hello()
            agent.send(step(7, job="new"))
        assert running.steps("new", 0, 10)[-1]["step"] == 7


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE node_facts SET body = '{'",
        "UPDATE node_facts SET kind = 'x'",
        "UPDATE jobs SET description = '{'",
        "UPDATE jobs SET received_unix_s = 'x', started_unix_s = x'00'",
        "UPDATE jobs SET summary = '{'",
        "UPDATE events SET body = '{' WHERE rowid = (SELECT min(rowid) FROM events)",
        "UPDATE steps SET losses = '{' WHERE step = 5",
        "UPDATE steps SET step_time_s = 'x', global_batch_size = 'x' WHERE step = 5",
        "UPDATE agents SET last_sequence = 'x'",
        "INSERT INTO captures VALUES ('x', 1e9, '{')",
        "INSERT INTO engine VALUES (1, x'c1')",
        "INSERT INTO alerts VALUES ('llm', 'a', '{}', 'firing', 1, 1.0, 1.0, x'c1')",
        "INSERT INTO phases VALUES ('llm', 1, 5, 1.0, '{\"f\": 3}')",
    ],
)
def test_a_row_that_cannot_be_read_costs_that_row(path, sql):
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()
    with aggregator(history=HistoryConfig(path=str(path))) as running:
        running.tick()
        steps = {line["step"] for line in running.steps("llm", 1, 1000)}
        page = values(running.page())
    assert steps >= set(range(1, 400)) - {5}
    if "summary" not in sql and "step_time_s" not in sql:
        assert page["perfd_history_damaged_rows_total"] >= 1


def test_a_damaged_column_name_costs_no_row(path):
    filled(path)
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(
            "PRAGMA writable_schema = ON;"
            "UPDATE sqlite_master SET sql = replace(sql, 'received_unix_s', 'received_unhx_s')"
            " WHERE name = 'jobs'"
        )
    with aggregator(history=HistoryConfig(path=str(path))) as running:
        with FakeAgent(running.grpc_address, agent_id="new") as agent:
            agent.hello()
            agent.send(step(7, job="new"))
        assert {"llm", "new"} <= set(running.jobs())
    assert path.with_name(path.name + ".damaged").exists()


def test_an_error_that_nobody_expected_is_reported_and_the_rows_are_written_later(path, monkeypatch):
    history = opened(path, retry_s=0.02)
    with monkeypatch.context() as broken:
        broken.setattr(SqliteDatabase, "write", lambda *_: {}["steps"])
        stored = threading.Event()
        history.submit(step_rows(1), stored.set)
        until(lambda: not history.healthy)
        assert history.problem == "History cannot be written: KeyError: 'steps'"
    assert stored.wait(20)
    assert history.healthy
    history.close()


@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_history_that_is_removed_is_written_again(whole_folder, path, caplog):
    history = opened(path)
    write(history, *step_rows(1))
    if whole_folder:
        shutil.rmtree(path.parent)
    else:
        path.unlink()

    write(history, *step_rows(2))
    write(history, *step_rows(3))

    assert [record.getMessage() for record in caplog.records] == [
        "The history file was removed: it is written again."
    ]
    with pytest.raises(PerfdError, match="Another aggregator"):
        opened(path)
    assert [line["step"] for line in history.steps("llm", first_step=0, limit=9)] == [1, 2, 3]
    history.close()
    with contextlib.closing(sqlite3.connect(path)) as rows:
        assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert rows.execute("SELECT step FROM steps ORDER BY step").fetchall() == [(1,), (2,), (3,)]


def test_on_a_full_disk_the_aggregator_starts_and_stores_later(tmp_path, small_files, caplog):
    path = tmp_path / "h.sqlite"
    small_files(0)
    with aggregator(history=HistoryConfig(path=str(path)), http_listen="127.0.0.1:0") as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.say(Batch(sequence=1, sent_unix_ns=0, records=[step(1)]))
            received = agent.acknowledged()
            assert (received.sequence, received.received_sequence) == (0, 1)
            running.tick()
            assert values(running.page())['perfd_step{perfd_job="llm"}'] == 1
            assert values(running.page())["perfd_history_up"] == 0
            with urllib.request.urlopen(f"http://{running.http_address}/api/v1/status") as answer:
                problem = json.load(answer)["history_problem"]
            assert problem.startswith("History cannot be written: ")
            said = [record.getMessage() for record in caplog.records]
            assert said.count("The history cannot be read: the start goes on without it.") == 1
            small_files(resource.RLIM_INFINITY)
            agent.wait_stored(1)
        assert [line["step"] for line in running.steps("llm", 0, 9)] == [1]


def test_what_was_not_stored_is_still_in_the_spool_and_stored_when_there_is_room(tmp_path, small_files):
    path = tmp_path / "h.sqlite"
    spool = Spool(tmp_path / "spool", max_bytes=1 << 24)
    with aggregator(history=HistoryConfig(path=str(path))) as running:
        # What waits is bounded: most batches find no room.
        running._history._max_queued_bytes = 20_000
        uplink = GrpcUplink(
            UplinkConfig(address=running.grpc_address, backoff_initial_s=0.05, backoff_max_s=0.1),
            node="n0",
            spool=spool,
            clock=SystemClock(),
            on_request=lambda _: None,
        )
        uplink.start()
        try:
            assert uplink.wait_acknowledged(send(spool, uplink, 1), 20)
            small_files(0)
            for number in range(2, 101):
                send(spool, uplink, number)
            until(lambda: running.state.fleet.jobs["llm"].steps.last_step == 100)
            assert not running._history.healthy
            assert uplink.state.acknowledged_sequence == 1
            small_files(resource.RLIM_INFINITY)
            assert uplink.wait_acknowledged(100, 30)
        finally:
            small_files(resource.RLIM_INFINITY)
            uplink.stop(1.0)
            spool.close()
        running.tick()
        assert values(running.page())["perfd_lost_batches_total"] == 0
        assert running.state.fleet.jobs["llm"].attempts.number == 1
        assert [line["step"] for line in running.steps("llm", 0, 1000)] == list(range(1, 101))


def send(spool, uplink, number):
    """Give a progress line to an agent; returns its sequence."""
    records = [step(number)]
    sequence = spool.append(
        lambda sequence: encode_message(Batch(sequence=sequence, sent_unix_ns=0, records=records)), records=1
    )
    uplink.notify()
    return sequence


def test_a_long_range_has_the_steps_that_are_in_history_only(path):
    limits = Limits(steps_per_job=50)
    with aggregator(limits=limits, history=HistoryConfig(path=str(path))) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(*(step(n, time_s=START_S + 10 * n, step_time_s=n / 100) for n in range(1, 201)))
        running.tick()
        oldest = running.series("llm", 600)["step"][0]
        whole, hour = running.series("llm", 600, (0, 1e9)), running.series("llm", 600, None, 1_000)
        some = running.series("llm", 600, (20, 29))
        few = running.series("llm", 10, (0, 1e9))

    assert 100 < oldest <= 151
    assert whole["step"] == list(range(1, 201))
    assert whole["step_time_s"] == pytest.approx([number / 100 for number in range(1, 201)])
    assert hour["step"] == list(range(100, 201))
    assert some["step"] == list(range(20, 30))
    assert few["step"] == list(range(20, 201, 20))


def test_without_history_a_long_range_is_what_is_in_memory():
    with aggregator(limits=Limits(steps_per_job=50)) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(*(step(n, time_s=START_S + n) for n in range(1, 201)))
        running.tick()
        assert running.series("llm", 600, (0, 1e9))["step"] == running.series("llm", 600)["step"]
