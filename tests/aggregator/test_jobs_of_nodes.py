"""Which jobs a node reports is known without a look at all jobs."""

from aggregator.support import START_S, source
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.fleet import Fleet
from perfd.model import Event, EventKind, RankPlacement

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
