"""What survives a restart, and what a bad disk costs."""

import logging
import resource
import sqlite3
import threading

import pytest
from aggregator.support import START_S, fleet, gpus, place, source, step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire.records import RECORDS, of

from perfd.aggregator.history.history_store import HistoryStore
from perfd.aggregator.history.history_tables import agent_row, job_rows, rows
from perfd.aggregator.history.recovery import restore
from perfd.aggregator.limits import Limits
from perfd.aggregator.state.aggregator_state import AggregatorState
from perfd.errors import PerfdError
from perfd.model import (
    CollectiveTimes,
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
    ParallelLayout,
    PhaseTime,
    ServerInfo,
    StepPhases,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "history.sqlite"


def write(history, *statements):
    """Write and wait until it is done, well or not."""
    done = threading.Event()
    history.submit(list(statements), done.set)
    assert done.wait(20)


def keep(history, made, *records, now_s=0.0, node="n0", agent="a"):
    """Apply records and keep what has to be kept."""
    durable = made.apply(records, source(now_s=now_s, node=node, agent=agent))
    names = {(item.job, item.attempt) for item in durable if item.job}
    statements = [row for name, attempt in names for row in job_rows(name, attempt, START_S, START_S + now_s)]
    statements += [row for item in durable for row in rows(item, START_S + now_s)]
    write(history, *statements, agent_row(agent, node, 7, START_S + now_s))


def restored(path, *, after_s=60.0, now_s=100.0):
    state = AggregatorState.empty(Limits())
    history = HistoryStore(path)
    restore(state, history, now_unix_s=START_S + after_s, now_s=now_s, forgotten_after_s=3600.0)
    history.close()
    return state


def test_a_restart_finds_jobs_as_they_were(path):
    made = fleet()
    history = HistoryStore(path)
    described = JobDescription(job="llm", framework="nemo", parallel=ParallelLayout(tp=2, pp=4))
    keep(history, made, described, place(0, 3), GpuInfo(index=3, name="H200"), gpus(0, a=1.0))
    server = ServerInfo(server="h:1", engine="vllm", model="m", parallel=ParallelLayout(tp=2))
    keep(history, made, server)
    keep(history, made, step(1, loss=2.5), step(2, step_time_s=None), step(3, warmup=True))
    keep(history, made, StepPhases(job="llm", step=3, phases={"f": PhaseTime(by_rank={1: 2.0})}))
    history.close()
    state = restored(path)
    job = state.fleet.jobs["llm"]
    before = made.jobs["llm"].steps.table()
    after = job.steps.table()
    for column in ("step", "step_time_s", "loss", "warmup", "time_unix_s"):
        assert getattr(after, column).tolist() == pytest.approx(getattr(before, column).tolist(), nan_ok=True)
    assert job.description == described
    assert job.phases.table().by_rank_s["f"][0, 1] == 2.0
    assert job.started_unix_s == START_S
    assert state.fleet.nodes["n0"].gpu_infos[3].name == "H200"
    assert state.fleet.nodes["n0"].server_infos["h:1"] == server
    assert ("llm", 0) in state.fleet.nodes["n0"].placements
    assert [(agent.agent_id, agent.node, agent.last_sequence) for agent in state.agents] == [("a", "n0", 7)]


def test_after_a_restart_the_next_line_goes_on_and_a_lower_one_is_a_new_attempt(path):
    history = HistoryStore(path)
    keep(history, fleet(), step(1), step(2), step(3))
    history.close()
    going_on, going_back = restored(path), restored(path)
    going_on.fleet.apply([step(4)], source())
    going_back.fleet.apply([step(1, step_time_s=7.0)], source())
    assert going_on.fleet.jobs["llm"].attempt == 1
    assert going_on.fleet.jobs["llm"].steps.table().step.tolist() == [1, 2, 3, 4]
    assert going_back.fleet.jobs["llm"].attempt == 2


def test_only_the_newest_attempt_comes_back(path):
    history, made = HistoryStore(path), fleet()
    keep(history, made, step(1), step(2))
    keep(history, made, step(1, step_time_s=5.0))
    history.close()
    job = restored(path).fleet.jobs["llm"]
    assert job.attempt == 2
    assert job.steps.table().step_time_s.tolist() == [5.0]
    assert [event.kind for event in job.events] == [EventKind.RESTARTED]


def test_a_job_that_is_forgotten_stays_on_disk(path):
    history = HistoryStore(path)
    keep(history, fleet(), step(1))
    assert restored(path, after_s=3601.0).fleet.jobs == {}
    assert [line["step"] for line in history.steps("llm", first_step=0, limit=10)] == [1]
    history.close()


def test_a_step_that_was_repeated_is_listed_once_as_the_newest_attempt_did_it(path):
    history, made = HistoryStore(path), fleet()
    keep(history, made, step(1), step(2), step(3))
    keep(history, made, step(2, step_time_s=9.0))
    found = [
        (line["step"], line["attempt"], line["step_time_s"])
        for line in history.steps("llm", first_step=1, limit=2)
    ]
    assert found == [(1, 1, 1.0), (2, 2, 9.0)]
    history.close()


def test_what_is_older_than_its_time_is_deleted(path):
    history = HistoryStore(path)
    keep(history, fleet(), step(1), Event(kind=EventKind.CHECKPOINT, time_unix_ns=1, message="", job="llm"))
    keep(history, fleet(), step(1, job="new"), now_s=1000.0)
    history.expire(START_S + 500.0)
    write(history)
    assert history.steps("llm", first_step=0, limit=9) == []
    assert len(history.steps("new", first_step=0, limit=9)) == 1
    assert history.failed_rows == 0
    history.close()


def test_numbers_that_json_has_no_word_for_do_not_stop_a_restart(path):
    history, made = HistoryStore(path), fleet()
    odd = Event(
        kind=EventKind.STRAGGLER_REPORT,
        time_unix_ns=1,
        message="",
        job="llm",
        values={"a": float("nan"), "b": 1.0, "c": float("inf")},
    )
    block = StepPhases(
        job="llm", step=1, phases={"f": PhaseTime(min_s=float("nan"), by_rank={0: float("inf")})}
    )
    keep(history, made, odd, step(1, loss=float("nan")), block)
    history.close()
    (event,) = restored(path).fleet.jobs["llm"].events
    assert event.values == {"b": 1.0}


kept_kinds = {kind: message for kind, message in RECORDS.items() if kind is not CollectiveTimes}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.one_of(*(of(kind, message) for kind, message in kept_kinds.items())), max_size=10))
def test_whatever_the_wire_carries_can_be_kept_and_restored(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("history") / "h.sqlite"
    history = HistoryStore(path)
    keep(history, fleet(), *records)
    assert history.failed_rows == 0
    history.close()
    restored(path)


@pytest.fixture
def small_files():
    """Files cannot grow: what a full disk is like."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_rows_and_is_said_once(path, small_files, caplog):
    history = HistoryStore(path)
    write(history)
    small_files(path.with_name(path.name + "-wal").stat().st_size)
    with caplog.at_level(logging.ERROR):
        for number in range(1, 4):
            keep(history, fleet(), step(number))
    assert not history.healthy
    assert history.failed_rows == 3 * 3
    assert len(caplog.records) == 1
    small_files(resource.RLIM_INFINITY)
    keep(history, fleet(), step(9))
    assert history.healthy
    assert [line["step"] for line in history.steps("llm", first_step=0, limit=9)] == [9]
    history.close()


def test_a_locked_file_costs_rows_and_not_the_thread(path):
    history = HistoryStore(path, busy_timeout_s=0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    keep(history, fleet(), step(1))
    assert history.failed_rows > 0
    other.execute("ROLLBACK")
    other.close()
    keep(history, fleet(), step(2))
    assert history.healthy
    history.close()


def test_a_batch_size_that_sqlite_cannot_hold_is_unknown(path):
    history = HistoryStore(path)
    keep(history, fleet(), step(1, global_batch_size=2**64 - 1))
    assert history.steps("llm", first_step=0, limit=1)[0]["global_batch_size"] is None
    history.close()


def test_a_row_that_cannot_be_written_does_not_end_the_thread(path):
    history = HistoryStore(path)
    write(history, agent_row("a", "n", 1 << 70, 0.0))
    assert history.failed_rows == 1
    keep(history, fleet(), step(2))
    assert history.healthy
    history.close()


def test_a_file_of_a_newer_perfd_is_refused_with_a_sentence(path):
    HistoryStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(PerfdError, match="newer perfd"):
        HistoryStore(path)


@pytest.mark.parametrize("content", [b"this is no database" * 100, None])
def test_a_file_that_cannot_be_used_is_refused_with_a_sentence(tmp_path, content):
    path = tmp_path / "history.sqlite"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(PerfdError, match=r"history\.path"):
        HistoryStore(path)


def test_rows_beyond_the_queue_are_given_up_and_counted(path):
    history = HistoryStore(path, max_queued=0)
    write(history, *job_rows("llm", 1, None, 0.0))
    assert history.failed_rows == 1
    history.close()


def test_after_close_nothing_is_written_and_nobody_waits(path):
    history = HistoryStore(path)
    history.close()
    history.close()
    write(history, *job_rows("llm", 1, None, 0.0))
    assert history.failed_rows == 1
