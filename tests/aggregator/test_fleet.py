"""Records of batches in the state: whose GPU is it, what is kept, and what is too much."""

import dataclasses

import pytest
from aggregator.support import fleet, gpus, place, source, step
from hypothesis import given
from hypothesis import strategies as st
from wire.records import RECORDS, of, tables

from perfd.aggregator.state.derived_numbers import job_data
from perfd.aggregator.state.gpu_owners import gpu_owners
from perfd.model import (
    Batch,
    CollectorHealth,
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
    ModelShape,
    ModelSource,
    ParallelLayout,
    RankPlacement,
    SampleTable,
    Scope,
    StepPhases,
    TrainingStep,
)
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.convert import encode_message


def owners(made, node="n0"):
    return gpu_owners(made.nodes[node], made.jobs)


def ended(job="llm"):
    return Event(kind=EventKind.JOB_ENDED, time_unix_ns=1, message="", job=job)


def test_a_placement_says_whose_gpu_it_is():
    made = fleet()
    made.apply([gpus(0, count=2, a=1.0), place(7, 1), step(1, job="other")], source())
    assert owners(made)["1"] == {"llm": 7}


def test_without_placements_the_only_job_of_a_node_has_its_gpus():
    made = fleet()
    made.apply([gpus(0, count=2, a=1.0), step(1)], source())
    assert owners(made) == {"0": {"llm": None}, "1": {"llm": None}}


def test_gpus_beside_those_of_a_job_all_of_whose_ranks_are_placed_are_not_its():
    made = fleet()
    placed = [
        RankPlacement(job="llm", rank=rank, local_rank=rank, world_size=2, gpu=2 + rank) for rank in (0, 1)
    ]
    made.apply([gpus(0, count=4, a=1.0), step(1), placed[0]], source())
    assert set(owners(made)) == {"0", "1", "2", "3"}
    made.apply([placed[1]], source())
    assert owners(made) == {"2": {"llm": 0}, "3": {"llm": 1}}


def test_with_two_jobs_and_no_placement_a_gpu_is_nobodys():
    made = fleet()
    made.apply([gpus(0, a=1.0), step(1), step(1, job="other")], source())
    assert owners(made) == {}
    made.apply([ended("other")], source())
    assert owners(made) == {"0": {"llm": None}}


def test_a_gpu_serves_the_jobs_that_share_it():
    made = fleet()
    made.apply([gpus(0, a=1.0), place(0, 0), place(0, 0, job="next")], source())
    assert owners(made) == {"0": {"llm": 0, "next": 0}}
    made.apply([place(0, 0), place(0, 0, job="next")], source(now_s=60.0))
    assert owners(made) == {"0": {"llm": 0, "next": 0}}


@pytest.mark.parametrize(("repeated_s", "shared"), [(75.0, True), (76.0, False)])
def test_a_job_whose_placement_is_not_repeated_leaves_the_gpu_to_the_next(repeated_s, shared):
    made = fleet()
    made.apply([gpus(0, a=1.0), place(0, 0)], source())
    made.apply([place(0, 0, job="next")], source(now_s=repeated_s))
    assert owners(made) == {"0": {"llm": 0, "next": 0} if shared else {"next": 0}}
    assert list(made.nodes["n0"].placements) == [("llm", 0), ("next", 0)][not shared :]


def test_a_job_without_ranks_on_a_node_shares_no_gpu_there():
    made = fleet()
    made.apply([gpus(0, count=2, a=1.0), place(0, 0), place(1, 1), place(0, 0, job="next")], source())
    gone = Event(kind=EventKind.RANKS_GONE, time_unix_ns=1, message="", job="llm")
    made.apply([gone], source())
    assert owners(made) == {"0": {"next": 0}, "1": {"llm": 1}}


def test_a_job_that_ended_shares_no_gpu():
    made = fleet()
    made.apply([gpus(0, a=1.0), place(0, 0), place(0, 0, job="next")], source())
    version = made.nodes["n0"].version
    made.apply([ended()], source())
    assert owners(made) == {"0": {"next": 0}}
    assert made.nodes["n0"].version > version


def test_each_job_reads_the_gpu_that_it_shares():
    made = fleet()
    made.apply([gpus(0, a=1.0), step(1), place(3, 0), step(1, job="next"), place(5, 0, job="next")], source())
    ranks = {
        name: [gpu.rank for gpu in job_data(made, made.jobs[name], now_unix_s=9.0, now_s=9.0).gpu.gpus]
        for name in ("llm", "next")
    }
    assert ranks == {"llm": [3], "next": [5]}


def test_an_xid_without_a_job_on_a_shared_gpu_is_nobodys():
    made = fleet()
    made.apply([gpus(0, a=1.0), place(0, 0), place(0, 0, job="next")], source())
    xid = Event(kind=EventKind.HARDWARE_ERROR, time_unix_ns=1, message="", gpu=0, code=79)
    made.apply([xid], source())
    assert made.nodes["n0"].hardware_errors == {("", "0", "79"): 1}


def test_a_rank_that_moves_to_another_gpu_leaves_the_first():
    made = fleet()
    made.apply([gpus(0, count=2, a=1.0), place(0, 0), place(0, 1), step(1, job="other")], source())
    assert owners(made) == {"1": {"llm": 0}}


def test_history_keeps_what_cannot_come_again_and_nothing_else():
    made = fleet()
    info = GpuInfo(index=0, name="H200")
    health = CollectorHealth(collector="nvml", time_unix_ns=0, duration_s=0.1, success=True)
    block = StepPhases(job="llm", step=1, phases={})
    kept = made.apply(
        [info, info, place(0, 0), place(0, 0), step(1), block, health, gpus(0, a=1.0)], source()
    )
    assert [type(item.record) for item in kept] == [GpuInfo, RankPlacement, TrainingStep, StepPhases]


def test_history_gets_the_merged_description():
    made = fleet()
    made.apply([JobDescription(job="llm", framework="nemo", precision="bf16")], source())
    (kept,) = made.apply([JobDescription(job="llm", framework="nemo", train_steps=9)], source())
    assert (kept.record.precision, kept.record.train_steps) == ("bf16", 9)


def modelled(layers, model_source=None):
    model = ModelShape(
        layers=layers,
        hidden_size=8,
        ffn_size=8,
        attention_heads=1,
        kv_heads=1,
        head_size=8,
        sequence_length=8,
    )
    return JobDescription(job="llm", framework="", model=model, model_source=model_source)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_the_jobs_own_word_on_its_model_wins_and_another_source_is_no_other_start(order):
    said = [modelled(1), modelled(2, ModelSource.CONFIG), modelled(3, ModelSource.ARGUMENTS)]
    made = fleet()
    made.apply([step(1), JobDescription(job="llm", framework="nemo")], source())
    made.apply([said[i] for i in order], source())
    described = made.jobs["llm"].description
    assert (described.framework, described.model.layers, described.model_source) == ("nemo", 1, None)
    assert len(made.jobs["llm"].steps) == 1


def test_an_xid_without_a_job_goes_to_the_job_of_its_gpu():
    made = fleet()
    made.apply([gpus(0, a=1.0), place(0, 0)], source())
    xid = Event(kind=EventKind.HARDWARE_ERROR, time_unix_ns=1, message="", gpu=0, code=79)
    made.apply([xid, xid], source())
    assert len(made.jobs["llm"].events) == 2
    assert made.nodes["n0"].hardware_errors == {("llm", "0", "79"): 2}


def test_an_xid_on_an_idle_node_is_counted_all_the_same():
    made = fleet()
    made.apply([Event(kind=EventKind.HARDWARE_ERROR, time_unix_ns=1, message="", gpu=0, code=31)], source())
    assert made.nodes["n0"].hardware_errors == {("", "0", "31"): 1}


def test_jobs_and_nodes_beyond_the_bounds_are_refused_and_counted():
    made = fleet(jobs=1, nodes=1)
    made.apply([step(1), step(1, job="second")], source())
    made.apply([step(2)], source(node="n1"))
    assert list(made.jobs) == ["llm"]
    assert list(made.nodes) == ["n0"]
    assert made.counters.rejected == {"jobs": 1, "nodes": 1}


def test_what_is_silent_for_long_is_forgotten_with_its_placements():
    made = fleet()
    made.apply([gpus(0, a=1.0), place(0, 0)], source())
    made.apply([gpus(0, a=1.0)], source(now_s=50.0))
    assert made.forget(61.0, 60.0) == ["llm"]
    assert made.jobs == {}
    assert owners(made) == {}
    assert made.forget(200.0, 60.0) == []
    assert made.nodes == {}


def of_rank(rank, second):
    columns = {"nccl_busy_s": [float(second)], "nccl_operations": [1.0], "nccl_lost_operations": [0.0]}
    return SampleTable(
        scope=Scope.RANK, times_unix_ns=[second * 10**9], entities=[f"llm/{rank}"], columns=columns
    )


def test_ranks_and_worlds_that_cannot_be_are_not_believed():
    made = fleet()
    described = JobDescription(job="llm", framework="megatron")
    world = dataclasses.replace(described, parallel=ParallelLayout(world_size=(1 << 32) - 1))
    made.apply([described, world], source())
    for rank in ("9" * 9, "9" * 200, "9" * 5000, "-1", ""):
        for second in (1, 2):
            made.apply([of_rank(rank, second)], source())
    assert made.jobs["llm"].world_size is None
    assert not made.jobs["llm"].communication.nccl.table()
    assert made.counters.rejected["ranks_per_job"] == 3


def carried(batch):
    return decode_agent_message(encode_message(batch))


any_records = st.one_of(tables(), *(of(kind, message) for kind, message in RECORDS.items()))


@given(st.lists(any_records, max_size=12), st.lists(any_records, max_size=12))
def test_no_batch_that_the_wire_can_carry_breaks_the_state_or_what_is_read_of_it(first, second):
    made = fleet()
    for now_s, records in enumerate((first, second)):
        batch = Batch(sequence=now_s + 1, sent_unix_ns=now_s, records=records)
        made.apply(carried(batch).records, source(now_s=float(now_s)))
    for job in list(made.jobs.values()):
        for window in (None, 5):
            data = job_data(made, job, now_unix_s=10.0, now_s=10.0, window_steps=window)
            for column in dataclasses.fields(data.steps):
                assert len(getattr(data.steps, column.name)) == len(data.steps)


def two_processes(*pids):
    return [
        RankPlacement(job="llm", rank=0, local_rank=0, world_size=2, gpu=0, pid=pid, started_unix_ns=pid)
        for pid in pids
    ]


def doubled(made):
    return [event for event in made.jobs["llm"].events if event.kind is EventKind.RANKS_DOUBLED]


def test_two_processes_that_are_one_rank_at_once_are_noted():
    made = fleet()
    made.apply([step(1), *two_processes(10, 20)], source())
    (event,) = doubled(made)
    assert event.values == {"ranks": 1.0, "on_same_gpus": 1.0}


def test_a_restarted_rank_is_not_two_jobs():
    made = fleet()
    made.apply([step(1), *two_processes(10)], source(now_s=1.0))
    made.apply(two_processes(20), source(now_s=2.0))
    assert doubled(made) == []


def test_other_jobs_on_a_ranks_gpu_are_known():
    made = fleet()
    made.apply([gpus(0, count=2, a=1.0), step(1), step(1, job="other")], source())
    made.apply([place(0, 0), place(1, 1), place(0, 1, job="other")], source())
    assert job_data(made, made.jobs["llm"], now_unix_s=2.0, now_s=0.0).gpu_sharers == {1: ("other",)}
    made.apply([ended("other")], source())
    assert job_data(made, made.jobs["llm"], now_unix_s=2.0, now_s=0.0).gpu_sharers == {}
