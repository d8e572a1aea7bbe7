"""Messages of several agents that are taken together leave what they leave one by one."""

import math
from array import array

import numpy as np
import pytest
from aggregator.support import step
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.ingest.ingest_session import IngestSession
from perfd.aggregator.ingest.table_groups import decoders
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AggregatorState
from perfd.clock import VirtualClock
from perfd.errors import BatchError, RefusedError
from perfd.model import Batch, GpuColumn, Hello, SampleTable, Scope
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.convert import encode_message
from perfd.wire.sample_tables import TableReader

_GPUS = ("0", "1")
_NAMES = (GpuColumn.TENSOR_ACTIVE.value, GpuColumn.POWER.value, "other_ratio")
_S = 1_000_000_000
_AGENTS = 12


class _Nobody:
    """Listens to agents, and does nothing."""

    def agent_gone(self, node: str) -> None:
        pass


class Run:
    """An aggregator's state, and streams of some agents."""

    def __init__(self) -> None:
        self.state = AggregatorState.empty(Limits(gpu_history_rows=40, gpu_history_s=30.0, sequence_jump=50))
        self.clock = VirtualClock(1_000 * _S)
        self.intake = Ingest(self.state, self.clock, None, _Nobody())  # type: ignore[arg-type]
        self.sessions = []
        for number in range(_AGENTS):
            hello = Hello(
                agent_id=f"a{number}", node=f"n{number}", perfd_version="", sent_unix_ns=0, first_sequence=1
            )
            agent, _ = self.intake.hello(hello, number + 1)
            assert agent is not None
            self.sessions.append(IngestSession(self.intake, agent, number + 1, lambda: None))

    def one_by_one(self, messages):
        outcomes = []
        for number, data in messages:
            try:
                outcomes += self.intake.take_together([(self.sessions[number], data)])
            except RefusedError as error:
                outcomes.append(error)
        return [str(one) for one in outcomes]

    def together(self, messages):
        return [
            str(one)
            for one in self.intake.take_together([(self.sessions[number], data) for number, data in messages])
        ]

    def shown(self):
        fleet, counters = self.state.fleet, self.state.counters
        nodes = {}
        for name, node in fleet.nodes.items():
            times, data = node.readings.gpu_history.since(-math.inf)
            values = {
                scope: (one.values.tolist(), one.fresh(self.clock.monotonic_s() + 1.0, 5.0).tolist())
                for scope, one in node.readings.items()
            }
            nodes[name] = values, times.tolist(), data.tolist(), node.readings.gpu_tables, node.version
        steps = {name: job.steps.table().step.tolist() for name, job in fleet.jobs.items()}
        agents = [(agent.last_sequence, agent.malformed_messages) for agent in self.state.agents]
        return nodes, steps, agents, counters.samples, counters.batches, counters.malformed_messages


def table(time_ns, values, *, scope=Scope.GPU, names=_NAMES, rows=_GPUS):
    return SampleTable(
        scope=scope,
        times_unix_ns=array("q", [time_ns] * len(rows)),
        entities=rows,
        columns={
            name: array("d", [value + 10 * row for row in range(len(rows))])
            for name, value in zip(names, values, strict=True)
        },
    )


_value = st.one_of(st.floats(0, 9, width=32), st.just(math.nan), st.just(1e300), st.just(math.inf))
_kind = st.sampled_from(["usual"] * 6 + ["narrow", "step", "wrong", "earlier", "none", "jump"])
_message = st.tuples(st.integers(0, _AGENTS - 1), _kind, st.lists(_value, min_size=3, max_size=3))


def encoded(kind, values, sequence, time_ns):
    if kind == "none":
        return b"\xff"
    if kind == "jump":
        sequence += 1000
    ahead_ns = -3 * _S if kind == "earlier" else 0
    node = table(time_ns, [values[0]], scope=Scope.NODE, names=("x_ratio",), rows=("",))
    records = [table(time_ns + ahead_ns, values), node]
    if kind == "narrow":
        records = [table(time_ns, values[:1], names=_NAMES[:1], rows=_GPUS[:1])]
    if kind == "step":
        records.append(step(sequence))
    data = encode_message(Batch(sequence=sequence, sent_unix_ns=0, records=records))
    # Another name of the same length, which is not one in UTF-8.
    return data.replace(b"other_ratio", b"other\xff\xfeatio") if kind == "wrong" else data


@given(st.lists(st.lists(_message, max_size=24), max_size=6))
def test_what_is_taken_together_is_as_if_one_by_one(rounds):
    alone, together = Run(), Run()
    sequences = [0] * _AGENTS
    for run in (alone, together):
        everybody = [(number, encoded("usual", [1.0, 2.0, 3.0], 1, 999 * _S)) for number in range(_AGENTS)]
        run.one_by_one(everybody)
    for second, some in enumerate(rounds):
        messages = []
        for number, kind, values in [*((n, "usual", [0.5, 1.0, 2.0]) for n in range(_AGENTS)), *some]:
            sequences[number] += 1
            time_ns = (1_000 + 10 * second) * _S + sequences[number]
            messages.append((number, encoded(kind, values, sequences[number] + 1, time_ns)))
        for run in (alone, together):
            run.clock.advance(1.0)
        assert alone.one_by_one(messages) == together.together(messages)
        np.testing.assert_equal(together.shown(), alone.shown())


def test_a_row_from_the_future_is_cut_also_where_tables_are_taken_together():
    run = Run()
    for sequence, ahead_s in ((1, 0), (2, 60)):
        sent_ns = (1_000 + sequence) * _S
        gpus = SampleTable(
            scope=Scope.GPU,
            times_unix_ns=[sent_ns, sent_ns + ahead_s * _S],
            entities=_GPUS,
            columns={_NAMES[0]: [float(sequence)] * 2},
        )
        data = encode_message(Batch(sequence=sequence, sent_unix_ns=sent_ns, records=[gpus]))
        run.clock.advance(1.0)
        run.together([(number, data) for number in range(_AGENTS)])
    assert run.state.counters.rejected["sample_ahead_s"] == _AGENTS
    for node in run.state.fleet.nodes.values():
        assert node.readings[Scope.GPU].values.tolist() == [[2.0], [1.0]]


def test_tables_of_a_form_are_read_at_once():
    readers = [TableReader() for _ in range(9)]
    batches = [
        Batch(sequence=at, sent_unix_ns=5, records=[table(at, [float(at), math.nan, 2.0])])
        for at in range(1, 10)
    ]
    messages = [(reader, encode_message(batch)) for reader, batch in zip(readers, batches, strict=True)]
    for reader, data in messages:
        decode_agent_message(data, reader.decode)
    for decode, batch in zip(decoders(messages), batches, strict=True):
        found = decode()
        assert found.sequence == batch.sequence
        (read,), (sent,) = found.records, batch.records
        assert (read.scope, list(read.times_unix_ns), read.entities) == (
            Scope.GPU,
            [batch.sequence] * 2,
            _GPUS,
        )
        assert not read.columns.all_known
        assert repr(read.columns) == f"ColumnBlock({dict(sent.columns)})"
        np.testing.assert_equal(read.columns.kept[:, 0], [batch.sequence, batch.sequence + 10])


@pytest.mark.parametrize("names", [(), _NAMES[:1]])
@pytest.mark.parametrize("rows", [(), _GPUS])
def test_tables_without_columns_or_rows_are_read_as_any_other(names, rows):
    reader = TableReader()
    sent = table(1, [1.0] * len(names), names=names, rows=rows)
    data = encode_message(Batch(sequence=1, sent_unix_ns=5, records=[sent]))
    decode_agent_message(data, reader.decode)
    for decode in decoders([(reader, data)] * 8):
        (read,) = decode().records
        assert (read.entities, list(read.columns)) == (rows, list(names))


def test_what_is_malformed_fails_in_its_own_turn():
    reader = TableReader()
    good = encode_message(Batch(sequence=1, sent_unix_ns=5, records=[table(1, [1.0, 2.0, 3.0])]))
    bad = good.replace(b"other_ratio", b"other\xff\xfeatio")
    decode = decoders([(reader, bad), (reader, good)] * 8)
    for fails, works in zip(decode[::2], decode[1::2], strict=True):
        with pytest.raises(BatchError):
            fails()
        assert works() is not None
