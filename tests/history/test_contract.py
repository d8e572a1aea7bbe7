"""What every database of history does: SQLite, and a real PostgreSQL."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from aggregator.support import START_S, fleet, gpus, place, source, step
from history.support import DAY_S, keep, step_rows, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire.records import RECORDS, of

from perfd.aggregator.history.history_reader import StoredAgent
from perfd.aggregator.history.history_rows import (
    agent_row,
    alert_row,
    exporter_row,
    job_rows,
    node_memory_row,
    summary_row,
)
from perfd.aggregator.state import AgentState
from perfd.errors import PerfdError
from perfd.model import (
    Alert,
    AlertState,
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
from tests.support.examples import examples


def test_a_restart_finds_jobs_as_they_were(location):
    made = fleet()
    history = location.store()
    described = JobDescription(job="llm", framework="nemo", parallel=ParallelLayout(tp=2, pp=4))
    keep(history, made, described, place(0, 3), GpuInfo(index=3, name="H200"), gpus(0, a=1.0))
    server = ServerInfo(server="h:1", engine="vllm", model="m", parallel=ParallelLayout(tp=2))
    keep(history, made, server)
    keep(history, made, step(1, loss=2.5), step(2, step_time_s=None), step(3, warmup=True))
    keep(history, made, StepPhases(job="llm", step=3, phases={"f": PhaseTime(by_rank={1: 2.0})}))
    history.close()
    state = location.restored()
    job = state.fleet.jobs["llm"]
    before = made.jobs["llm"].steps.table()
    after = job.steps.table()
    for column in ("step", "step_time_s", "loss", "warmup", "time_unix_s"):
        assert getattr(after, column).tolist() == pytest.approx(getattr(before, column).tolist(), nan_ok=True)
    assert job.description == described
    assert job.phases.table().by_rank_s["f"][0, 1] == 2.0
    assert job.attempts.started_unix_s == START_S
    assert state.fleet.nodes["n0"].gpu_infos[3].name == "H200"
    assert state.fleet.nodes["n0"].server_infos["h:1"] == server
    assert ("llm", 0) in state.fleet.nodes["n0"].placements
    assert [(agent.agent_id, agent.node, agent.last_sequence) for agent in state.agents] == [("a", "n0", 7)]


def test_after_a_restart_the_next_line_goes_on_and_a_lower_one_is_a_new_attempt(location):
    history = location.store()
    keep(history, fleet(), step(1), step(2), step(3))
    history.close()
    going_on, going_back = location.restored(), location.restored()
    going_on.fleet.apply([step(4)], source())
    going_back.fleet.apply([step(1, step_time_s=7.0)], source())
    assert going_on.fleet.jobs["llm"].attempts.number == 1
    assert going_on.fleet.jobs["llm"].steps.table().step.tolist() == [1, 2, 3, 4]
    assert going_back.fleet.jobs["llm"].attempts.number == 2


def test_only_the_newest_attempt_comes_back(location):
    history, made = location.store(), fleet()
    keep(history, made, step(1), step(2))
    keep(history, made, step(1, step_time_s=5.0))
    history.close()
    job = location.restored().fleet.jobs["llm"]
    assert job.attempts.number == 2
    assert job.steps.table().step_time_s.tolist() == [5.0]
    assert [event.kind for event in job.events] == [EventKind.RESTARTED]


def test_a_job_that_is_forgotten_stays_in_history(location):
    history = location.store()
    keep(history, fleet(), step(1))
    history.close()
    assert location.restored(after_s=3601.0).fleet.jobs == {}
    history = location.store()
    assert [line["step"] for line in history.steps("llm", first_step=0, limit=10)] == [1]
    history.close()


def test_a_step_that_was_repeated_is_listed_once_as_the_newest_attempt_did_it(location):
    history, made = location.store(), fleet()
    keep(history, made, step(1), step(2), step(3))
    keep(history, made, step(2, step_time_s=9.0))
    found = [
        (line["step"], line["attempt"], line["step_time_s"])
        for line in history.steps("llm", first_step=1, limit=2)
    ]
    assert found == [(1, 1, 1.0), (2, 2, 9.0)]
    history.close()


def test_what_is_older_than_its_time_is_deleted(location):
    history = location.store()
    keep(history, fleet(), step(1), Event(kind=EventKind.CHECKPOINT, time_unix_ns=1, message="", job="llm"))
    keep(history, fleet(), step(1, job="new"), now_s=2 * DAY_S)
    history.expire(5 * DAY_S, START_S + 4 * DAY_S, 0.0)
    history.expire(5 * DAY_S, START_S + 6 * DAY_S, 2 * DAY_S)
    write(history)
    assert history.steps("llm", first_step=0, limit=9) == []
    assert len(history.steps("new", first_step=0, limit=9)) == 1
    assert history.failed_rows == 0
    history.close()


def test_a_clock_that_was_set_forty_days_back_for_a_moment_deletes_nothing(location):
    history = location.store()
    keep(history, fleet(), step(1))
    history.expire(30 * DAY_S, START_S + 100.0, 100.0)
    write(history, *job_rows("llm", 1, START_S, START_S + 110.0 - 40 * DAY_S))
    history.expire(30 * DAY_S, START_S + 160.0, 160.0)
    write(history)
    assert len(history.steps("llm", first_step=0, limit=9)) == 1
    history.close()


def _counts(location):
    return [location.sql(f"SELECT count(*) FROM {name}")[0][0] for name in ("steps", "phases", "events")]


def test_the_clock_of_an_agent_that_is_decades_off_deletes_nothing_before_its_time(location):
    """As of a node without a battery: the times of what it reports are not when it was received."""
    history = location.store()
    odd = Event(kind=EventKind.CHECKPOINT, time_unix_ns=1, message="", job="llm")
    phases = StepPhases(job="llm", step=1, phases={"f": PhaseTime(by_rank={1: 2.0})})
    keep(history, fleet(), step(1, time_s=-START_S), phases, odd)
    history.expire(30 * DAY_S, START_S, 0.0)
    write(history)
    assert _counts(location) == [1, 1, 1]
    history.expire(30 * DAY_S, START_S + 31 * DAY_S, 31 * DAY_S)
    write(history)
    assert _counts(location) == [0, 0, 0]
    history.close()


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_is_set_forty_days_ahead_deletes_nothing(location, restart):
    history = location.store()
    keep(history, fleet(), step(1))
    history.expire(30 * DAY_S, START_S + 100.0, 100.0)
    if restart:
        history.close()
        history = location.store()
    for hour in range(1, 6):
        history.expire(30 * DAY_S, START_S + 40 * DAY_S + hour * 3600, hour * 3600.0)
    write(history)
    assert len(history.steps("llm", first_step=0, limit=9)) == 1
    history.close()


def test_numbers_that_json_has_no_word_for_do_not_stop_a_restart(location):
    history, made = location.store(), fleet()
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
    (event,) = location.restored().fleet.jobs["llm"].events
    assert event.values == {"b": 1.0}


kept_kinds = {kind: message for kind, message in RECORDS.items() if kind is not CollectiveTimes}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(st.lists(st.one_of(*(of(kind, message) for kind, message in kept_kinds.items())), max_size=10))
def test_whatever_the_wire_carries_can_be_kept_and_restored(location, records):
    location.renew()
    history = location.store()
    keep(history, fleet(), *records)
    assert history.failed_rows == 0
    history.close()
    location.restored()


def test_a_batch_size_that_no_column_holds_is_unknown(location):
    history = location.store()
    keep(history, fleet(), step(1, global_batch_size=2**64 - 1))
    assert history.steps("llm", first_step=0, limit=1)[0]["global_batch_size"] is None
    history.close()


def test_a_row_that_no_table_takes_costs_only_its_own_group(location):
    history = location.store()
    block = threading.Event()
    history.submit([], block.wait)
    unstorable = agent_row(AgentState(agent_id="a", node="n"), 1 << 70, 0.0)
    for statement in (step_rows(1), [unstorable], step_rows(2)):
        history.submit(statement)
    block.set()
    write(history)
    assert history.failed_rows == 1
    assert [line["step"] for line in history.steps("llm", first_step=0, limit=9)] == [1, 2]
    assert history.healthy
    history.close()


def test_rows_beyond_the_queue_are_given_up_and_counted(location):
    history = location.store(max_queued_bytes=0)
    assert not history.submit(list(job_rows("llm", 1, None, 0.0)))
    assert history.failed_rows == 1
    history.close()


def test_batches_leave_room_for_what_nobody_sends_again(location):
    history = location.store(max_queued_bytes=4000)
    row = list(job_rows("j" * 3000, 1, None, 0.0))
    assert not history.submit(row, lambda: None)
    assert history.submit(row)
    history.close()
    assert (history.failed_rows, history.written_rows) == (1, 1)


def test_after_close_nothing_is_written_and_nobody_waits(location):
    history = location.store()
    history.close()
    history.close()
    assert not history.submit(list(job_rows("llm", 1, None, 0.0)))
    assert history.failed_rows == 1


def test_a_second_aggregator_is_refused_until_the_first_ends(location):
    first = location.store()
    with pytest.raises(PerfdError, match=r"Another aggregator .*uses .*: stop it, or"):
        location.store()
    write(first, *step_rows(1))
    first.close()
    location.store().close()


def test_a_history_of_a_newer_perfd_is_refused_with_a_sentence(location):
    location.store().close()
    location.sql(location.as_newer)
    with pytest.raises(PerfdError, match=r"written by a newer perfd .*upgrade this one, or set history"):
        location.store()


def test_a_query_after_the_end_is_answered(location):
    history = location.store()
    keep(history, fleet(), step(1))
    history.close()
    assert [line["step"] for line in history.steps("llm", first_step=0, limit=9)] == [1]


def test_stored_rows_are_read_back(location):
    history = location.store()
    alert = Alert(
        name="Slow", labels={"perfd_job": "llm"}, state=AlertState.FIRING, value=1.0, fired_at_unix_s=START_S
    )
    write(
        history,
        *job_rows("llm", 1, None, START_S),
        alert_row(alert, START_S),
        alert_row(replace(alert, first_step=7), START_S + 1),
        exporter_row("mail", b"\x00\xff"),
        node_memory_row("n0", "drain", "k", START_S, {"a": 1}),
        summary_row("llm", 1, {"name": "llm"}),
    )
    assert history.summary("llm") == {"name": "llm"}
    assert (history.received_unix_s("llm"), history.received_unix_s("other")) == (START_S, None)
    assert history.exporter_state("mail") == b"\x00\xff"
    assert history.exporter_state("other") is None
    (found,) = history.alerts(limit=9)
    assert (found.name, found.first_step) == ("Slow", 7)
    assert history.engine_state() is None
    history.close()


def test_jobs_that_only_history_has_are_listed_newest_first_page_by_page(location):
    def job(name, attempt, unix_s):
        return [*job_rows(name, attempt, unix_s - 5.0, unix_s), summary_row(name, attempt, {"of": attempt})]

    def listed(*words, known=(), offset=0, limit=9):
        jobs, count = history.ended_jobs(words, known, offset=offset, limit=limit)
        return [(one.job, one.attempt) for one in jobs], count

    history = location.store()
    write(history, *job("a", 1, START_S), *job("a", 2, START_S + 9.0), *job("Train_B%", 1, START_S + 4.0))
    write(history, *job("train-c", 1, START_S + 4.0), *job_rows("bare", 1, None, START_S + 8.0))
    made = fleet()
    keep(history, made, step(1), Event(kind=EventKind.JOB_ENDED, time_unix_ns=1, message="", job="llm"))
    write(history, summary_row("llm", 1, {"of": "llm"}))

    every = [("a", 2), ("Train_B%", 1), ("train-c", 1), ("llm", 1)]
    assert listed() == (every, 4)
    assert listed(offset=1, limit=2) == (every[1:3], 4)
    assert listed(offset=9) == ([], 4)
    assert listed(limit=0) == ([], 4)
    assert listed(known=["a", "other"]) == (every[1:], 3)
    assert listed("train") == ([("Train_B%", 1), ("train-c", 1)], 2)
    assert listed("b%", "TRAIN_") == ([("Train_B%", 1)], 1)
    assert listed("?") == ([], 0)
    (a, *_, llm), _ = history.ended_jobs((), (), offset=0, limit=9)
    assert (a.summary, a.started_unix_s, a.received_unix_s, a.end) == (
        {"of": 2},
        START_S + 4.0,
        START_S + 9.0,
        None,
    )
    assert llm.end.kind is EventKind.JOB_ENDED
    history.close()


def test_rows_in_one_transaction_end_as_if_written_one_by_one(location):
    """Kinds may be written in another order than they came."""

    def agent(sequence, now_s, *, left=False):
        state = AgentState(agent_id="a", node="n", epoch=str(sequence), left=left)
        return agent_row(state, sequence, START_S + now_s)

    history = location.store()
    write(
        history,
        agent(3, 0),
        agent(2, 2, left=True),
        agent(1, 1),
        *step_rows(2),
        *job_rows("llm", 1, 5.0, START_S + 9),
        *job_rows("llm", 1, 6.0, START_S + 3),
        *step_rows(2, step_time_s=4.0),
    )
    assert history.agents() == [
        StoredAgent(
            agent_id="a", node="n", last_sequence=3, received_unix_s=START_S + 2, epoch="1", left=False
        )
    ]
    assert [line["step_time_s"] for line in history.steps("llm", first_step=0, limit=9)] == [4.0]
    (job,) = history.jobs_since(0.0, steps=9, phases=9)
    assert (job.started_unix_s, job.received_unix_s) == (START_S, START_S + 9)
    history.close()
