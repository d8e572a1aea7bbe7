from __future__ import annotations

import contextlib
import math
from array import array
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import records

from perfd.errors import BatchError, WireError
from perfd.model import (
    Ack,
    AgentMessage,
    Batch,
    CollectorHealth,
    Hello,
    Record,
    SampleTable,
    Scope,
    TrainingStep,
)
from perfd.wire import agent_messages, convert, encoded_messages
from perfd.wire.v1 import telemetry_pb2 as pb


def batch_of(*batch_records: Record, sequence: int = 1) -> Batch:
    return Batch(sequence=sequence, sent_unix_ns=7, records=batch_records, dropped_records=3)


def carried(batch: Batch) -> Batch:
    back = encoded_messages.decode_batch(BytesIO(encoded_messages.encode_batch(batch)))
    assert back is not None
    return back


def from_wire(message: pb.Batch) -> Batch:
    back = convert.from_wire(pb.AgentMessage(batch=message))
    assert isinstance(back, Batch)
    return back


def plain(table: SampleTable) -> tuple[Any, ...]:
    columns = {name: [repr(float(value)) for value in values] for name, values in table.columns.items()}
    return table.scope, list(table.times_unix_ns), list(table.entities), columns


@given(st.one_of([records.of(kind, message) for kind, message in records.RECORDS.items()]))
def test_every_record_survives_the_wire(record: Record) -> None:
    assert carried(batch_of(record)).records == [record]


def test_every_kind_of_record_and_message_is_covered_here() -> None:
    in_record = set(pb.Record.DESCRIPTOR.oneofs_by_name["kind"].fields)
    assert {field.message_type.name for field in in_record} == {kind.__name__ for kind in records.RECORDS}
    envelopes = (pb.AgentMessage, pb.AggregatorMessage)
    kinds = (kind.DESCRIPTOR.oneofs_by_name["message"].fields for kind in envelopes)
    messages = {field.message_type.name for fields in kinds for field in fields}
    assert messages == {kind.__name__ for kind in records.MESSAGES} | {"Batch"}


@given(st.one_of([records.of(kind, message) for kind, message in records.MESSAGES.items()]))
def test_every_message_survives_the_wire(message: AgentMessage) -> None:
    envelope = convert.to_wire(message)
    decode = (
        agent_messages.decode_agent_message
        if isinstance(envelope, pb.AgentMessage)
        else convert.decode_aggregator_message
    )
    assert decode(convert.encode_message(message)) == message
    assert convert.from_wire(envelope) == message


@given(records.tables())
def test_every_table_survives_the_wire_with_its_nan(table: SampleTable) -> None:
    (back,) = carried(batch_of(table)).records
    assert isinstance(back, SampleTable)
    assert plain(back) == plain(table)


def test_the_columns_of_a_decoded_table_are_arrays_of_doubles() -> None:
    table = SampleTable(
        scope=Scope.GPU, times_unix_ns=[1, 2], entities=["0", "1"], columns={"power_w": [1.0, math.nan]}
    )
    (back,) = carried(batch_of(table)).records
    assert isinstance(back, SampleTable)
    assert isinstance(back.columns["power_w"], array)
    assert isinstance(back.times_unix_ns, array)


def test_the_counters_of_a_batch_survive() -> None:
    back = carried(batch_of(sequence=2**40))
    assert (back.sequence, back.sent_unix_ns, back.dropped_records) == (2**40, 7, 3)


def test_a_batch_gets_another_sequence_without_a_change_to_its_records() -> None:
    step = TrainingStep(job="a", step=3)
    renumbered = encoded_messages.with_sequence(convert.encode_message(batch_of(step, sequence=9)), 2)
    assert agent_messages.decode_agent_message(renumbered) == Batch(
        sequence=2, sent_unix_ns=7, records=[step], dropped_records=3
    )


@given(st.binary(max_size=200))
def test_garbage_is_a_wire_error_or_a_message_but_never_another_exception(data: bytes) -> None:
    for decode in (agent_messages.decode_agent_message, convert.decode_aggregator_message):
        with contextlib.suppress(WireError):
            decode(data)
    with contextlib.suppress(WireError):
        encoded_messages.decode_batch(BytesIO(data))


@given(st.data())
def test_a_cut_batch_is_a_wire_error(data: st.DataObject) -> None:
    record = data.draw(st.one_of([records.of(kind, message) for kind, message in records.RECORDS.items()]))
    encoded = encoded_messages.encode_batch(batch_of(record))
    cut = data.draw(st.integers(1, len(encoded) - 1))
    with pytest.raises(WireError, match="A Batch cannot be decoded"):
        encoded_messages.decode_batch(BytesIO(encoded[:cut]))


@given(st.lists(st.integers(0, 2**63)))
def test_batches_follow_each_other_to_the_end(sequences: list[int]) -> None:
    data = BytesIO(b"".join(encoded_messages.encode_batch(batch_of(sequence=number)) for number in sequences))
    read = [encoded_messages.decode_batch(data) for _ in sequences]
    assert [batch.sequence for batch in read if batch] == sequences
    assert encoded_messages.decode_batch(data) is None


@given(st.data())
def test_a_cut_message_is_a_wire_error_or_a_shorter_message(data: st.DataObject) -> None:
    record = data.draw(st.one_of([records.of(kind, message) for kind, message in records.RECORDS.items()]))
    encoded = convert.encode_message(batch_of(record))
    cut = data.draw(st.integers(0, len(encoded)))
    with contextlib.suppress(WireError):
        agent_messages.decode_agent_message(encoded[:cut])


def test_records_of_an_unknown_kind_are_left_out_and_counted() -> None:
    message = pb.Batch(sequence=1)
    message.records.add().event.kind = "quantum_decoherence"
    message.records.add().training_step.job = "a"
    message.records.add()
    message.samples.append(b"\x08\x4d")  # Scope 77, from a newer peer.
    back = from_wire(message)
    assert [type(record) for record in back.records] == [TrainingStep]
    assert back.unknown_records == 3


def test_unknown_fields_of_a_newer_peer_are_ignored() -> None:
    unknown_field = bytes([0xFA, 0x3F, 0x02, 0x68, 0x69])  # Field 1023, two bytes.
    encoded = convert.encode_message(batch_of(TrainingStep(job="a", step=3)))
    assert agent_messages.decode_agent_message(
        encoded + unknown_field
    ) == agent_messages.decode_agent_message(encoded)


def test_a_message_of_an_unknown_kind_is_none() -> None:
    assert agent_messages.decode_agent_message(bytes([0xFA, 0x3F, 0x02, 0x68, 0x69])) is None
    request = pb.AggregatorMessage()
    request.capture_request.tool = 99  # type: ignore[assignment]  # a tool from a newer aggregator
    assert convert.decode_aggregator_message(request.SerializeToString()) is None


def test_capture_tools_that_are_unknown_here_are_left_out_of_a_hello() -> None:
    hello = pb.AgentMessage(hello=pb.Hello(agent_id="a", capture_tools=["nsys", "oscilloscope"]))
    back = convert.from_wire(hello)
    assert isinstance(back, Hello)
    assert back.capture_tools == ("nsys",)


def test_a_table_with_a_short_column_is_refused_both_ways() -> None:
    table = SampleTable(scope=Scope.GPU, times_unix_ns=[1], entities=["0"], columns={"power_w": [1.0, 2.0]})
    with pytest.raises(WireError, match="'power_w' of a table has 2 values for 1 rows"):
        convert.encode_record(table)
    message = pb.Batch()
    wire_table = pb.SampleTable(scope=pb.SCOPE_GPU, times_unix_ns=bytes(8), entities=["0"], entity_of_row=[0])
    wire_table.columns.add(metric="power_w", values=bytes(16))
    message.samples.append(wire_table.SerializeToString())
    with pytest.raises(WireError, match="'power_w' of a table has 2 values for 1 rows"):
        from_wire(message)


def _about_nobody() -> bytes:
    return pb.SampleTable(
        scope=pb.SCOPE_GPU, times_unix_ns=bytes(8), entities=["0"], entity_of_row=[1]
    ).SerializeToString()


def test_a_row_about_an_entity_that_is_not_named_is_refused() -> None:
    message = pb.Batch()
    message.samples.append(_about_nobody())
    with pytest.raises(WireError, match="about entity 1, but 1 are named"):
        from_wire(message)


def test_the_sequence_of_a_batch_with_a_wrong_record_is_known() -> None:
    message = pb.AgentMessage(batch=pb.Batch(sequence=7))
    message.batch.samples.append(_about_nobody())
    with pytest.raises(BatchError, match="about entity 1") as caught:
        agent_messages.decode_agent_message(message.SerializeToString())
    assert caught.value.sequence == 7


def test_a_column_that_comes_twice_is_refused() -> None:
    message = pb.Batch()
    table = pb.SampleTable(scope=pb.SCOPE_GPU)
    table.columns.add(metric="power_w")
    table.columns.add(metric="power_w")
    message.samples.append(table.SerializeToString())
    with pytest.raises(WireError, match="a column twice"):
        from_wire(message)


@pytest.mark.parametrize(
    "record",
    [
        TrainingStep(job="a", step=-1),
        TrainingStep(job="a", step="three"),  # type: ignore[arg-type]
        CollectorHealth(collector="\udcff", time_unix_ns=1, duration_s=1.0, success=True),
        SampleTable(scope=Scope.GPU, times_unix_ns=[1], entities=["0"], columns={"x": ["y"]}),  # type: ignore[list-item]
        Ack(sequence=1),
        "text",
    ],
)
def test_a_record_that_does_not_fit_is_refused_before_it_is_queued(record: Any) -> None:
    with pytest.raises(WireError):
        convert.encode_record(record)
