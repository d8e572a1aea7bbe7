"""Which jobs a node reports is known without a look at all jobs."""

from aggregator.support import START_S, aggregator, source, step
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.fleet import Fleet
from perfd.config import HistoryConfig
from perfd.model import Event, EventKind, RankPlacement
from tests.support.fake_agent import FakeAgent

NODES = ("n0", "n1", "n2")
JOBS = ("a", "b", "c")


def expected(jobs, node):
    """By a look at all jobs."""
    named = [job for job in jobs.values() if node in job.nodes]
    chosen = [job for job in named if not job.ended] or named
    return chosen[0].name if len(chosen) == 1 else None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NODES),
            st.sampled_from(JOBS),
            st.sampled_from(["reports", "starts", "ends", "leaves", "is forgotten"]),
        ),
        max_size=30,
    )
)
def test_the_only_job_of_a_node_is_that_of_a_look_at_all(changes):
    fleet = Fleet(Limits(nodes_per_job=2), AggregatorCounters())
    for number, (node, job, change) in enumerate(changes):
        said = source(agent=node, node=node, now_s=float(number))
        if change == "is forgotten":
            if job in fleet.jobs:
                fleet.jobs.forget(job)
        elif change == "leaves":
            if job in fleet.jobs and node in fleet.jobs[job].nodes:
                fleet.jobs.left(fleet.jobs[job], node)
        elif change == "reports":
            fleet.apply([RankPlacement(job=job, rank=NODES.index(node), gpu=0, world_size=3)], said)
        else:
            kind = EventKind.JOB_STARTED if change == "starts" else EventKind.JOB_ENDED
            unix_ns = round((START_S + number) * 1e9)
            fleet.apply([Event(kind=kind, time_unix_ns=unix_ns, message="", job=job)], said)
        assert [fleet.jobs.only_on(one) for one in NODES] == [expected(fleet.jobs, one) for one in NODES]


def test_after_a_restart_no_node_reports_a_job_until_its_agent_is_back(tmp_path):
    history = HistoryConfig(path=str(tmp_path / "history.sqlite"))
    started = Event(kind=EventKind.CHECKPOINT, time_unix_ns=round(START_S * 1e9), message="", job="llm")
    with aggregator(history=history) as running, FakeAgent(running.grpc_address, node="n0") as agent:
        agent.hello()
        agent.send(step(1, time_s=START_S), started)
        assert running.state.fleet.jobs.only_on("n0") == "llm"
    with aggregator(history=history) as running:
        jobs = running.state.fleet.jobs
        assert "llm" in jobs
        assert jobs.only_on("n0") is expected(jobs, "n0") is None
        with FakeAgent(running.grpc_address, node="n0", agent_id="again") as agent:
            agent.hello()
            agent.send(step(2, time_s=START_S + 1))
            assert jobs.only_on("n0") == "llm"
        jobs.forget("llm")
        assert jobs.only_on("n0") is None
