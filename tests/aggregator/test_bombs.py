"""Messages that are small on the wire and large in memory: each costs its sender, and all is counted."""

import grpc
import pytest
from aggregator.support import START_S, aggregator, place, step, values

from perfd.aggregator.limits import Limits
from perfd.clock import VirtualClock
from perfd.config import HistoryConfig
from perfd.model import (
    Batch,
    CollectiveProgress,
    CollectiveTimes,
    Event,
    EventKind,
    JobDescription,
    SampleTable,
    Scope,
    TimingSource,
    TrainingStep,
)
from perfd.wire.agent_messages import MAX_RECORDS
from perfd.wire.convert import encode_message
from perfd.wire.v1 import telemetry_pb2 as pb
from tests.support.fake_agent import FakeAgent


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


@pytest.fixture
def running(clock, tmp_path):
    with aggregator(clock, history=HistoryConfig(path=str(tmp_path / "h.sqlite"))) as started:
        yield started


@pytest.fixture
def agent(running):
    with FakeAgent(running.grpc_address) as connected:
        connected.hello()
        yield connected


def rejected(running, bound):
    """How often a bound refused something."""
    running.tick()
    return values(running.page()).get(f'perfd_rejected_total{{bound="{bound}"}}', 0)


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def encoded(sequence, body):
    """A batch of any bytes."""
    batch = b"\x08" + varint(sequence) + body
    return b"\x12" + varint(len(batch)) + batch


@pytest.mark.parametrize("record", [b"\x22\x00", b"\x22\x02\x52\x00", b"\x1a\x00"])
def test_a_batch_of_too_many_records_is_left_out_and_the_next_one_is_taken(running, agent, record):
    agent.say(encoded(1, record * (MAX_RECORDS + 1)))
    assert agent.wait_stored(1) == 1
    assert agent.send(step(7), sequence=2) == 2
    assert running.state.fleet.jobs["llm"].steps.last_step == 7
    assert running.state.counters.lost_batches == 1
    assert running.state.counters.records == 1


@pytest.mark.parametrize("before", [b"\xa0\x06\x01", b"\xa2\x06\x01x", encoded(1, b"\x22\x00")])
def test_no_field_before_a_batch_hides_how_many_records_it_has(running, agent, before):
    agent.say(before + encoded(1, b"\x22\x00" * MAX_RECORDS + b"\x22\x00"))
    assert agent.wait_stored(1) == 1
    assert agent.send(step(7), sequence=2) == 2
    assert running.state.counters.lost_batches == 1
    assert running.state.counters.records == 1


def test_a_group_before_a_batch_does_not_hide_it_either(running, agent):
    agent.say(b"\xa3\x06\xa4\x06" + encoded(1, b"\x22\x00" * (MAX_RECORDS + 1)))
    assert agent.send(step(7), sequence=2) == 2
    assert running.state.counters.malformed_messages == 1
    assert next(iter(running.state.agents)).unknown_records == 0


def test_as_many_records_as_an_agent_sends_are_taken(running, agent):
    agent.say(encoded(1, b"\x22\x00" * MAX_RECORDS))
    assert agent.wait_stored(1) == 1
    assert running.state.counters.lost_batches == 0
    assert next(iter(running.state.agents)).unknown_records == MAX_RECORDS


def test_a_table_of_too_many_columns_is_left_out(running, agent):
    poison = pb.AgentMessage(batch=pb.Batch(sequence=1))
    table = pb.SampleTable(scope=pb.SCOPE_GPU)
    for number in range(5_000):
        table.columns.add(metric=str(number))
    poison.batch.samples.append(table.SerializeToString())
    agent.say(poison.SerializeToString())
    assert agent.wait_stored(1) == 1
    assert rejected(running, "table_size") == 1
    assert running.state.counters.malformed_messages == 0


def test_a_table_of_too_many_rows_is_refused(running, agent):
    rows = 70_000
    agent.send(
        SampleTable(scope=Scope.GPU, times_unix_ns=[1] * rows, entities=["0"] * rows, columns={}), step(1)
    )
    assert rejected(running, "table_size") == 1
    assert running.state.fleet.jobs["llm"].steps.last_step == 1


def test_losses_of_made_up_names_are_cut(running, agent):
    agent.send(step(1))
    agent.send(TrainingStep(job="llm", step=2, losses={f"l{number}": 1.0 for number in range(10_000)}))
    assert rejected(running, "entries_per_record") == 1
    assert [len(line["losses"]) for line in running.steps("llm", 1, 9)] == [0, 2048]


def test_arguments_of_a_job_do_not_grow_with_each_message(running, agent):
    for batch in range(4):
        arguments = {f"a{batch}_{number}": "x" * 200 for number in range(900)}
        agent.send(JobDescription(job="llm", framework="f", arguments=arguments))
    kept = running.state.fleet.jobs["llm"].description.arguments
    assert sum(len(name) + len(value) for name, value in kept.items()) <= 262_144
    assert rejected(running, "entries_per_record") >= 1


def test_a_message_of_megabytes_is_cut_before_it_is_kept(running, agent):
    agent.send(
        Event(kind=EventKind.NCCL_WARNING, time_unix_ns=1, message="x" * (15 << 20), job="llm"), step(1)
    )
    (event,) = running.state.fleet.jobs["llm"].events
    assert len(event.message) == 4096
    assert rejected(running, "text_chars") == 1


def test_a_record_whose_list_is_too_long_is_left_out_and_the_others_are_taken(running, agent):
    times = CollectiveTimes(
        job="llm",
        rank=0,
        communicator="1",
        operation="AllReduce",
        timing=TimingSource.GPU,
        start_unix_ns=0,
        end_unix_ns=1,
        count=1,
        total_s=1.0,
        min_s=1.0,
        max_s=1.0,
        sequences=range(70_000),
    )
    agent.send(times, step(1))
    assert rejected(running, "values_per_record") == 1
    assert running.state.fleet.jobs["llm"].steps.last_step == 1
    assert not running.state.fleet.jobs["llm"].communication.collectives.stacks()


def test_members_of_communicators_are_kept_once_and_bounded(clock):
    def word(rank, communicator, members):
        return CollectiveProgress(
            job="llm",
            rank=rank,
            communicator=communicator,
            members=members,
            time_unix_ns=1,
            source="s",
        )

    with aggregator(clock, limits=Limits(members_per_job=1_000)) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(*(word(rank, "world", range(100)) for rank in range(100)))
            agent.send(*(word(0, f"c{number}", range(number, number + 100)) for number in range(1, 50)))
        words = running.state.fleet.jobs["llm"].communication.progress.newest()
        kept = {id(one.members): len(one.members) for one in words}
        assert len(words) == 149
        assert sum(kept.values()) == 1_000
        assert rejected(running, "members_per_job") == 40


def test_what_an_agent_writes_to_history_in_a_day_is_bounded(clock, tmp_path):
    history = HistoryConfig(path=str(tmp_path / "h.sqlite"))
    limits = Limits(history_bytes_per_agent_and_day=20_000)
    with (
        aggregator(clock, limits=limits, history=history) as running,
        FakeAgent(running.grpc_address) as agent,
        FakeAgent(running.grpc_address, agent_id="b") as other,
    ):
        agent.hello()
        other.hello()
        for number in range(1, 101):
            agent.send(step(number))
        other.send(step(1, job="other"))
        assert running.state.fleet.jobs["llm"].steps.last_step == 100
        stored = len(running.steps("llm", 0, 1000))
        assert 10 < stored < 50
        assert len(running.steps("other", 0, 9)) == 1
        assert rejected(running, "history_bytes_per_agent_and_day") >= 50
        clock.advance(86_400.0)
        agent.send(step(101))
        assert running.steps("llm", 101, 9) != []


def test_large_messages_are_taken_in_order_with_small_ones(running, agent):
    for first in range(1, 4_000, 400):
        agent.say(encode_steps(agent, range(first, first + 399)))
        agent.send(step(first + 399))
    assert running.state.fleet.jobs["llm"].attempts.number == 1
    assert running.state.fleet.jobs["llm"].steps.table().step.tolist() == list(range(1, 4_001))
    assert [line["step"] for line in running.steps("llm", 0, 9_999)] == list(range(1, 4_001))


def encode_steps(agent, numbers):
    """A large batch under an agent's next sequence."""
    agent.sequence += 1
    records = [step(number, step_time_s=1.0, tokens_per_s=1.0) for number in numbers]
    data = encode_message(Batch(sequence=agent.sequence, sent_unix_ns=0, records=records))
    assert len(data) > Limits().large_message_bytes / 2
    return data


def test_large_messages_beyond_the_memory_for_them_close_their_stream(clock):
    with aggregator(clock, limits=Limits(held_message_bytes=50_000)) as running:
        with FakeAgent(running.grpc_address) as agent, FakeAgent(running.grpc_address, agent_id="b") as other:
            agent.hello()
            other.hello()
            event = Event(kind=EventKind.NCCL_WARNING, time_unix_ns=1, message="x" * 60_000, job="llm")
            with pytest.raises(grpc.RpcError) as refused:
                agent.send(event)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert other.send(step(1), place(0, 0)) == 1
        assert rejected(running, "held_message_bytes") == 1
