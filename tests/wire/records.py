"""Strategies for every record, with the ranges that its message allows."""

from __future__ import annotations

import dataclasses
import typing
from enum import StrEnum
from types import UnionType
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from perfd import model
from perfd.wire.v1 import telemetry_pb2 as pb

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_SFIXED64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: st.integers(-(2**63), 2**63 - 1),
    # NaN is unequal to itself; tables have a test of their own for it.
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=12),
}

RECORDS: dict[type, type[Message]] = {
    model.GpuInfo: pb.GpuInfo,
    model.RankPlacement: pb.RankPlacement,
    model.JobDescription: pb.JobDescription,
    model.JobOrigin: pb.JobOrigin,
    model.TrainingStep: pb.TrainingStep,
    model.StepPhases: pb.StepPhases,
    model.MemoryReport: pb.MemoryReport,
    model.Event: pb.Event,
    model.LogProgress: pb.LogProgress,
    model.CollectorHealth: pb.CollectorHealth,
    model.CollectiveTimes: pb.CollectiveTimes,
    model.CollectiveProgress: pb.CollectiveProgress,
    model.ServerInfo: pb.ServerInfo,
    model.GpuAllocations: pb.GpuAllocations,
    model.CaptureFilesRemoved: pb.CaptureFilesRemoved,
    model.CaptureFileUpload: pb.CaptureFileUpload,
}
MESSAGES: dict[type, type[Message]] = {
    model.Hello: pb.Hello,
    model.CaptureStatus: pb.CaptureStatus,
    model.Goodbye: pb.Goodbye,
    model.AcknowledgeEach: pb.AcknowledgeEach,
    model.Welcome: pb.Welcome,
    model.Ack: pb.Ack,
    model.CaptureRequest: pb.CaptureRequest,
    model.CaptureCancel: pb.CaptureCancel,
    model.NewFinding: pb.NewFinding,
    model.BatchInterval: pb.BatchInterval,
    model.Stored: pb.Stored,
}


def of(kind: type, message: type[Message]) -> st.SearchStrategy[Any]:
    """Any value of a record type."""
    hints = typing.get_type_hints(kind)
    fields = message.DESCRIPTOR.fields_by_name
    return st.builds(kind, **{name: _field(hint, fields[name], message) for name, hint in hints.items()})


def _field(hint: Any, field: FieldDescriptor, message: type[Message]) -> st.SearchStrategy[Any]:
    if isinstance(hint, UnionType):
        inner = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        return st.none() | _field(inner, field, message)
    if dataclasses.is_dataclass(hint):
        return of(hint, type(getattr(message(), field.name)))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map(hint, field, message)
    if field.is_repeated:
        (inner,) = typing.get_args(hint)
        if dataclasses.is_dataclass(inner):
            element = of(inner, type(getattr(message(), field.name).add()))
        elif isinstance(inner, type) and issubclass(inner, StrEnum):
            element = st.sampled_from(inner)
        else:
            element = SCALARS[field.type]
        return st.lists(element, max_size=3).map(tuple)
    return SCALARS[field.type]


def _map(hint: Any, field: FieldDescriptor, message: type[Message]) -> st.SearchStrategy[Any]:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    kind = typing.get_args(hint)[1]
    if dataclasses.is_dataclass(kind):
        entry = getattr(message(), field.name).GetEntryClass()
        values = of(typing.cast("type", kind), type(entry().value))
    else:
        values = SCALARS[value.type]
    return st.dictionaries(SCALARS[key.type], values, max_size=3)


@st.composite
def tables(draw: st.DrawFn) -> model.SampleTable:
    """Any table, NaN and infinities included."""
    rows = draw(st.integers(0, 5))

    def column(element: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(element, min_size=rows, max_size=rows))

    metrics = draw(st.lists(st.text(max_size=8), max_size=4, unique=True))
    return model.SampleTable(
        scope=draw(st.sampled_from(model.Scope)),
        times_unix_ns=column(SCALARS[FieldDescriptor.TYPE_SFIXED64]),
        entities=column(st.text(max_size=3)),
        columns={metric: column(st.floats()) for metric in metrics},
    )
