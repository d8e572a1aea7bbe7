"""The `nccl` collector: what the plugin recorded in each process of this node, reduced once a window."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perfd.capture.node import RUN_VARIABLE, environment_of
from perfd.collector import Collector, CollectorSpec, Column, ColumnKind, OnUnavailable, Options, Settings
from perfd.errors import NothingHere, Unavailable
from perfd.model import Event, EventKind, RankColumn, Record, SampleTable, Scope
from perfd_collectors.nccl.debug_log import DebugFiles
from perfd_collectors.nccl.flight_recorder import DumpDirectory, RecordedDump
from perfd_collectors.nccl.inspector import InspectorDirectory, RecordedInspector
from perfd_collectors.nccl.sampling import check_sampling, in_sample
from perfd_collectors.nccl.scan_budget import ScanBudget
from perfd_collectors.nccl.segments import (
    OwnerLocks,
    ReadRequest,
    Segment,
    SegmentProgress,
    SegmentReader,
    distrust,
    keep_one_in,
    same_file,
    segment_names,
    sweep,
    writer_of,
)

__all__ = ["COLUMNS", "SPEC", "NcclCollector", "NcclOptions", "keep_one_in"]

_MOST_TOLD = 64
"""Files that are not believed, of those that are there at one time: anybody can make many."""
_MOST_LOOKS = 64
"""At files that are not read yet, ten times a second; what a process needs between two is less."""
_MOST_SWEPT = 256
"""Files that are not read, a window."""
_BOOKMARK = msgspec.json.Decoder(dict[str, SegmentProgress])

COLUMNS = (
    Column(
        scope=Scope.RANK,
        name="nccl_busy_s",
        help="Time in which at least one NCCL kernel was on the rank's GPU, waiting for peers included.",
        source="perfd's NCCL plugin: union of the kernels' intervals by the GPU's clock; between samples by"
        " the number of operations",
        absent="Without the plugin, with `gpu_time: false`, or an NCCL before 2.27, which tells no GPU time.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_operations",
        help="Collectives, sends and receives that the plugin saw.",
        source="perfd's NCCL plugin",
        absent="Without the plugin.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_lost_operations",
        help="Operations that were seen but not read: a ring overflowed, or no ring was free.",
        source="perfd's NCCL plugin, and the gaps that its reader finds",
        absent="Without the plugin.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_untimed_operations",
        help="Operations whose time on the GPU never came, or cannot be right.",
        source="perfd's NCCL plugin",
        absent="Without the plugin.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.NODE,
        name="nccl_ignored_segments",
        help="Files that look like those of the NCCL plugin and are not believed; an event says why of each.",
        source="owner, layout and lock of the files in the plugin's directory",
        absent="Without any of the plugin's files.",
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
    debug_files: tuple[str, ...] = ()
    """What NCCL writes with NCCL_DEBUG_FILE: files, or patterns with `*`."""


class NcclCollector:
    """Reads every segment often, so that no ring overflows, and reports once a window."""

    def __init__(self, options: NcclOptions, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._directory = Path(options.directory)
        if not self._directory.is_dir():
            raise Unavailable(f"{self._directory} is no directory; name the plugin's with `directory`.")
        check_sampling(options.sample_s, options.sample_one_in)
        self._processes: dict[Path, SegmentReader] = {}
        self._progress = _read_bookmark(settings.bookmark.text)
        """By file name, of segments that an earlier agent read and this one has not yet opened."""
        self._others: set[Path] = set()
        """Segments of other jobs on this node."""
        self._looks = ScanBudget(_MOST_LOOKS)
        self._windows = 0
        self._ignored: dict[Path, str] = {}
        """Files that are not believed, and why."""
        self._told: set[Path] = set()
        self._window_end_s = settings.clock.monotonic_s() + options.window_s
        inspected = options.inspector_directory
        self._inspector = InspectorDirectory(Path(inspected), settings) if inspected else None
        prefix = options.flight_recorder_prefix
        self._dumps = DumpDirectory(prefix, settings) if prefix else None
        self._debug = DebugFiles(options.debug_files, settings) if options.debug_files else None

    def collect(self) -> Sequence[Record]:
        for process in self._processes.values():
            process.read()
        self._find_processes()
        now_s = self._settings.clock.monotonic_s()
        if now_s < self._window_end_s:
            # A job's last word is often why it ended; the rings' last moment is no whole window.
            return self._read_files() if self._settings.ending.is_set() else []
        self._window_end_s = now_s + self._options.window_s
        records = self._report() + self._read_files()
        self._forget_processes()
        wanted = _wanted(recording=self._in_sample())
        for process in self._processes.values():
            process.switch(wanted)
        return records

    def _read_files(self) -> list[Record]:
        sources = (self._inspector, self._dumps, self._debug)
        return [record for source in sources if source is not None for record in source.collect()]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        for followed in (self._inspector, self._debug):
            if followed is not None:
                followed.close()

    def _find_processes(self) -> None:
        locks = OwnerLocks(self._settings.proc)
        for name in self._looks.next(segment_names(self._directory)):
            self._ignored.pop(self._directory / name, None)
            self._watch(self._directory / name, locks)

    def _forget_processes(self) -> None:
        self._sweep()
        names = segment_names(self._directory)
        present = {self._directory / name for name in names}
        for path in set(self._processes) - present:
            self._processes.pop(path).close()
        self._others &= present
        self._told &= present
        self._ignored = {path: why for path, why in self._ignored.items() if path in present}
        self._progress = {name: self._progress[name] for name in names if name in self._progress}
        # The rest is looked at again: what is being made is whole then.
        self._looks.begin_window(names, {path.name for path in (*self._processes, *self._others)})

    def _sweep(self) -> None:
        """Of the files that are read all, of very many others some in each window."""
        watched = {path.name for path in self._processes}
        others = [name for name in segment_names(self._directory) if name not in watched]
        first = self._windows * _MOST_SWEPT % max(1, len(others))
        self._windows += 1
        chosen = [*watched, *(others[first:] + others[:first])[:_MOST_SWEPT]]
        sweep((self._directory / name for name in chosen), self._settings.clock.unix_ns() / 1e9)

    def _watch(self, path: Path, locks: OwnerLocks) -> None:
        try:
            segment = Segment(path)
        except NothingHere:
            return
        except Unavailable as error:
            self._ignored[path] = str(error)
            return
        pid, status = segment.process.pid, segment.status()
        reason = distrust(locks, status, pid, os.geteuid())
        if any(same_file(process, segment) for process in self._processes.values()):
            reason = "it is another name of a file that is read already"
        pid = writer_of(locks, status, pid) or pid
        if reason:
            self._ignored[path] = f"{path} is not read: {reason}."
        elif not self._is_ours(pid):
            self._others.add(path)
        else:
            now_unix_ns, progress = self._settings.clock.unix_ns(), self._progress.pop(path.name, None)
            self._processes[path] = SegmentReader(segment, now_unix_ns, progress)
            return
        segment.close()

    def _in_sample(self) -> bool:
        options, now_unix_s = self._options, self._settings.clock.unix_ns() / 1e9
        return options.gpu_time and in_sample(now_unix_s, options.sample_s, options.sample_one_in)

    def _is_ours(self, pid: int) -> bool:
        """Whose environment cannot be read is taken for one of ours."""
        run, environment = self._settings.run, environment_of(self._settings.proc, pid)
        return run is None or not environment or environment.get(RUN_VARIABLE) == run

    def _report(self) -> list[Record]:
        job, now_unix_ns = self._settings.job, self._settings.clock.unix_ns()
        most = self._options.max_operations_per_s
        records = [
            record
            for process in self._processes.values()
            for record in process.report(job, now_unix_ns, most)
        ]
        progress = {path.name: process.progress() for path, process in self._processes.items()}
        self._settings.bookmark.text = msgspec.json.encode(self._progress | progress).decode()
        if self._processes or self._ignored:
            records.append(_ignored_segments(len(self._ignored), now_unix_ns))
        news = [path for path in self._ignored if path not in self._told]
        for path in news[: _MOST_TOLD - len(self._told)]:
            self._told.add(path)
            records.append(
                Event(
                    kind=EventKind.NCCL_WARNING,
                    time_unix_ns=now_unix_ns,
                    message=self._ignored[path],
                    job=job,
                )
            )
        return records


def _wanted(*, recording: bool) -> ReadRequest:
    return ReadRequest.OPERATIONS | (ReadRequest.GPU_TIME if recording else ReadRequest.NOTHING)


def _ignored_segments(count: int, now_unix_ns: int) -> SampleTable:
    return SampleTable(
        scope=Scope.NODE,
        times_unix_ns=[now_unix_ns],
        entities=[""],
        columns={"nccl_ignored_segments": [float(count)]},
    )


def _read_bookmark(text: str | None) -> dict[str, SegmentProgress]:
    try:
        return _BOOKMARK.decode(text) if text else {}
    except msgspec.DecodeError:
        return {}  # Of another version: what is in the rings is read from their beginning.


def _create(options: NcclOptions, settings: Settings) -> Collector:
    return NcclCollector(options, settings)


SPEC = CollectorSpec(
    name="nccl",
    options=NcclOptions,
    create=_create,
    interval_s=0.1,
    on_unavailable=OnUnavailable.IGNORE,
    columns=COLUMNS,
    provides=tuple(RankColumn),
    replay={"nccl-inspector": RecordedInspector, "flight-recorder": RecordedDump},
)
