"""Whose a job is: who may describe, end, restart and place it, and two jobs of one name."""

import pytest
from aggregator.support import START_S, aggregator, fleet, source, step, values

from perfd.aggregator.audit import AuditLog, Refusal
from perfd.aggregator.jobs.job_names import JobNames
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.fleet import Fleet
from perfd.clock import VirtualClock
from perfd.config import HistoryConfig
from perfd.model import (
    CaptureRequest,
    CaptureTool,
    Event,
    EventKind,
    JobDescription,
    JobOrigin,
    ParallelLayout,
    RankPlacement,
)
from perfd.model.job_origin import expand_hostlist, job_origin
from tests.support.fake_agent import FakeAgent


class Jobs:
    """A fleet, and what nodes say to it."""

    def __init__(self, **limits):
        self.audit = AuditLog(clock=VirtualClock())
        self.fleet = Fleet(Limits(**limits), AggregatorCounters(), audit=self.audit)
        self.now_s = 0.0

    def say(self, node, *records, namespace=None, wait_s=0.0):
        self.now_s += wait_s
        said = source(agent=node, node=node, now_s=self.now_s)
        self.fleet.apply(records, type(said)(**{**said_fields(said), "namespace": namespace}))

    def steps(self, job="llm"):
        return self.fleet.jobs[job].steps.table().step.tolist()

    def attempt(self, job="llm"):
        return self.fleet.jobs[job].attempts.number

    def refused(self, reason=Refusal.JOB_OWNER):
        return self.audit.counts().get(reason, 0)


def said_fields(said):
    return {
        name: getattr(said, name) for name in ("agent_id", "node", "sent_unix_s", "now_s", "late", "member")
    }


def described(world_size):
    return JobDescription(job="llm", framework="megatron", parallel=ParallelLayout(world_size=world_size))


def ended(job="llm"):
    return Event(kind=EventKind.JOB_ENDED, time_unix_ns=0, message="", job=job)


def held(rank, job="llm", **fields):
    return RankPlacement(job=job, rank=rank, gpu=rank, **fields)


@pytest.fixture
def jobs():
    made = Jobs()
    made.say("n0", described(2), *(step(n) for n in range(1, 11)), held(0), held(1))
    return made


def test_a_description_of_a_stranger_with_another_layout_is_refused_and_counted(jobs):
    jobs.say("n9", described(9))
    assert jobs.steps() == list(range(1, 11))
    assert (jobs.attempt(), jobs.refused()) == (1, 1)


@pytest.mark.parametrize("kind", [EventKind.JOB_ENDED, EventKind.JOB_STARTED, EventKind.RESTARTED])
def test_a_stranger_neither_ends_nor_starts_a_job(jobs, kind):
    jobs.say("n9", Event(kind=kind, time_unix_ns=0, message="", job="llm"))
    assert not jobs.fleet.jobs["llm"].ended
    assert jobs.fleet.jobs["llm"].attempts.began_unix_s == START_S
    assert jobs.refused() == 1


def test_a_strangers_earlier_steps_are_no_restart(jobs):
    jobs.fleet.jobs["llm"].ownership.claims(JobOrigin(job="llm"), "n0")
    jobs.say("n9", step(20))
    jobs.say("n9", step(2, step_time_s=9.0), step(1, step_time_s=9.0))
    assert jobs.attempt() == 1
    assert 10 in jobs.steps()
    assert jobs.refused() == 2


def test_a_rank_that_another_node_has_does_not_move(jobs):
    jobs.say("n9", held(0))
    assert jobs.refused() == 1
    assert ("llm", 0) not in jobs.fleet.nodes["n9"].placements


@pytest.mark.parametrize(("wait_s", "moves"), [(75.0, False), (75.1, True)])
def test_a_rank_moves_once_its_node_has_not_named_it_for_a_while(jobs, wait_s, moves):
    jobs.say("n1", held(0), wait_s=wait_s)
    assert (("llm", 0) in jobs.fleet.nodes["n1"].placements) is moves
    assert (("llm", 0) in jobs.fleet.nodes["n0"].placements) is not moves


def test_a_rank_moves_at_once_when_its_node_says_that_its_ranks_are_gone(jobs):
    jobs.say("n0", Event(kind=EventKind.RANKS_GONE, time_unix_ns=0, message="", job="llm"))
    jobs.say("n1", held(0))
    assert ("llm", 0) in jobs.fleet.nodes["n1"].placements


def test_a_node_with_a_rank_of_its_own_is_of_the_job(jobs):
    jobs.say("n1", held(2), ended())
    assert jobs.fleet.jobs["llm"].ended


@pytest.mark.parametrize(
    ("origin", "joins"),
    [
        (None, False),
        (JobOrigin(job="llm", owner="uid:1"), True),
        (JobOrigin(job="llm", cluster="a"), True),
        (JobOrigin(job="llm", owner="uid:2"), False),
    ],
)
@pytest.mark.parametrize("by", ["rank", "description"])
def test_a_node_joins_a_job_with_an_owner_only_after_it_reported_the_same_one(origin, joins, by):
    jobs = Jobs()
    jobs.say("n0", JobOrigin(job="llm", owner="uid:1"), held(0, world_size=4))
    if origin is not None:
        jobs.say("n1", origin)
    jobs.say("n1", held(1, world_size=4) if by == "rank" else described(4))
    jobs.say("n1", ended())
    assert jobs.fleet.jobs["llm"].ended is joins
    assert (("llm", 1) in jobs.fleet.nodes["n1"].placements) is (joins and by == "rank")


def test_a_rank_beyond_the_world_size_makes_no_node_join(jobs):
    jobs.say("n0", held(0, world_size=2), held(1, world_size=2))
    jobs.say("n9", held(2, world_size=3), held(7), ended())
    assert not jobs.fleet.jobs["llm"].ended
    assert jobs.refused() == 3
    jobs.say("n0", held(0, world_size=4))
    jobs.say("n1", held(2, world_size=4), ended())
    assert jobs.fleet.jobs["llm"].ended


def test_a_rank_of_a_job_that_no_agent_reported_is_taken_over():
    jobs = Jobs()
    jobs.say("n0", JobOrigin(job="llm", owner="uid:1"), held(0))
    jobs.say("n1", held(0), ended(), wait_s=75.1)
    assert jobs.fleet.jobs["llm"].ended


@pytest.mark.parametrize(("wait_s", "taken"), [(60.0, False), (60.1, True)])
def test_a_job_that_no_agent_reported_is_taken_over(jobs, wait_s, taken):
    jobs.say("n9", ended(), wait_s=wait_s)
    assert jobs.fleet.jobs["llm"].ended is taken


def test_where_the_schedulers_nodes_are_known_nobody_else_says_anything(jobs):
    jobs.say("n0", JobOrigin(job="llm", nodes=("n0", "n1.cluster")))
    jobs.say("n9", step(11), held(2), described(9), ended())
    assert jobs.steps() == list(range(1, 11))
    assert jobs.refused() == 4
    jobs.say("n1", step(11), ended())
    assert jobs.steps()[-1] == 11
    assert jobs.fleet.jobs["llm"].ended


def test_nodes_that_the_scheduler_calls_otherwise_are_not_believed_to_be_all(jobs):
    jobs.say("n0", JobOrigin(job="llm", nodes=("cn01", "cn02")))
    jobs.say("n1", step(11))
    assert jobs.refused() == 0


def test_a_requeued_job_may_be_on_other_nodes(jobs):
    jobs.say("n0", JobOrigin(job="llm", nodes=("n0",), scheduler_restarts=0), ended())
    jobs.say(
        "n5",
        JobOrigin(job="llm", nodes=("n5",), scheduler_restarts=1),
        step(3, step_time_s=2.0),
        wait_s=120.0,
    )
    assert jobs.attempt() == 2
    assert jobs.steps()[-1] == 3
    jobs.say("n0", ended())
    assert jobs.refused() == 1


@pytest.mark.parametrize(("namespace", "refused"), [("team-a", 0), ("team-b", 1), (None, 0)])
def test_a_credential_of_a_namespace_is_for_its_jobs_only(jobs, namespace, refused):
    jobs.say("n0", JobOrigin(job="llm", namespace="team-a"))
    jobs.say("n1", step(11), namespace=namespace)
    assert jobs.refused() == refused


def test_a_credential_of_a_namespace_claims_no_job_of_another_one(jobs):
    jobs.say("n1", JobOrigin(job="llm", namespace="team-a"), namespace="team-b")
    assert jobs.refused() == 1
    jobs.say("n0", JobOrigin(job="llm", namespace="team-a"))
    jobs.say("n1", JobOrigin(job="llm"), step(1), namespace="team-b")
    assert sorted(jobs.fleet.jobs) == ["llm", "team-b/llm"]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"cluster": "b"}, "b/llm"),
        ({"namespace": "team-b"}, "team-b/llm"),
        ({"cluster": "b", "namespace": "team-b"}, "b/team-b/llm"),
        ({"owner": "uid:2"}, "llm@uid:2"),
    ],
)
def test_two_jobs_of_one_name_stay_two(other, name):
    jobs = Jobs()
    mine = JobOrigin(job="llm", cluster="a", namespace="team-a", owner="uid:1")
    jobs.say("n0", mine, *(step(n, step_time_s=1.0) for n in range(1, 11)))
    theirs = JobOrigin(job="llm", **other)
    jobs.say("n1", theirs, held(0), *(step(n, step_time_s=9.0) for n in range(1, 6)))
    assert jobs.steps("llm") == list(range(1, 11))
    assert jobs.steps(name) == list(range(1, 6))
    assert jobs.attempt("llm") == jobs.attempt(name) == 1
    assert (name, 0) in jobs.fleet.nodes["n1"].placements
    assert jobs.refused() == 0
    jobs.say("n1", ended())
    assert jobs.fleet.jobs[name].ended
    assert not jobs.fleet.jobs["llm"].ended


def test_an_agent_gets_its_job_by_its_own_name():
    jobs = Jobs()
    jobs.say("n0", JobOrigin(job="llm", owner="uid:1"))
    jobs.say("n1", JobOrigin(job="llm", owner="uid:2"))
    request = CaptureRequest(capture_id="c", job="llm@uid:2", tool=CaptureTool.NSYS, max_duration_s=1.0)
    assert jobs.fleet.addressed("n1", request).job == "llm"
    assert jobs.fleet.addressed("n0", request).job == "llm@uid:2"


def test_rank_samples_go_to_the_job_that_their_node_means():
    names = JobNames()
    names.restore("llm", "n1", "b/llm")
    entities = ["llm/3", "x/1"]
    assert names.rank_entities(entities, "n1") == ["b/llm/3", "x/1"]
    assert names.rank_entities(entities, "n0") is entities


def test_two_jobs_of_one_name_are_still_two_after_a_restart_of_the_aggregator(tmp_path):
    history = HistoryConfig(path=str(tmp_path / "h.sqlite"))
    for first, last in ((1, 3), (4, 6)):
        with aggregator(history=history) as running:
            for node in ("n1", "n0") if first == 4 else ("n0", "n1"):
                with FakeAgent(running.grpc_address, node=node, agent_id=node) as agent:
                    agent.sequence = agent.hello().last_sequence
                    if first == 1:
                        agent.send(JobOrigin(job="llm", cluster=node))
                    agent.send(
                        *(
                            step(n, job="llm", step_time_s=1.0 + (node == "n1"))
                            for n in range(first, last + 1)
                        )
                    )
            assert sorted(running.state.fleet.jobs) == ["llm", "n1/llm"]
            for name, step_time_s in (("llm", 1.0), ("n1/llm", 2.0)):
                table = running.state.fleet.jobs[name].steps.table()
                assert table.step.tolist() == list(range(1, last + 1))
                assert set(table.step_time_s.tolist()) == {step_time_s}


def test_a_restart_that_the_scheduler_counts_begins_at_its_first_step(jobs):
    jobs.say("n0", JobOrigin(job="llm", scheduler_restarts=0, launcher_restarts=0))
    jobs.say("n0", JobOrigin(job="llm", scheduler_restarts=0, launcher_restarts=1), wait_s=5.0)
    assert jobs.attempt() == 1
    jobs.say("n0", step(12), wait_s=5.0)
    assert (jobs.attempt(), jobs.steps()[-2:]) == (2, [10, 12])
    restarted = jobs.fleet.jobs["llm"].events[-1]
    assert (restarted.kind, restarted.values["lost_steps"]) == (EventKind.RESTARTED, 0.0)


def test_a_rank_whose_process_is_another_one_begins_an_attempt_at_its_first_step(jobs):
    unix_s = START_S + 30.0
    jobs.say("n0", held(0, started_unix_ns=round(START_S * 1e9)))
    jobs.say("n0", held(0, started_unix_ns=round(unix_s * 1e9)), wait_s=35.0)
    jobs.say("n1", step(8, time_s=unix_s - 1.0, step_time_s=2.0))
    assert jobs.attempt() == 1
    jobs.say("n0", step(8, time_s=unix_s + 9.0, step_time_s=3.0), step(9, time_s=unix_s + 10.0))
    assert (jobs.attempt(), jobs.steps()) == (2, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert jobs.fleet.jobs["llm"].events[-1].values["lost_steps"] == 3.0


def test_starts_that_fail_before_their_first_step_are_one_time_without_steps():
    jobs = Jobs()
    jobs.say("n0", JobOrigin(job="llm", launcher_restarts=0), held(0, started_unix_ns=round(START_S * 1e9)))
    jobs.say("n0", step(1, time_s=START_S + 40.0), wait_s=40.0)
    state = jobs.fleet.jobs["llm"].attempts
    assert (state.first_step_s, state.stepless_s(jobs.now_s)) == (pytest.approx(40.0), None)
    for count in (1, 2):
        jobs.say("n0", JobOrigin(job="llm", launcher_restarts=count), wait_s=10.0)
    # A line of before, which is read late, is no step of the new start.
    jobs.say("n0", step(2, time_s=START_S + 41.0))
    assert state.stepless_s(jobs.now_s) == pytest.approx(10.0)
    jobs.say("n0", step(2, time_s=START_S + 150.0, loss=1.5), wait_s=90.0)
    assert state.stepless_s(jobs.now_s) is None
    # The longest start, from the first of those that failed.
    assert state.first_step_s == pytest.approx(100.0)
    # A start that takes less does not change it.
    jobs.say("n0", JobOrigin(job="llm", launcher_restarts=3), wait_s=10.0)
    jobs.say("n0", step(3, time_s=START_S + 175.0), wait_s=15.0)
    assert state.first_step_s == pytest.approx(100.0)


def test_made_up_jobs_of_a_few_nodes_leave_room_for_an_honest_one():
    jobs = Jobs(jobs=8, jobs_per_node=4)
    for node in ("a", "b"):
        jobs.say(node, *(step(1, job=f"{node}-{n}") for n in range(4)))
    jobs.say("honest", step(1, job="honest-job"))
    assert "honest-job" in jobs.fleet.jobs
    assert len(jobs.fleet.jobs) == 8
    jobs.say("a", *(step(1, job=f"a-{n}") for n in range(4)))
    assert "honest-job" in jobs.fleet.jobs
    assert jobs.refused(Refusal.JOB_QUOTA) == 1


def test_refusals_are_on_the_page():
    with aggregator() as running, FakeAgent(running.grpc_address, node="n0", agent_id="a") as owner:
        owner.hello()
        owner.send(step(1), JobOrigin(job="llm", nodes=("n0",)))
        with FakeAgent(running.grpc_address, node="n9", agent_id="b") as stranger:
            stranger.hello()
            stranger.send(step(2))
        running.tick()
        assert values(running.page())['perfd_refused_total{reason="job_owner"}'] == 1


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[08-10],login1", ("n08", "n09", "n10", "login1")),
        ("gpu[1,3-4]-ib", ("gpu1-ib", "gpu3-ib", "gpu4-ib")),
        ("n[1-", ()),
        ("n[a-b]", ()),
        ("n[9-1]", ()),
        ("n[0-999999999]", ()),
        ("a[1-16384],b", ()),
        ("a[1-2]b[3-4]", ()),
    ],
)
def test_slurms_list_of_nodes_is_read_or_left(text, nodes):
    assert expand_hostlist(text) == nodes


def test_an_origin_is_what_the_operator_says_before_what_the_scheduler_says():
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_CLUSTER_NAME": "alps",
        "PERFD_CLUSTER": "mine",
        "SLURM_JOB_UID": "5",
    }
    origin = job_origin("llm", environ, owner="uid:1")
    assert (origin.cluster, origin.owner, origin.scheduler_restarts) == ("mine", "uid:5", 0)
    assert job_origin("llm", {}) == JobOrigin(job="llm")
    listed = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    assert job_origin("llm", listed).nodes == ("n1",)
    assert job_origin("llm", {**listed, "SLURM_HET_SIZE": "2"}).nodes == ()


def test_a_fleet_without_an_audit_log_counts_in_one_of_its_own():
    assert fleet().apply([step(1)], source())


def test_a_name_with_its_namespace_is_that_of_the_same_job_elsewhere() -> None:
    names = JobNames()
    research = JobOrigin(job="pretrain", namespace="research")
    known = {"pretrain": research}
    # A node with pods of many namespaces says both.
    qualified = JobOrigin(job="research/pretrain", namespace="research")
    assert names.assign(qualified, "node0", known) == "pretrain"
    assert names.key("research/pretrain", "node0") == "pretrain"
    vision = JobOrigin(job="vision/pretrain", namespace="vision")
    assert names.assign(vision, "node0", known) == "vision/pretrain"
    assert names.key("vision/pretrain", "node0") == "vision/pretrain"
