"""Reads the events of JAX's (XLA's) traces: Chrome format without categories, devices named as processes.

A process `/device:GPU:0` has a thread for each stream, named `Stream #13(Compute)`, and threads with
derived rows (modules, name scopes) that repeat the same time. `/device:TPU:0` has its operations on the
thread `XLA Ops`. (Source: xprof's `trace.json.gz`.)
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from perfd.trace.model.hlo_names import hlo_class
from perfd.trace.model.intervals import Ns
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import HloOperations, RankTrace, no_calls, operations_of
from perfd.trace.model.trace_steps import TraceStep
from perfd.trace.readers.chrome_json import DEVICE_NAME, Args, ChromeEvent
from perfd.trace.readers.jax_collectives import HloCollective, described, numbered_by_instruction

_DEVICE = re.compile(r"/device:(GPU|TPU):(\d+)")
_STREAM = re.compile(r"Stream #(\d+)")
_MAX_TIME_US = 4e15
"""Of a start and of a duration, so that an end is nanoseconds that 64 bits hold."""
_MEMORY_CLASSES = {"copy", "infeed"}

_MAX_ID = 1 << 62
"""A process or thread of a larger number is none."""
_STEP_DIGITS = 16
"""More than any step number has; it bounds the conversion of a hostile trace's text."""
_NONE_KNOWN: Mapping[tuple[str, str], HloCollective] = {}


class JaxEvents:
    """Takes the events that have no category."""

    def __init__(self) -> None:
        self._processes: dict[int, str] = {}
        self._devices: dict[int, str] = {}
        self._threads: dict[tuple[int, int], str] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._hlo: dict[tuple[str, str], int] = {}
        """By module and operation."""
        self._rows = array("q")
        self._times = array("d")
        self._steps: dict[int, tuple[float, float]] = {}

    def add(self, event: ChromeEvent) -> None:
        """Take one event."""
        if not isinstance(event.pid, int) or max(abs(event.pid), _id_of(event.tid)) >= _MAX_ID:
            return
        args = event.args or Args()
        if event.ph == "M" and args.name is not None:
            if event.name == "process_name":
                self._processes[event.pid] = args.name
            elif event.name == DEVICE_NAME:
                self._devices[event.pid] = args.name
            elif event.name == "thread_name" and isinstance(event.tid, int):
                self._threads[event.pid, event.tid] = args.name
        elif event.ph == "X" and isinstance(event.tid, int):
            step = str(args.step_num)
            if step.isdecimal() and len(step) < _STEP_DIGITS:
                self._steps[int(step)] = (event.ts, event.dur)
            key = (event.name, hlo_class(args.hlo_category, args.hlo_op, event.name))
            name = self._names.setdefault(key, len(self._names))
            of = (args.hlo_module or "", args.hlo_op or "")
            hlo = self._hlo.setdefault(of, len(self._hlo)) if args.hlo_op else -1
            self._rows.extend((event.pid, event.tid, name, _correlation(args), hlo))
            self._times.extend((event.ts, event.dur))

    def traces(
        self,
        path: Path,
        collectives: Mapping[tuple[str, str], HloCollective] = _NONE_KNOWN,
        epoch_ns: int | None = None,
    ) -> list[RankTrace]:
        """One for each device that did something.

        `collectives` by module and instruction; `epoch_ns` is the wall time of the events' zero.
        """
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 5)
        times = np.array(self._times).reshape(-1, 2)
        devices = {
            process: device
            for process, name in sorted(self._processes.items())
            if (device := _DEVICE.search(name)) is not None
        }
        # Devices of other hosts have other numbers in their own files.
        here = {int(device[2]) for device in devices.values()}
        known = {key: one for key, one in collectives.items() if one.devices <= here}
        found = [
            self._trace(path, process, device, rows, times, known=known, epoch_ns=epoch_ns)
            for process, device in devices.items()
        ]
        return numbered_by_instruction([trace for trace in found if trace is not None])

    def _trace(
        self,
        path: Path,
        process: int,
        device: re.Match[str],
        rows: Ns,
        times: np.ndarray[tuple[int, int], np.dtype[np.float64]],
        *,
        known: Mapping[tuple[str, str], HloCollective],
        epoch_ns: int | None,
    ) -> RankTrace | None:
        threads = {tid: name for (pid, tid), name in self._threads.items() if pid == process}
        streams = [tid for tid, name in threads.items() if _STREAM.match(name)]
        streams = streams or [tid for tid, name in threads.items() if "XLA Ops" in name]
        valid = (np.abs(times[:, 0]) < _MAX_TIME_US) & (times[:, 1] >= 0) & (times[:, 1] < _MAX_TIME_US)
        mine = valid & (rows[:, 0] == process)
        work = mine & np.isin(rows[:, 1], streams)
        if not work.any():
            return None
        names, classes = [name for name, _ in self._names], [label for _, label in self._names]
        kinds = np.array([_kind(label) for label in classes], dtype=np.int64)
        chosen, start = rows[work], np.rint(times[work, 0] * 1000).astype(np.int64)
        operations, order = operations_of(
            {
                "start_ns": start,
                "end_ns": start + np.rint(times[work, 1] * 1000).astype(np.int64),
                "kind": kinds[chosen[:, 2]],
                "name": chosen[:, 2],
                "stream": chosen[:, 1],
                "correlation": chosen[:, 3],
            }
        )
        step_threads = [tid for tid, name in threads.items() if name == "Steps"]
        marked = np.flatnonzero(mine & np.isin(rows[:, 1], step_threads))
        steps = {
            int(names[rows[at, 2]]): (times[at, 0], times[at, 1])
            for at in marked.tolist()
            if names[rows[at, 2]].isdigit()
        }
        return RankTrace(
            file=str(path),
            rank=None,
            gpu=self._devices.get(process),
            device=int(device[2]),
            names=names,
            classes=classes,
            operations=operations,
            calls=no_calls(),
            epoch_ns=epoch_ns,
            collectives=described(operations, chosen[order, 4], list(self._hlo), int(device[2]), known),
            hlo=HloOperations(
                names=[name for _, name in self._hlo],
                modules=[module for module, _ in self._hlo],
                name=chosen[order, 4].astype(np.int32),
            ),
            steps=_as_steps(steps or self._steps),
        )


def _kind(label: str) -> OperationKind:
    if label == "communication":
        return OperationKind.COMMUNICATION
    return OperationKind.MEMORY if label in _MEMORY_CLASSES else OperationKind.COMPUTE


def _correlation(args: Args) -> int:
    value = args.correlation_id
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 19 else -1
    return value if value is not None and abs(value) < _MAX_ID else -1


def _as_steps(found: dict[int, tuple[float, float]]) -> list[TraceStep]:
    return [
        TraceStep(number=number, start_ns=round(start * 1000), end_ns=round((start + duration) * 1000))
        for number, (start, duration) in sorted(found.items())
        if abs(start) < _MAX_TIME_US and 0 <= duration < _MAX_TIME_US
    ]


def _id_of(number: object) -> int:
    return abs(number) if isinstance(number, int) else 0
