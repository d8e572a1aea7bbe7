"""The `nccl` collector: what the plugin recorded in each process of this node, reduced once a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfd.capture.processes import RUN_VARIABLE, environment_of
from perfd.collector import Collector, CollectorSpec, Column, ColumnKind, OnUnavailable, Options, Settings
from perfd.errors import Unavailable
from perfd.model import Record, SampleTable, Scope
from perfd_collectors.nccl.debug_files import DebugFiles
from perfd_collectors.nccl.flight_recorder_files import DumpDirectory, RecordedDump
from perfd_collectors.nccl.inspector_files import InspectorDirectory, RecordedInspector
from perfd_collectors.nccl.reduce import Window, busy_ns, reduce_operations
from perfd_collectors.nccl.rings import Counters, Operation, Segment, Wanted
from perfd_collectors.nccl.sampling import BusyTime, check_sampling, in_sample
from perfd_collectors.nccl.segments import find_segments, sweep

COLUMNS = (
    Column(
        scope=Scope.RANK,
        name="nccl_busy_s",
        help="Time in which at least one NCCL kernel was on the rank's GPU, waiting for peers included.",
        source="perfd's NCCL plugin: union of the kernels' intervals by the GPU's clock; between samples by"
        " the number of operations",
        absent="without the plugin, with `gpu_time: false`, or an NCCL before 2.27, which tells no GPU time",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_operations",
        help="Collectives, sends and receives that the plugin saw.",
        source="perfd's NCCL plugin",
        absent="without the plugin",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_lost_operations",
        help="Operations that were seen but not read: a ring overflowed, or no ring was free.",
        source="perfd's NCCL plugin, and the gaps that its reader finds",
        absent="without the plugin",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_untimed_operations",
        help="Operations whose time on the GPU never came, or cannot be right.",
        source="perfd's NCCL plugin",
        absent="without the plugin",
        kind=ColumnKind.COUNTER,
    ),
)


class NcclOptions(Options, frozen=True):
    """What an operator may set."""

    directory: str = "/dev/shm"  # noqa: S108  (where the plugin puts its rings)
    window_s: float = 1.0
    """Operations are reduced to one record per window."""
    max_operations_per_s: int = 2000
    """Of one rank, in the columns that ranks are matched by; above it they are thinned out alike on all."""
    gpu_time: bool = True
    """Whether the plugin shall ask NCCL for times on the GPU."""
    sample_one_in: int = 1
    """With n, times on the GPU are asked for during `sample_s`, and then not for n - 1 times as long."""
    sample_s: float = 10.0
    """As long as several steps."""
    inspector_directory: str | None = None
    """Where NCCL's Inspector writes (NCCL_INSPECTOR_DUMP_DIR), for jobs that load it, not the plugin."""
    flight_recorder_prefix: str | None = "/tmp/nccl_trace_rank_"  # noqa: S108  (PyTorch's own default)
    """What PyTorch puts before the rank in the names of dumps (TORCH_NCCL_DEBUG_INFO_TEMP_FILE)."""
    run: str | None = None
    """Only processes of this `perfd run`, which tells it itself; None for all."""
    debug_files: tuple[str, ...] = ()
    """What NCCL writes with NCCL_DEBUG_FILE: files, or patterns with `*`."""


@dataclass(slots=True)
class _Process:
    """One watched process: its segment, and what was read since the last window ended."""

    segment: Segment
    recording: bool
    """Whether times on the GPU are asked for."""
    busy: BusyTime
    window_start_unix_ns: int
    pending: list[Operation] = field(default_factory=list)
    lost: int = 0
    untimed: int = 0


class NcclCollector:
    """Reads every segment often, so that no ring overflows, and reports once a window."""

    def __init__(self, options: NcclOptions, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._directory = Path(options.directory)
        if not self._directory.is_dir():
            raise Unavailable(f"{self._directory} is no directory; name the plugin's with `directory`.")
        check_sampling(options.sample_s, options.sample_one_in)
        self._processes: dict[Path, _Process] = {}
        self._others: set[Path] = set()
        """Segments of other jobs on this node."""
        self._unready: set[Path] = set()
        self._window_end_s = settings.clock.monotonic_s() + options.window_s
        inspected = options.inspector_directory
        self._inspector = InspectorDirectory(Path(inspected), settings) if inspected else None
        prefix = options.flight_recorder_prefix
        self._dumps = DumpDirectory(prefix, settings) if prefix else None
        self._debug = DebugFiles(options.debug_files, settings) if options.debug_files else None

    def collect(self) -> Sequence[Record]:
        self._find_processes()
        for process in self._processes.values():
            reading = process.segment.read()
            process.pending += reading.operations
            process.lost += reading.lost
        now_s = self._settings.clock.monotonic_s()
        if now_s < self._window_end_s:
            return []
        self._window_end_s = now_s + self._options.window_s
        records = [record for process in self._processes.values() for record in self._report(process)]
        for source in (self._inspector, self._dumps, self._debug):
            if source is not None:
                records += source.collect()
        self._forget_processes()
        self._switch()
        return records

    def close(self) -> None:
        for process in self._processes.values():
            process.segment.close()
        self._processes.clear()
        for followed in (self._inspector, self._debug):
            if followed is not None:
                followed.close()

    def _find_processes(self) -> None:
        for path in find_segments(self._directory):
            if path not in self._processes and path not in self._others and path not in self._unready:
                self._watch(path)

    def _forget_processes(self) -> None:
        sweep(self._directory, self._settings.clock.unix_ns() / 1e9)
        present = set(find_segments(self._directory))
        for path in set(self._processes) - present:
            self._processes.pop(path).segment.close()
        self._others &= present
        self._unready.clear()

    def _watch(self, path: Path) -> None:
        try:
            segment = Segment(path)
        except Unavailable:
            # Another user's, being made, or of another version: it is looked at again in the next window.
            self._unready.add(path)
            return
        if not self._is_ours(segment.process.pid):
            segment.close()
            self._others.add(path)
            return
        recording = self._in_sample()
        segment.want(_wanted(recording=recording))
        busy = BusyTime(segment.counters().started)
        self._processes[path] = _Process(segment, recording, busy, self._settings.clock.unix_ns())

    def _switch(self) -> None:
        recording = self._in_sample()
        for process in self._processes.values():
            if process.recording != recording:
                process.recording = recording
                process.segment.want(_wanted(recording=recording))

    def _in_sample(self) -> bool:
        options, now_unix_s = self._options, self._settings.clock.unix_ns() / 1e9
        return options.gpu_time and in_sample(now_unix_s, options.sample_s, options.sample_one_in)

    def _is_ours(self, pid: int) -> bool:
        """Whose environment cannot be read is taken for one of ours."""
        environment = environment_of(self._settings.proc, pid)
        return (
            self._options.run is None or not environment or environment.get(RUN_VARIABLE) == self._options.run
        )

    def _report(self, process: _Process) -> list[Record]:
        rank = process.segment.process.rank
        now_unix_ns = self._settings.clock.unix_ns()
        start_unix_ns, process.window_start_unix_ns = process.window_start_unix_ns, now_unix_ns
        operations, process.pending = process.pending, []
        if rank is None:
            return []
        window = Window(
            job=self._settings.job, rank=rank, start_unix_ns=start_unix_ns, end_unix_ns=now_unix_ns
        )
        communicators = {one.index: one for one in process.segment.communicators()}
        counters = process.segment.counters()
        process.busy.add(busy_ns(operations), counters.started, recording=process.recording)
        process.untimed += sum(one.timed and one.duration_ns is None for one in operations)
        keep = keep_one_in(len(operations), now_unix_ns - start_unix_ns, self._options.max_operations_per_s)
        return [
            *reduce_operations(operations, communicators, window, keep_one_in=keep),
            _totals(process, counters, window),
        ]


def _wanted(*, recording: bool) -> Wanted:
    return Wanted.OPERATIONS | (Wanted.GPU_TIME if recording else Wanted.NOTHING)


def _totals(process: _Process, counters: Counters, window: Window) -> SampleTable:
    busy_s = process.busy.total_s if process.segment.process.profiler_version >= 4 else None
    return SampleTable(
        scope=Scope.RANK,
        times_unix_ns=[window.end_unix_ns],
        entities=[f"{window.job}/{window.rank}"],
        columns={
            "nccl_busy_s": [math.nan if busy_s is None else busy_s],
            "nccl_operations": [float(counters.started)],
            "nccl_lost_operations": [float(counters.dropped + process.lost)],
            "nccl_untimed_operations": [float(counters.incomplete + process.untimed)],
        },
    )


def keep_one_in(operations: int, window_ns: int, max_per_s: int) -> int:
    """How far to thin out: a power of two, so that ranks that decide differently still share operations."""
    allowed = max(1.0, max_per_s * window_ns / 1e9)
    keep = 1
    while operations / keep > allowed:
        keep *= 2
    return keep


def _create(options: NcclOptions, settings: Settings) -> Collector:
    return NcclCollector(options, settings)


SPEC = CollectorSpec(
    name="nccl",
    options=NcclOptions,
    create=_create,
    interval_s=0.1,
    on_unavailable=OnUnavailable.IGNORE,
    columns=COLUMNS,
    replay={"nccl-inspector": RecordedInspector, "flight-recorder": RecordedDump},
)
