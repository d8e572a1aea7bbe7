"""GPUs that jobs share count once over all of them."""

import pytest
from aggregator.support import fleet, place, source, step
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.state.gpu_owners import gpus_per_rank
from perfd.model import GpuInfo, RankPlacement


def node(made, name, gpus, *, slices=0):
    infos = [GpuInfo(index=index, name="NVIDIA H200", mig=index >= gpus) for index in range(gpus + slices)]
    made.apply(infos, source(node=name, agent=name))


def shares(made, **ranks):
    return gpus_per_rank([(made.jobs[job], count) for job, count in ranks.items()], made.nodes)


def test_a_job_alone_has_a_gpu_for_each_rank():
    made = fleet()
    node(made, "n0", 8)
    made.apply([step(1)], source())
    assert shares(made, llm=8) == {"llm": 1.0}


def test_jobs_on_the_same_gpus_have_a_part_of_each():
    made = fleet()
    node(made, "n0", 8)
    made.apply([step(1), step(1, job="other")], source())
    assert shares(made, llm=8, other=8) == {"llm": 0.5, "other": 0.5}


def test_jobs_beside_each_other_share_nothing():
    made = fleet()
    node(made, "n0", 8)
    made.apply([step(1), step(1, job="other")], source())
    assert shares(made, llm=4, other=4) == {"llm": 1.0, "other": 1.0}


def test_a_job_shares_only_on_the_nodes_where_another_one_is():
    made = fleet()
    for name in ("n0", "n1"):
        node(made, name, 4)
        made.apply([step(1)], source(node=name, agent=name))
    made.apply([step(1, job="other")], source(node="n1", agent="n1"))
    assert shares(made, llm=8, other=4) == {"llm": 0.75, "other": 0.5}


def test_slices_are_part_of_their_gpu():
    made = fleet()
    node(made, "n0", 1, slices=7)
    made.apply([step(1)], source())
    assert shares(made, llm=7) == {"llm": pytest.approx(1 / 7)}


def test_a_job_on_processors_takes_no_gpu_from_another_one():
    made = fleet()
    node(made, "n0", 2)
    without = RankPlacement(job="prepare", rank=0, world_size=32, gpu=None, pid=7)
    made.apply([place(0, 0), step(1), without, step(1, job="prepare")], source())
    assert shares(made, llm=2, prepare=32) == {"llm": 1.0}


def test_nodes_without_known_gpus_change_nothing():
    made = fleet()
    made.apply([step(1), step(1, job="other")], source())
    assert shares(made, llm=8, other=8) == {"llm": 1.0, "other": 1.0}


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6), st.integers(1, 16))
def test_all_jobs_of_a_node_together_have_its_gpus_at_most(ranks, gpus):
    made = fleet()
    node(made, "n0", gpus)
    names = [f"j{number}" for number in range(len(ranks))]
    made.apply([step(1, job=name) for name in names], source())
    found = shares(made, **dict(zip(names, ranks, strict=True)))
    assert sum(found[name] * count for name, count in zip(names, ranks, strict=True)) == pytest.approx(
        min(sum(ranks), gpus)
    )
