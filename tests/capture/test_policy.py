"""The capture policy: events in, actions out; invariants are checked at the end of every test."""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.capture.expected_job_end import FOR_HANGS, Pace
from perfd.capture.policy.capture_policy import CapturePolicy, CaptureTimeouts
from perfd.capture.policy.capture_record import Capture
from perfd.capture.policy.policy_events import (
    AgentConnected,
    AgentGone,
    AlertFired,
    CancelRequested,
    ManualRequest,
    Record,
    Restored,
    SendCancel,
    SendRequest,
    StatusReceived,
    Tick,
)
from perfd.capture.selection.rank_selection import JobView, RankView
from perfd.config import CaptureProfile
from perfd.errors import CaptureError
from perfd.model import Alert, AlertState, CaptureFile, CaptureState, CaptureStatus, CaptureTool

START = 1_700_000_000.0
PROFILES = {
    "default": CaptureProfile(cooldown_s=100, max_per_hour=3),
    "blamed": CaptureProfile(ranks="alert", cooldown_s=100, max_per_hour=3),
    "hang": CaptureProfile(tool="py_spy", steps=None, cooldown_s=100, max_per_hour=3),
    "nccl": CaptureProfile(tool="flight_recorder", steps=None, cooldown_s=100, max_per_hour=3),
    "kineto": CaptureProfile(tool="kineto", cooldown_s=100, max_per_hour=3),
}
PATIENCE = CaptureTimeouts(answer_s=30, result_s=180, gone_s=60, lead_s=3)
TWO_NODES = JobView(
    job="llama",
    nodes=("a", "b"),
    ranks=tuple(RankView(rank=rank, node="ab"[rank // 2], gpu=rank % 2) for rank in range(4)),
)


@dataclass
class World:
    """A policy, everything that it said, and a check that it never broke its promises."""

    policy: CapturePolicy = field(default_factory=lambda: CapturePolicy(PROFILES, PATIENCE))
    records: dict[str, list[Capture]] = field(default_factory=lambda: defaultdict(list))

    def report(self, event, now=START):
        actions = self.policy.handle(event, now)
        for action in actions:
            if isinstance(action, Record):
                self.records[action.capture.capture_id].append(action.capture)
        return actions

    def newest(self, capture_id):
        return self.records[capture_id][-1]

    @property
    def open_captures(self):
        return [story[-1] for story in self.records.values() if story[-1].state is None]

    def only(self):
        (capture_id,) = self.records
        return self.newest(capture_id)

    def check(self):
        for story in self.records.values():
            for earlier, later in pairwise(story):
                assert earlier.state is None, "a capture that ended changed again"
                for who in earlier.participants:
                    if who.final:
                        assert who in later.participants, "a final outcome changed"
            ended = story[-1].state is not None
            assert ended == all(who.final for who in story[-1].participants)
            assert ended == (story[-1].ended_unix_s is not None)
        profiled = [one.job for one in self.open_captures if one.tool not in FOR_HANGS]
        assert len(profiled) == len(set(profiled)), "two profilers in one job at a time"


@pytest.fixture
def world():
    world = World()
    yield world
    world.check()


def alert(name="Slow", job=TWO_NODES, **labels):
    labels = {"capture": "default", **labels}
    return AlertFired(alert=Alert(name=name, labels=labels, state=AlertState.FIRING), job=job)


def status(capture_id, state, *ranks, node="a", **more):
    return StatusReceived(
        node=node,
        status=CaptureStatus(capture_id=capture_id, state=state, time_unix_ns=1, ranks=ranks, **more),
    )


def states(capture):
    return {who.rank: who.state for who in capture.participants}


def test_an_alert_asks_every_node_of_the_job_and_gives_them_one_time_to_start(world):
    record, *requests = world.report(alert())
    assert [(action.node, action.message.ranks) for action in requests] == [("a", (0, 1)), ("b", (2, 3))]
    assert {action.message.start_unix_ns for action in requests} == {round((START + 3) * 1e9)}
    assert requests[0].message.alert == "Slow"
    assert requests[0].message.steps == 5
    assert record.capture.state is None


def test_a_single_node_starts_at_once(world):
    _, request = world.report(alert(capture="blamed", rank="3"))
    assert (request.node, request.message.ranks, request.message.start_unix_ns) == ("b", (3,), None)


def test_a_capture_is_done_when_every_rank_is(world):
    world.report(alert())
    capture_id = world.only().capture_id
    files = (CaptureFile(path="/x/rank.nsys-rep", size_bytes=9),)
    for state in (CaptureState.ARMED, CaptureState.RUNNING, CaptureState.DONE):
        for node in "ab":
            world.report(status(capture_id, state, node=node, files=files), START + 9)
    assert world.only().state is CaptureState.DONE
    assert world.only().participants[3].files == files
    assert world.only().ended_unix_s == START + 9


def test_each_rank_has_its_own_outcome_and_the_whole_is_the_worst(world):
    world.report(alert())
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.DONE, 0))
    world.report(status(capture_id, CaptureState.EMPTY, 1, reason="No kernel of rank 1."))
    world.report(status(capture_id, CaptureState.DONE, 2, node="b"))
    assert world.only().state is None
    world.report(status(capture_id, CaptureState.REFUSED, 3, node="b", reason="Busy."))
    assert states(world.only()) == {
        0: CaptureState.DONE,
        1: CaptureState.EMPTY,
        2: CaptureState.DONE,
        3: CaptureState.REFUSED,
    }
    assert (world.only().state, world.only().reason) == (
        CaptureState.EMPTY,
        "2 of 4 ranks are done. No kernel of rank 1.",
    )


def test_of_many_reasons_the_whole_shows_a_few_and_each_rank_its_own(world):
    world.report(alert())
    capture_id = world.only().capture_id
    for rank in range(4):
        world.report(
            status(capture_id, CaptureState.LATE, rank, node="ab"[rank // 2], reason=f"{rank} s late.")
        )
    assert world.only().reason == "0 s late. 1 s late. 2 s late. (and 1 more, of other ranks)"
    assert [who.reason for who in world.only().participants][3] == "3 s late."


def test_a_final_outcome_never_changes(world):
    world.report(alert())
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.FAILED, 0, reason="First."))
    assert world.report(status(capture_id, CaptureState.DONE, 0)) == []
    assert states(world.only())[0] is CaptureState.FAILED


def test_an_alert_in_its_cooldown_is_refused_and_says_how_long_it_lasts(world):
    world.report(alert())
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.DONE))
    world.report(status(capture_id, CaptureState.DONE, node="b"))
    (record,) = world.report(alert(), START + 40)
    assert record.capture.state is CaptureState.REFUSED
    assert "60 s are left" in record.capture.reason
    assert len(world.report(alert(), START + 100)) == 3


def test_the_cooldown_is_per_rule_and_job(world):
    other_job = JobView(job="gpt", nodes=("c",))
    world.report(alert())
    assert any(isinstance(action, SendRequest) for action in world.report(alert(job=other_job)))


def test_a_job_has_one_capture_at_a_time(world):
    world.report(alert())
    (record,) = world.report(alert("Another"))
    assert (record.capture.state, record.capture.put_off) == (CaptureState.REFUSED, True)
    assert "still running. If the alert still fires when that has ended" in record.capture.reason
    (record,) = world.report(ManualRequest(capture_id="mine", job=TWO_NODES, profile="default"))
    assert (record.capture.state, record.capture.put_off) == (CaptureState.REFUSED, False)


@pytest.mark.parametrize(
    ("profile", "needed_s"),
    # Lead, five steps of 1.5 s and two that are cut, writing, margin.
    [("default", 3 + 7 * 1.5 + 10 + 3), ("kineto", 14 + 7 * 1.5 + 5 + 3)],
)
def test_a_capture_begins_only_when_the_job_outlives_it(world, profile, needed_s):
    steps = math.ceil(needed_s / 1.5)
    pace = Pace(step=100 - steps, stepped_unix_s=START, train_steps=100, step_time_s=1.5)
    job = replace(TWO_NODES, pace=replace(pace, step=pace.step + 1))
    (record,) = world.report(ManualRequest(capture_id="late", job=job, profile=profile))
    assert record.capture.state is CaptureState.REFUSED
    assert record.capture.reason == (
        f"The job ends in about {1.5 * (steps - 1):.0f} s ({steps - 1} of 100 steps left at 1.5 s); "
        f"a {'kineto' if profile == 'kineto' else 'nsys'} capture needs {needed_s:.0f} s."
    )
    assert not record.capture.put_off, "it would not be in time later either"
    actions = world.report(ManualRequest(capture_id="ok", job=replace(job, pace=pace), profile=profile))
    assert sum(isinstance(action, SendRequest) for action in actions) == 2


def test_a_request_says_how_long_steps_take_which_only_operations_may_show(world):
    job = replace(TWO_NODES, pace=Pace(step=5, step_time_s=0.25))
    actions = world.report(ManualRequest(capture_id="mine", job=job, profile="default"))
    assert {one.message.step_time_s for one in actions if isinstance(one, SendRequest)} == {0.25}
    again = world.report(AgentConnected(node="a"))
    assert [one.message.step_time_s for one in again] == [0.25]


def test_the_stacks_of_a_hang_are_taken_however_near_the_end_seems(world):
    pace = Pace(step=99, stepped_unix_s=START, train_steps=100, step_time_s=1.5)
    actions = world.report(alert("Hang", job=replace(TWO_NODES, pace=pace), capture="hang"), START + 99)
    assert sum(isinstance(action, SendRequest) for action in actions) == 2


def test_the_stacks_of_a_hang_are_taken_beside_a_capture_that_runs(world):
    world.report(alert())
    assert len(world.report(alert("Hang", capture="hang"))) == 3
    assert len(world.report(alert("HangOfNccl", capture="nccl"))) == 3
    assert len(world.open_captures) == 3
    (record,) = world.report(alert("LogSilent", capture="hang"))
    assert (record.capture.state, record.capture.put_off) == (CaptureState.REFUSED, True)


def test_an_alert_may_ask_for_several_captures_and_each_has_its_own_cooldown(world):
    asked = [
        action.message.tool
        for action in world.report(alert("Hang", capture="nccl+hang"))
        if isinstance(action, SendRequest) and action.node == "a"
    ]
    assert asked == [CaptureTool.FLIGHT_RECORDER, CaptureTool.PY_SPY]
    for capture in world.open_captures:
        for node in "ab":
            world.report(status(capture.capture_id, CaptureState.DONE, node=node))
    held = world.report(alert("Hang", capture="nccl+hang"), START + 9)
    assert ["Cooldown" in record.capture.reason for record in held] == [True, True]


def test_no_profiler_starts_while_stacks_are_taken(world):
    world.report(alert("Hang", capture="hang"))
    (record,) = world.report(alert())
    assert record.capture.state is CaptureState.REFUSED


def test_captures_before_a_hang_do_not_use_up_its_budget(world):
    for number in range(3):
        actions = world.report(alert(f"Rule{number}"), START + number)
        for node in "ab":
            world.report(status(actions[0].capture.capture_id, CaptureState.DONE, node=node), START + number)
    assert len(world.report(alert("Hang", capture="hang"), START + 10)) == 3


def test_the_hourly_budget_is_kept_and_comes_back(world):
    for number in range(3):
        actions = world.report(alert(f"Rule{number}"), START + number)
        for node in "ab":
            world.report(status(actions[0].capture.capture_id, CaptureState.DONE, node=node), START + number)
    (record,) = world.report(alert("Rule9"), START + 10)
    assert "max_per_hour is 3" in record.capture.reason
    assert len(world.report(alert("Rule9"), START + 3600)) == 3


def test_an_unknown_profile_is_refused_by_name(world):
    (record,) = world.report(alert(capture="nosuch"))
    assert (
        record.capture.reason
        == "No capture profile 'nosuch'; capture_profiles has: blamed, default, hang, kineto, nccl."
    )


def test_a_request_replayed_with_the_same_id_does_nothing_twice(world):
    request = ManualRequest(capture_id="mine", job=TWO_NODES)
    assert len(world.report(request)) == 3
    assert world.report(request) == []
    for node in "ab":
        world.report(status("mine", CaptureState.DONE, node=node))
    assert world.report(request, START + 9999) == []


def test_a_capture_that_an_alert_started_says_which_ranks_repeat_it_by_hand(world):
    world.report(alert(capture="blamed", rank="3"))
    assert world.only().ranks == "3"


def test_a_person_is_not_held_back_by_cooldown(world):
    world.report(alert())
    capture_id = world.only().capture_id
    for node in "ab":
        world.report(status(capture_id, CaptureState.DONE, node=node))
    assert len(world.report(ManualRequest(capture_id="mine", job=TWO_NODES, ranks="1"), START + 1)) == 2


@pytest.mark.parametrize("bad", ["../../etc", "a/b", "", "-f", "a..b", "x" * 101, "a\nb"])
def test_an_id_that_is_no_plain_name_is_refused(world, bad):
    with pytest.raises(CaptureError, match="not a capture id"):
        world.report(ManualRequest(capture_id=bad, job=TWO_NODES))


def test_ranks_that_do_not_exist_are_refused_and_the_others_captured(world):
    actions = world.report(ManualRequest(capture_id="mine", job=TWO_NODES, ranks="1,9"))
    assert [action.message.ranks for action in actions[1:]] == [(1,)]
    assert states(world.only())[9] is CaptureState.REFUSED
    world.report(status("mine", CaptureState.DONE))
    assert world.only().state is CaptureState.REFUSED


def test_only_ranks_that_do_not_exist_end_the_capture_at_once(world):
    (record,) = world.report(ManualRequest(capture_id="mine", job=TWO_NODES, ranks="9"))
    assert (record.capture.state, states(record.capture)) == (
        CaptureState.REFUSED,
        {9: CaptureState.REFUSED},
    )


def test_an_agent_that_does_not_answer_is_late_and_ordered_to_stop(world):
    world.report(alert())
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.ARMED))
    assert world.report(Tick(), START + 32) == []
    cancel, _ = world.report(Tick(), START + 33)
    assert (cancel.node, cancel.message.capture_id) == ("b", capture_id)
    assert states(world.only())[2] is CaptureState.LATE


def test_an_agent_without_a_result_is_lost_after_the_time_cap_and_the_import(world):
    world.report(alert(capture="blamed", rank="0"))
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.RUNNING))
    assert world.report(Tick(), START + 209) == []
    world.report(Tick(), START + 210)
    assert world.only().state is CaptureState.LOST


def test_an_agent_that_stays_away_loses_its_ranks_and_one_that_returns_is_asked_again(world):
    world.report(alert())
    capture_id = world.only().capture_id
    for node in "ab":
        world.report(status(capture_id, CaptureState.RUNNING, node=node))
        world.report(AgentGone(node=node), START + 5)
    (again,) = world.report(AgentConnected(node="a"), START + 10)
    assert (again.node, again.message.capture_id, again.message.ranks) == ("a", capture_id, (0, 1))
    world.report(Tick(), START + 65)
    assert states(world.only()) == {
        0: CaptureState.RUNNING,
        1: CaptureState.RUNNING,
        2: CaptureState.LOST,
        3: CaptureState.LOST,
    }


def test_an_agent_that_went_an_hour_ago_is_as_one_that_never_was(world):
    world.report(AgentGone(node="a"))
    world.report(Tick(), START + 3600)
    world.report(alert(), START + 3601)
    world.report(Tick(), START + 3602)
    assert CaptureState.LOST not in states(world.only()).values()
    world.report(Tick(), START + 3640)
    assert states(world.only())[0] is CaptureState.LATE


def test_what_still_runs_after_its_end_is_stopped(world):
    world.report(alert(capture="blamed", rank="0"))
    capture_id = world.only().capture_id
    world.report(Tick(), START + 30)
    (cancel,) = world.report(status(capture_id, CaptureState.RUNNING), START + 40)
    assert isinstance(cancel, SendCancel)
    assert world.report(status(capture_id, CaptureState.FAILED), START + 41) == []


def test_a_status_of_a_capture_that_nobody_knows_stops_it(world):
    (cancel,) = world.report(status("stranger", CaptureState.ARMED))
    assert (cancel.node, cancel.message.capture_id) == ("a", "stranger")


def test_a_cancel_reaches_the_nodes_that_still_owe_an_outcome(world):
    world.report(alert())
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.DONE))
    (cancel,) = world.report(CancelRequested(capture_id=capture_id, reason="enough"))
    assert (cancel.node, cancel.message.reason) == ("b", "enough")
    assert world.report(CancelRequested(capture_id="nosuch", reason="enough")) == []


def test_a_cancel_is_repeated_to_a_node_that_was_away(world):
    world.report(alert(job=JobView(job="gpt", nodes=("a",))))
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.RUNNING, 0))
    world.report(AgentGone(node="a"))
    world.report(CancelRequested(capture_id=capture_id, reason="enough"))
    (cancel,) = world.report(AgentConnected(node="a"))
    assert isinstance(cancel, SendCancel)
    assert cancel.message.reason == "enough"
    world.report(status(capture_id, CaptureState.FAILED, 0))
    assert world.report(AgentConnected(node="a")) == []


def restored(world, after_s):
    """What goes on with the one capture of `world` so long after its request."""
    fresh = World()
    assert fresh.report(Restored(captures=[world.only()]), START + after_s) == []
    return fresh


def test_a_restarted_aggregator_goes_on_with_open_captures(world):
    world.report(alert())
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.RUNNING))
    fresh = restored(world, 8)
    # Node `b` may not have got the request of the one before.
    for node in "ab":
        (repeated,) = fresh.report(AgentConnected(node=node), START + 10)
        assert (repeated.node, repeated.message.capture_id) == (node, capture_id)
        assert repeated.message.start_unix_ns == round((START + 3) * 1e9)
    for node in "ab":
        fresh.report(status(capture_id, CaptureState.DONE, node=node), START + 20)
    assert fresh.only().state is CaptureState.DONE
    (held,) = fresh.report(alert(), START + 60)
    assert "Cooldown" in held.capture.reason
    fresh.check()


def test_an_outcome_from_while_no_aggregator_ran_is_taken_but_nothing_begins_late(world):
    world.report(alert())
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.RUNNING))
    fresh = restored(world, 5000)
    # An agent that has forgotten it would begin anew.
    assert fresh.report(AgentConnected(node="a"), START + 5001) == []
    fresh.report(status(capture_id, CaptureState.DONE), START + 5002)
    assert fresh.report(AgentConnected(node="b"), START + 5003) == []
    assert fresh.report(Tick(), START + 5029) == []
    (cancel, _) = fresh.report(Tick(), START + 5031)
    assert isinstance(cancel, SendCancel)
    assert states(fresh.only()) == {
        0: CaptureState.DONE,
        1: CaptureState.DONE,
        2: CaptureState.LATE,
        3: CaptureState.LATE,
    }
    fresh.check()


def test_a_restored_capture_is_lost_if_its_node_does_not_come_back(world):
    world.report(alert(job=JobView(job="gpt", nodes=("a",))))
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.RUNNING, 0))
    fresh = restored(world, 10)
    assert fresh.report(Tick(), START + 69) == []
    (cancel, _) = fresh.report(Tick(), START + 71)
    assert isinstance(cancel, SendCancel)
    assert fresh.only().state is CaptureState.LOST
    fresh.check()


def test_a_node_whose_ranks_are_not_known_names_them_itself(world):
    world.report(alert(job=JobView(job="gpt", nodes=("a",))))
    capture_id = world.only().capture_id
    world.report(status(capture_id, CaptureState.ARMED, 0, 1))
    assert states(world.only()) == {0: CaptureState.ARMED, 1: CaptureState.ARMED}
    world.report(status(capture_id, CaptureState.REFUSED, 2, reason="Not started by nsys."))
    world.report(status(capture_id, CaptureState.DONE, 0, 1))
    assert world.only().state is CaptureState.REFUSED
    assert "2 of 3 ranks are done" in world.only().reason


_EVENTS = st.one_of(
    st.builds(alert, st.sampled_from(["A", "B"])),
    st.builds(lambda: ManualRequest(capture_id="mine", job=TWO_NODES)),
    st.builds(
        status,
        st.sampled_from(["mine", "A-20231114T221320", "B-20231114T221320"]),
        st.sampled_from(CaptureState),
        st.integers(0, 4),
        node=st.sampled_from("abc"),
    ),
    st.builds(AgentGone, node=st.sampled_from("ab")),
    st.builds(AgentConnected, node=st.sampled_from("ab")),
    st.builds(CancelRequested, capture_id=st.just("mine"), reason=st.just("x")),
    st.just(Tick()),
)


@given(st.lists(st.tuples(_EVENTS, st.integers(0, 60)), max_size=40))
def test_whatever_happens_every_capture_ends_and_ends_once(story):
    world, now = World(), START
    for event, wait_s in story:
        world.report(event, now)
        now += wait_s
        world.check()
    world.report(Tick(), now + 1000)
    world.check()
    assert not world.open_captures


def refusal(capture_id, *ranks):
    return CaptureStatus(
        capture_id=capture_id, state=CaptureState.REFUSED, time_unix_ns=0, ranks=ranks, reason="It is busy."
    )


@pytest.mark.parametrize(("quorum_ratio", "stopped"), [(0.0, []), (0.75, []), (1.0, ["a", "b"])])
def test_without_a_quorum_the_other_ranks_are_stopped(quorum_ratio, stopped):
    policy = CapturePolicy({"default": CaptureProfile(quorum_ratio=quorum_ratio)}, PATIENCE)
    policy.handle(ManualRequest(capture_id="c1", job=TWO_NODES), START)
    actions = policy.handle(StatusReceived(node="a", status=refusal("c1", 0)), START)
    cancels = [action for action in actions if isinstance(action, SendCancel)]
    assert [cancel.node for cancel in cancels] == stopped
    assert all("3 of 4 ranks can be captured: It is busy." in cancel.message.reason for cancel in cancels)


def test_kineto_on_several_nodes_starts_late_enough_for_every_poll():
    policy = CapturePolicy({"default": CaptureProfile(tool="kineto")}, PATIENCE)
    actions = policy.handle(ManualRequest(capture_id="c1", job=TWO_NODES), START)
    starts = {a.message.start_unix_ns for a in actions if isinstance(a, SendRequest)}
    assert starts == {round((START + PATIENCE.kineto_lead_s) * 1e9)}


# Servers


def server(engine, *, nodes=("a",)):
    return JobView(job="a/h:1", nodes=nodes, server=True, tool=engine)


def fleet_policy(**profile):
    return CapturePolicy({"serving": CaptureProfile(**profile)}, PATIENCE)


@pytest.mark.parametrize("engine", [CaptureTool.SGLANG, CaptureTool.VLLM])
@pytest.mark.parametrize("ranks", ["all", "alert", "stage=last", "slowest:2"])
def test_one_profile_captures_servers_of_both_engines_each_as_a_whole(engine, ranks):
    world = World(fleet_policy(ranks=ranks))
    fired = alert("Slow", server(engine), capture="serving")
    *_, asked = world.report(fired)
    assert (asked.node, asked.message.tool, asked.message.ranks) == ("a", engine, ())
    assert world.only().server
    again = alert("Other", server(engine), capture="serving")
    (refused,) = world.report(again, START + 1)
    assert "of this server is still running." in refused.capture.reason
    world.check()


def test_a_profile_that_names_a_tool_means_it():
    world = World(fleet_policy(tool="vllm"))
    world.report(ManualRequest(capture_id="c", profile="serving", job=server(CaptureTool.SGLANG)))
    assert world.newest("c").tool is CaptureTool.VLLM


def test_a_profile_without_a_tool_captures_a_job_with_nsys():
    world = World(fleet_policy())
    world.report(ManualRequest(capture_id="c", profile="serving", job=TWO_NODES))
    assert world.newest("c").tool is CaptureTool.NSYS
    assert not world.newest("c").server


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (server(None), "The engine of a/h:1 is unknown"),
        (server(CaptureTool.VLLM, nodes=()), "The agent of the node of server a/h:1 is not connected."),
    ],
)
def test_a_server_that_cannot_be_captured_is_refused_with_the_reason(view, reason):
    world = World(fleet_policy())
    world.report(ManualRequest(capture_id="c", profile="serving", job=view))
    assert world.newest("c").state is CaptureState.REFUSED
    assert reason in world.newest("c").reason
    world.check()
