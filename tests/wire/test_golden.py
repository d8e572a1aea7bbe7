from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from wire import golden_messages

from perfd.model import Batch, CaptureStatus, Goodbye, Hello, SampleTable
from perfd.wire import agent_messages, convert


def readable(value: Any) -> Any:
    """Arrays and tuples alike as lists, so that values compare and not their containers."""
    if isinstance(value, SampleTable):
        columns = {name: list(column) for name, column in value.columns.items()}
        return value.scope, list(value.times_unix_ns), list(value.entities), columns
    return value


@pytest.mark.parametrize("name", golden_messages.MESSAGES)
def test_this_version_reads_what_version_1_wrote(name: str) -> None:
    data = (golden_messages.DIRECTORY / f"{name}.bin").read_bytes()
    expected = golden_messages.MESSAGES[name]
    from_agent = isinstance(expected, Hello | Batch | CaptureStatus | Goodbye)
    decode = agent_messages.decode_agent_message if from_agent else convert.decode_aggregator_message
    found = decode(data)
    if isinstance(expected, Batch) and isinstance(found, Batch):
        assert [readable(record) for record in found.records] == [
            readable(record) for record in expected.records
        ]
        found, expected = (dataclasses.replace(batch, records=()) for batch in (found, expected))
    assert found == expected


def test_every_byte_file_has_its_expectation() -> None:
    assert {path.stem for path in golden_messages.DIRECTORY.iterdir()} == set(golden_messages.MESSAGES)


def test_the_golden_batches_leave_no_field_of_a_record_at_its_default() -> None:
    batches = [message for message in golden_messages.MESSAGES.values() if isinstance(message, Batch)]
    records = [record for batch in batches for record in batch.records]
    for kind in {type(record) for record in records}:
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                said = [getattr(record, field.name) for record in records if type(record) is kind]
                assert any(value != field.default for value in said), f"{kind.__name__}.{field.name}"
