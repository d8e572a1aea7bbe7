"""Records with impossible numbers in any of their fields, and a healthy job to put them into."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Sequence
from enum import StrEnum
from types import UnionType
from typing import Any

from aggregator.support import START_S
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st
from wire.records import RECORDS

from perfd.model import (
    CollectiveProgress,
    CollectiveTimes,
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
    MemoryReport,
    ModelShape,
    ParallelLayout,
    PhaseTime,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    StepPhases,
    TimingSource,
    TrainingStep,
)

START_NS = round(START_S * 1e9)
RANKS = 4
STEPS = 24

_COUNTS = (0, 1, 2, 3, 7, 64, 2**31)
_ODD: dict[int, Sequence[Any]] = {
    FieldDescriptor.TYPE_UINT32: (*_COUNTS, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (*_COUNTS, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_SINT64: (*_COUNTS, -1, 2**63 - 1, -(2**63)),
    FieldDescriptor.TYPE_SFIXED64: (0, 1, -1, START_NS, START_NS + 10**9, 2**63 - 1, -(2**63)),
    FieldDescriptor.TYPE_DOUBLE: (
        *(0.0, -0.0, 0.5, 1.0, -1.0, 3e9, 5e-324, 1e300, -1e300),
        *(math.nan, math.inf, -math.inf),
    ),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_STRING: ("", "a", "\x00", "é" * 300, "0" * 5000),
}
_LIKELY: dict[str, Sequence[Any]] = {
    "rank": range(RANKS),
    "gpu": range(RANKS),
    "index": range(RANKS),
    "local_rank": range(RANKS),
    "world_size": (RANKS,),
    "step": range(1, STEPS + 4),
    "framework": ("megatron", "nemo", "deepspeed"),
    "name": ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"),
    "precision": ("bf16", "fp8"),
    "communicator": ("c0", "c1"),
    "communicator_rank": range(RANKS),
    "communicator_size": (RANKS,),
    "communicator_name": ("", "TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"),
    "operation": ("AllReduce", "AllGather", "ReduceScatter", "Send", "Recv"),
    "source": ("", "inspector", "flight_recorder", "nccl_plugin"),
    "server": ("s:1",),
    "engine": ("sglang", "vllm"),
    "logged_flops_convention": ("megatron-causal", "megatron-full"),
    "phases": ("forward-compute", "backward-compute", "optimizer", "batch-generator", "forward-backward"),
    "losses": ("lm loss", "loss"),
    "values": ("exit_code", "lost_steps"),
}
_COLUMNS: dict[Scope, Sequence[str]] = {
    Scope.GPU: (
        "memory_used_bytes",
        "memory_total_bytes",
        "sm_clock_hz",
        "sm_active_ratio",
        "tensor_active_ratio",
        "dram_active_ratio",
        "graphics_active_ratio",
        "busy_ratio",
        "power_w",
        "power_limit_w",
        "clocks_event_reasons_bits",
        "temperature_celsius",
    ),
    Scope.NODE: ("cpu_busy_ratio", "memory_available_bytes"),
    Scope.NIC: ("receive_bytes_per_s", "transmit_bytes_per_s", "link_bits_per_s", "speed_bits_per_s"),
    Scope.DISK: ("read_bytes_per_s",),
    Scope.RANK: ("nccl_busy_s", "nccl_lost_operations", "nccl_operations"),
    Scope.SERVER: ("up", "running_requests", "queued_requests", "kv_cache_used_ratio", "tpot_p50_s"),
}


def records(job: str) -> st.SearchStrategy[Record]:
    """One record of any kind, of a job where it is of one, with odd and likely values in all its fields."""
    of_kinds = [_of(kind, message, job) for kind, message in RECORDS.items()]
    return st.one_of(changed(job), changed(job), *of_kinds, tables(job))


@st.composite
def changed(draw: st.DrawFn, job: str) -> Record:
    """A record of a healthy job, with something odd in one field."""
    record = draw(st.sampled_from(healthy(job)))
    if isinstance(record, SampleTable):
        row = draw(st.integers(0, RANKS - 1))
        metric = draw(st.sampled_from(sorted(record.columns)))
        values = list(record.columns[metric])
        values[row] = draw(st.sampled_from(_ODD[FieldDescriptor.TYPE_DOUBLE]))
        return dataclasses.replace(record, columns={**record.columns, metric: values})
    return _changed(draw, record, RECORDS[type(record)], job)


def _changed(draw: st.DrawFn, record: Any, message: type[Message], job: str) -> Any:
    hints = typing.get_type_hints(type(record))
    name = draw(st.sampled_from([name for name in hints if name != "job"]))
    field = message.DESCRIPTOR.fields_by_name[name]
    old = getattr(record, name)
    if dataclasses.is_dataclass(old):
        value = _changed(draw, old, type(getattr(message(), name)), job)
    elif isinstance(old, Sequence) and not isinstance(old, str) and old:
        place = draw(st.integers(0, len(old) - 1))
        value = [*old[:place], draw(_scalar(field)), *old[place + 1 :]]
    else:
        value = draw(_field(hints[name], field, message, job))
    return dataclasses.replace(record, **{name: value})


def healthy(job: str, *, steps: int = STEPS) -> list[Record]:
    """All that four ranks of a job on one node say of themselves in `steps` seconds, one a step."""
    last_ns = START_NS + steps * 10**9
    model = ModelShape(
        layers=8,
        hidden_size=1024,
        ffn_size=4096,
        attention_heads=16,
        kv_heads=16,
        head_size=64,
        sequence_length=2048,
        vocab_size=32_000,
    )
    layout = ParallelLayout(
        world_size=RANKS, tp=2, pp=2, dp=1, cp=1, ep=1, vp=1, micro_batch_size=1, global_batch_size=8
    )
    return [
        JobDescription(job=job, framework="megatron", model=model, parallel=layout, precision="bf16"),
        *(GpuInfo(index=rank, name="NVIDIA H200", memory_bytes=10**11) for rank in range(RANKS)),
        *(RankPlacement(job=job, rank=rank, gpu=rank, world_size=RANKS) for rank in range(RANKS)),
        *(MemoryReport(job=job, step=1, rank=rank, reserved_bytes=5e10) for rank in range(RANKS)),
        *(_step(job, number) for number in range(1, steps + 1)),
        *(_phases(job, number) for number in range(1, steps + 1)),
        *(_gpu_table(number) for number in range(1, steps + 1)),
        *(_window(job, rank, steps) for rank in range(RANKS)),
        *(_progress(job, rank, last_ns) for rank in range(RANKS)),
        _rank_table(job, steps),
        Event(kind=EventKind.CHECKPOINT, time_unix_ns=START_NS + 10**9, message="saved", job=job, step=1),
    ]


@st.composite
def tables(draw: st.DrawFn, job: str) -> SampleTable:
    """A table of any scope, with names that the analysis reads."""
    scope = draw(st.sampled_from(Scope))
    rows = draw(st.integers(1, 3))
    entities = {
        Scope.GPU: st.sampled_from(["0", "1", "2", "3", "9", "0/1", ""]),
        Scope.RANK: st.sampled_from([f"{job}/0", f"{job}/1", f"{job}/999999999", f"{job}/-1", f"{job}/²"]),
        Scope.SERVER: st.just("s:1"),
    }.get(scope, st.sampled_from(["", "eth0", "mlx5_0/1"]))
    metrics = draw(st.lists(st.sampled_from(_COLUMNS[scope]), min_size=1, max_size=4, unique=True))

    def column(element: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(element, min_size=rows, max_size=rows))

    return SampleTable(
        scope=scope,
        times_unix_ns=column(st.sampled_from(_ODD[FieldDescriptor.TYPE_SFIXED64])),
        entities=column(entities),
        columns={metric: column(st.sampled_from(_ODD[FieldDescriptor.TYPE_DOUBLE])) for metric in metrics},
    )


def _of(kind: type, message: type[Message], job: str) -> st.SearchStrategy[Any]:
    fields = message.DESCRIPTOR.fields_by_name
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: _field(hint, fields[name], message, job) for name, hint in hints.items()})


def _field(hint: Any, field: FieldDescriptor, message: type[Message], job: str) -> st.SearchStrategy[Any]:
    if isinstance(hint, UnionType):
        inner = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        return st.none() | _field(inner, field, message, job)
    if field.name == "job":
        return st.just(job)
    if dataclasses.is_dataclass(hint):
        return _of(typing.cast("type", hint), type(getattr(message(), field.name)), job)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map(hint, field, message, job)
    if field.is_repeated:
        (inner,) = typing.get_args(hint)
        if dataclasses.is_dataclass(inner):
            return st.lists(_of(inner, type(getattr(message(), field.name).add()), job), max_size=2).map(
                tuple
            )
        return st.lists(_scalar(field), max_size=3).map(tuple)
    return _scalar(field)


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    odd = st.sampled_from(_ODD[field.type])
    likely = _LIKELY.get(field.name)
    return odd if likely is None else st.sampled_from(likely) | odd


def _map(hint: Any, field: FieldDescriptor, message: type[Message], job: str) -> st.SearchStrategy[Any]:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    kind = typing.get_args(hint)[1]
    if dataclasses.is_dataclass(kind):
        entry = getattr(message(), field.name).GetEntryClass()
        values = _of(typing.cast("type", kind), type(entry().value), job)
    else:
        values = _scalar(value)
    names = _LIKELY.get(field.name, range(RANKS) if field.name == "by_rank" else ())
    keys = st.sampled_from(names) | _scalar(key) if names else _scalar(key)
    return st.dictionaries(keys, values, max_size=3)


def _step(job: str, number: int) -> TrainingStep:
    return TrainingStep(
        job=job,
        step=number,
        time_unix_ns=START_NS + number * 10**9,
        step_time_s=1.0,
        global_batch_size=8,
        tokens_per_s=16_384.0,
        losses={"lm loss": 2.0},
    )


def _phases(job: str, number: int) -> StepPhases:
    seconds = {"forward-compute": 0.2, "backward-compute": 0.4, "forward-backward": 0.8, "optimizer": 0.1}
    return StepPhases(
        job=job,
        step=number,
        phases={
            name: PhaseTime(by_rank=dict.fromkeys(range(RANKS), value)) for name, value in seconds.items()
        },
    )


def _gpu_table(number: int) -> SampleTable:
    values = {"busy_ratio": 0.9, "power_w": 500.0, "sm_clock_hz": 1.9e9, "memory_used_bytes": 6e10}
    return SampleTable(
        scope=Scope.GPU,
        times_unix_ns=[START_NS + number * 10**9] * RANKS,
        entities=[str(rank) for rank in range(RANKS)],
        columns={name: [value] * RANKS for name, value in values.items()},
    )


def _window(job: str, rank: int, steps: int) -> CollectiveTimes:
    count = 2 * steps
    return CollectiveTimes(
        job=job,
        rank=rank,
        communicator="c0",
        communicator_rank=rank,
        communicator_size=RANKS,
        operation="AllReduce",
        timing=TimingSource.GPU,
        start_unix_ns=START_NS,
        end_unix_ns=START_NS + steps * 10**9,
        count=count,
        total_bytes=count * 1e6,
        total_s=count * 0.01,
        min_s=0.01,
        max_s=0.01,
        sequences=range(count),
        durations_ns=[10**7] * count,
        sizes_bytes=[10**6] * count,
    )


def _progress(job: str, rank: int, time_unix_ns: int) -> CollectiveProgress:
    return CollectiveProgress(
        job=job,
        rank=rank,
        communicator="c0",
        members=range(RANKS),
        operation="AllReduce",
        enqueued=48,
        started=48,
        completed=48,
        time_unix_ns=time_unix_ns,
        source="nccl_plugin",
    )


def _rank_table(job: str, steps: int) -> SampleTable:
    return SampleTable(
        scope=Scope.RANK,
        times_unix_ns=[START_NS + steps * 10**9] * RANKS,
        entities=[f"{job}/{rank}" for rank in range(RANKS)],
        columns={
            "nccl_busy_s": [0.4 * steps] * RANKS,
            "nccl_lost_operations": [0.0] * RANKS,
            "nccl_operations": [2.0 * steps] * RANKS,
        },
    )
