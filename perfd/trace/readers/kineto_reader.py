"""Reads PyTorch's (Kineto's) traces, of every shape they had since 2021, for NVIDIA and AMD, and JAX's.

What differs between versions: categories were capitalised before 2022; times were absolute whole
microseconds before 2024 and count from `baseTimeNanoseconds` since; `distributedInfo` had only a rank at
first, and stands at the end of the file in traces taken on demand; AMD's kernels name no context. The
host's `ProfilerStep` ranges are the steps; their copies on the GPU's rows are ignored.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from perfd.errors import TraceError, WithoutGpuError
from perfd.trace.model.intervals import Flags, Ns
from perfd.trace.model.kernel_classes import kernel_class
from perfd.trace.model.rank_trace import (
    Collective,
    GpuOperations,
    Group,
    HostCalls,
    Phase,
    RankTrace,
    operations_of,
)
from perfd.trace.model.serving_steps import step_name
from perfd.trace.model.trace_detail import NamedCalls, TraceDetail, no_named_calls
from perfd.trace.model.trace_steps import PROFILER_STEP, steps_among
from perfd.trace.readers.chrome_json import PIECE_BYTES, ChromeEvent, ChromeFile
from perfd.trace.readers.detailed_events import DetailedEvent, SizedArgs, SizedEvent, whole
from perfd.trace.readers.jax_events import JaxEvents
from perfd.trace.readers.kineto_columns import Times
from perfd.trace.readers.kineto_events import CALL_CATEGORIES, GPU_CATEGORIES, KinetoEvents
from perfd.trace.readers.kineto_host_spans import HostSpanEvents
from perfd.trace.readers.nccl_messages import collective, messages_by_operation

_NO_SIZES = SizedArgs()
_ABSOLUTE_TIME_NS = 10**18
"""The year 2001: a clock that shows more counts from 1970."""
MAX_RECORDS = 4_000_000
"""About 1.2 GB of kernels and their launches alone. 3.3 million took 550 MB."""
_KEPT_RATIO = 0.9
"""Share of that which is kept of more events, the earliest ones; then the file is read anew."""
_SAMPLED = 97
"""Each so-many-th event shows when events begin."""
_NOT_WHOLE = (
    "The trace has more events than are read at once: read were those from its beginning on. A trace of fewer"
    " steps is read whole."
)
_STRAY_RATIO = 0.05
"""A device with less than this share of a process' operations is not its device."""


class DetailedKinetoEvents(KinetoEvents):
    """Takes events that were read as `SizedEvent`, or with `spans` as `DetailedEvent`."""

    def __init__(self, *, spans: bool) -> None:
        super().__init__()
        self._spans = HostSpanEvents() if spans else None
        self._sizes = array("q")
        self._shapes = array("q")
        self._shape_names: dict[str, int] = {}
        self._api_times = Times()
        self._api_names: dict[str, int] = {}
        self._api = array("q")

    def add(self, event: ChromeEvent) -> None:
        super().add(event)
        if event.ph != "X" or event.cat is None:
            return
        if event.cat in GPU_CATEGORIES:
            args = event.args if isinstance(event.args, SizedArgs) else _NO_SIZES
            size = whole(args.copied_bytes)
            self._sizes.append(-1 if size is None else max(-1, size))
            shape = _launch_shape(args)
            self._shapes.append(
                -1 if shape is None else self._shape_names.setdefault(shape, len(self._shape_names))
            )
        elif event.cat in CALL_CATEGORIES:
            self._api_times.append(event)
            self._api.append(self._api_names.setdefault(event.name, len(self._api_names)))
        elif self._spans is not None:
            self._spans.add(event, self.thread_of(event))

    def keeps(self, event: ChromeEvent) -> bool:
        if self._spans is None:
            return super().keeps(event)
        return event.ph == "X" and event.cat is not None

    def _all_times(self) -> tuple[Times, ...]:
        own = (self._api_times,) if self._spans is None else (self._api_times, self._spans.times)
        return (*super()._all_times(), *own)

    def detail(self, rows: Ns) -> TraceDetail:
        """Of the operations in these rows."""
        start, end, valid = self._api_times.ns()
        return TraceDetail(
            size_bytes=np.array(self._sizes, dtype=np.int64)[rows],
            launch_shape=np.array(self._shapes, dtype=np.int64)[rows],
            launch_shapes=list(self._shape_names),
            api=NamedCalls(
                start_ns=start[valid],
                end_ns=end[valid],
                name=np.array(self._api, dtype=np.int64)[valid],
                names=list(self._api_names),
            ),
            os_calls=no_named_calls(),
            spans=None if self._spans is None else self._spans.spans(),
        )


def _launch_shape(args: SizedArgs) -> str | None:
    sizes = [args.grid, args.block]
    if not all(isinstance(one, list) and len(one) == 3 for one in sizes):
        return None
    return " ".join("x".join(str(part)[:12] for part in one) for one in sizes)


class _Device(msgspec.Struct, rename="camel"):
    id: int = 0
    name: str | None = None
    num_sms: int | None = None


class _Group(msgspec.Struct):
    pg_name: str | int = ""
    pg_desc: str = ""
    ranks: list[int] = []


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None
    pg_config: list[_Group] = []


class _Head(msgspec.Struct, rename="camel"):
    device_properties: list[_Device] = []
    distributed_info: _Distributed | None = None
    base_time_nanoseconds: int | None = None


def read(
    path: Path, piece_bytes: int = PIECE_BYTES, *, detailed: bool = False, spans: bool = True
) -> list[RankTrace]:
    """The file's data about each GPU that its process used; `piece_bytes` of it are decoded at a time.

    With `detailed` the traces have their `detail`, without `spans` apart from those.

    Raises `TraceError`, naming the file, when it is no such trace, is cut, or holds no GPU operation.
    """
    until_us: float | None = None
    while True:
        kind = (DetailedEvent if spans else SizedEvent) if detailed else ChromeEvent
        file = ChromeFile(path, piece_bytes, kind)
        events, jax = DetailedKinetoEvents(spans=spans) if detailed else KinetoEvents(), JaxEvents()
        earlier_us = _collect(file, events, jax, until_us)
        if earlier_us is None:
            break
        until_us = earlier_us
    columns, valid = events.operations()
    if not valid.any():
        found = jax.traces(path)
        if not found:
            raise WithoutGpuError(f"{path}: {_without_gpu(events)}")
        return found
    notes = []
    if file.malformed_events:
        notes.append(f"{file.malformed_events} events are not as any version writes them, and are left out.")
    if not valid.all():
        notes.append(f"{int((~valid).sum())} GPU operations have no valid time, and are left out.")
    if until_us is not None:
        notes.append(_NOT_WHOLE)
    return _File(path, _head(path, file), events, notes, until_us).traces(columns, valid)


def _collect(file: ChromeFile, events: KinetoEvents, jax: JaxEvents, until_us: float | None) -> float | None:
    """Take all events that begin before `until_us`; if they are too many to keep, until when to take them.

    Then the rest of the file is only looked through, for when its events begin: they may be in any order.
    """
    pieces = file.pieces()
    for piece in pieces:
        for event in piece:
            if event.cat is None:
                jax.add(event)
            elif until_us is None or event.ts < until_us:
                events.add(event)
        if events.records > MAX_RECORDS:
            break
    else:
        return None
    starts_us = list(islice(events.starts_us(), 0, None, _SAMPLED))
    late = (
        event.ts
        for piece in pieces
        for event in piece
        if events.keeps(event) and (until_us is None or event.ts < until_us)
    )
    starts_us += islice(late, 0, None, _SAMPLED)
    kept_ratio = _KEPT_RATIO * MAX_RECORDS / (len(starts_us) * _SAMPLED)
    return sorted(starts_us)[int(min(kept_ratio, _KEPT_RATIO) * len(starts_us))]


def _without_gpu(events: KinetoEvents) -> str:
    """Why a trace has nothing about a GPU."""
    instead = f", only {events.host_operations:,} of the host" if events.host_operations else ""
    return (
        f"the trace has no GPU operation{instead}: "
        "record its activity, too (PyTorch's profiler: ProfilerActivity.CUDA), while it works."
    )


def _head(path: Path, file: ChromeFile) -> _Head:
    try:
        return msgspec.convert(file.head, _Head, strict=False)
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{path}: its description of the run is not as any version writes it: {error}."
        ) from error


class _File:
    """What all GPUs of one file share."""

    def __init__(
        self,
        path: Path,
        head: _Head,
        events: KinetoEvents,
        notes: Sequence[str],
        until_us: float | None = None,
    ) -> None:
        self._until_ns = None if until_us is None else int(until_us * 1000)
        self._path = path
        self._head = head
        self._events = events
        self._notes = notes
        self._distributed = head.distributed_info or _Distributed()

    def traces(self, columns: Mapping[str, Ns], valid: Flags) -> list[RankTrace]:
        """One for each GPU that took a real part."""
        devices, counts = np.unique(columns["device"][valid], return_counts=True)
        main = [int(device) for device in devices[counts >= _STRAY_RATIO * counts.sum()]]
        calls, phases = self._events.calls(), self._events.phases()
        steps, named = steps_among(phases, PROFILER_STEP), _named(phases)
        overhead, captured_ns = self._events.overhead(), self._events.captured_ns()
        if self._until_ns is not None:
            begin_ns = captured_ns[0] if captured_ns else int(min(self._events.starts_us()) * 1000)
            captured_ns = begin_ns, self._until_ns
        classes = [kernel_class(name) for name in self._events.names]
        epoch_ns = self._epoch_ns(int(columns["start_ns"][valid][0]))
        groups = self._groups()
        traces = []
        for device in main:
            mine = np.flatnonzero(valid & (columns["device"] == device))
            operations, order = operations_of({name: column[mine] for name, column in columns.items()})
            traces.append(
                RankTrace(
                    file=str(self._path),
                    rank=self._distributed.rank if len(main) == 1 else None,
                    gpu=next((one.name for one in self._head.device_properties if one.id == device), None)
                    or None,
                    device=device if device >= 0 else None,
                    names=list(self._events.names),
                    classes=classes,
                    operations=operations,
                    calls=calls,
                    call_names=list(self._events.call_names),
                    collectives=self._collectives(operations, mine[order], calls, groups),
                    groups=groups,
                    world_size=self._distributed.world_size,
                    epoch_ns=epoch_ns,
                    notes=self._notes,
                    steps=steps,
                    phases=named,
                    overhead=overhead,
                    captured_ns=captured_ns,
                    detail=self._detail(mine[order], device),
                )
            )
        return traces

    def _detail(self, rows: Ns, device: int) -> TraceDetail | None:
        if not isinstance(self._events, DetailedKinetoEvents):
            return None
        count = next((one.num_sms for one in self._head.device_properties if one.id == device), None)
        return replace(self._events.detail(rows), multiprocessors=count)

    def _collectives(
        self, operations: GpuOperations, rows: Ns, calls: HostCalls, groups: Sequence[Group]
    ) -> list[Collective]:
        messages = self._events.messages()
        if not self._events.collectives and not messages:
            return []
        place = {row: at for at, row in enumerate(rows.tolist())}
        ranks = {group.name: group.ranks for group in groups}
        named = [
            collective(place[row], args, ranks) for row, args in self._events.collectives if row in place
        ]
        found = messages_by_operation(operations, calls, messages, {one.operation for one in named})
        described = _ranks_by_description(groups)
        transfers = [
            Collective(
                operation=at,
                name="sendrecv",
                group=carried[0].group,
                group_ranks=described.get(carried[0].group, ()),
                messages=carried,
            )
            for at, carried in found.items()
        ]
        return sorted([*named, *transfers], key=lambda one: one.operation)

    def _groups(self) -> tuple[Group, ...]:
        return tuple(
            Group(name=str(group.pg_name), description=group.pg_desc, ranks=tuple(group.ranks))
            for group in self._distributed.pg_config
        )

    def _epoch_ns(self, any_start_ns: int) -> int | None:
        """Wall time of zero: as written, or zero itself where the times are absolute."""
        if self._head.base_time_nanoseconds is not None:
            return self._head.base_time_nanoseconds
        return 0 if any_start_ns > _ABSOLUTE_TIME_NS else None


def _ranks_by_description(groups: Sequence[Group]) -> dict[str, tuple[int, ...]]:
    """The ranks of the group that a description means; not of one that several have, as "undefined"."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for group in groups:
        found.setdefault(group.description or group.name, set()).add(group.ranks)
    return {description: ranks for description, (ranks, *others) in found.items() if not others}


def _named(phases: Sequence[Phase]) -> list[Phase]:
    """The ranges other than steps; those of inference servers by their kind, not by their batch."""
    others = [phase for phase in phases if not PROFILER_STEP.fullmatch(phase.name)]
    kinds = {name: step_name(name) for name in {phase.name for phase in others}}
    return [phase if (kind := kinds[phase.name]) is None else replace(phase, name=kind) for phase in others]
