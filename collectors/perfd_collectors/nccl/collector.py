"""The `nccl` collector: NCCL operations that the plugin recorded in each process, reduced once per window."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfd.clock import common_start_s
from perfd.collector import (
    CollectorSpec,
    Column,
    ColumnKind,
    NumberedRank,
    OnUnavailable,
    Options,
    Settings,
)
from perfd.errors import NothingHere, Unavailable
from perfd.model import Event, EventKind, RankColumn, Record, SampleTable, Scope
from perfd_collectors.nccl.debug_log import DebugFiles
from perfd_collectors.nccl.flight_recorder import DumpDirectory, RecordedDump
from perfd_collectors.nccl.inspector import InspectorDirectory, RecordedInspector
from perfd_collectors.nccl.job_ranks import JobRanks
from perfd_collectors.nccl.sampling import check_sampling, in_sample
from perfd_collectors.nccl.scan_budget import ScanBudget
from perfd_collectors.nccl.segment_progress import SegmentProgress
from perfd_collectors.nccl.segments import (
    NO_RANKS,
    FileLocks,
    PrivateSegments,
    RecordingMode,
    Segment,
    ownership_problem,
    remove_left_over,
    segment_names,
    writer_of,
)
from perfd_collectors.ranks.process_jobs import ProcessJobs

__all__ = ["COLUMNS", "SPEC", "NcclCollector", "NcclOptions"]

if TYPE_CHECKING:
    from perfd_collectors.nccl.operations import SegmentReader

_MAX_REPORTED_FILES = 64
"""Untrusted files with an event each; any user of the node can create more. Chosen, not measured."""
_MAX_FILES_PER_COLLECT = 64
"""Unread files opened per collect (ten times per second), which bounds the cost when a user creates many."""
_MAX_REMOVAL_CHECKS_PER_WINDOW = 256
"""Unread files checked for a dead owner per window; the rest wait for the next windows."""
_BOOKMARK = msgspec.json.Decoder(dict[str, SegmentProgress])

COLUMNS = (
    Column(
        scope=Scope.RANK,
        name="nccl_busy_s",
        help="Time in which at least one NCCL kernel was on the rank's GPU, waiting for peers included.",
        source="perfd's NCCL plugin: union of the kernels' intervals by the GPU's clock; between samples by"
        " the number of operations",
        absent="Without the plugin, with `gpu_time: false`, or before NCCL 2.27, which reports no GPU time.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_operations",
        help="Collectives, sends and receives that NCCL announced to the plugin.",
        source="perfd's NCCL plugin",
        absent="Without the plugin.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_lost_operations",
        help="Operations without a record: a ring buffer overflowed, or none was free.",
        source="perfd's NCCL plugin, and gaps in its ring buffers",
        absent="Without the plugin.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name="nccl_untimed_operations",
        help="Operations without a GPU time, or with an impossible one.",
        source="perfd's NCCL plugin",
        absent="Without the plugin.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.NODE,
        name="nccl_ignored_segments",
        help="Files named like the NCCL plugin's but not trusted; an event per file gives the reason.",
        source="owner, layout and lock of the files in the plugin's directory",
        absent="Without any of the plugin's files.",
    ),
)


class NcclOptions(Options, frozen=True):
    """What an operator may set."""

    directory: str = "/dev/shm"  # noqa: S108  (where the plugin puts its segments)
    window_s: float = 1.0
    """Operations are reduced to one record per communicator, kind and window."""
    max_operations_per_s: int = 2000
    """Operations per rank that are sent one by one; above it, all ranks leave out the same ones."""
    gpu_time: bool = True
    """Whether the plugin asks NCCL for times on the GPU."""
    sample_one_in: int = 1
    """Record GPU times during one of n intervals of `sample_s`; 1 records always."""
    sample_s: float = 10.0
    """Length of a sample; should cover several steps."""
    inspector_directory: str | None = None
    """Where NCCL's Inspector writes (NCCL_INSPECTOR_DUMP_DIR), for jobs that load it, not the plugin."""
    flight_recorder_prefix: str | None = "/tmp/nccl_trace_rank_"  # noqa: S108  (PyTorch's own default)
    """Path of PyTorch's flight recorder dumps, without the rank (TORCH_NCCL_DEBUG_INFO_TEMP_FILE)."""
    debug_files: tuple[str, ...] = ()
    """Files that NCCL writes with NCCL_DEBUG_FILE, or patterns with `*`."""


class NcclCollector:
    """Reads every segment often, so that no ring buffer overflows, and reports once per window."""

    def __init__(self, options: NcclOptions, settings: Settings) -> None:
        self._options = options
        self._settings = settings
        self._directory = Path(options.directory)
        if not self._directory.is_dir():
            raise Unavailable(f"{self._directory} is not a directory; set `directory` to the plugin's.")
        check_sampling(options.sample_s, options.sample_one_in)
        self._processes: dict[Path, SegmentReader] = {}
        self._progress = _read_bookmark(settings.bookmark.text)
        """By name: segments that an earlier agent read and this one has not opened yet."""
        self._ranks: dict[str, JobRanks] = {}
        """By job."""
        self._jobs = ProcessJobs(settings)
        self._pids: dict[Path, int] = {}
        """Of the processes whose segments are read, in our namespace."""
        self._other_jobs: set[Path] = set()
        """Segments that another agent reads."""
        self._private = PrivateSegments(settings.proc)
        self._private_paths: Mapping[str, int] = {}
        """With the process of each, as of this window's begin."""
        self._scan_budget = ScanBudget(_MAX_FILES_PER_COLLECT)
        self._windows = 0
        self._ignored: dict[Path, str] = {}
        """Files that are not trusted, and why."""
        self._reported_files: set[Path] = set()
        self._window_end_s = self._next_window_end_s()
        inspected = options.inspector_directory
        self._inspector = InspectorDirectory(Path(inspected), settings) if inspected else None
        prefix = options.flight_recorder_prefix
        self._dumps = DumpDirectory(prefix, settings) if prefix else None
        self._debug = DebugFiles(options.debug_files, settings) if options.debug_files else None

    def collect(self) -> Sequence[Record]:
        now_s = self._settings.clock.monotonic_s()
        reports = now_s >= self._window_end_s
        for process in self._processes.values():
            process.read(only_filling=not reports)
        self._find_processes()
        if not reports:
            # A job's last log lines often say why it ended; the segments wait for a full window.
            return self._read_files() if self._settings.ending.is_set() else []
        self._window_end_s = self._next_window_end_s()
        records = self._report() + self._read_files()
        self._forget_processes()
        mode = _recording_mode(gpu_time=self._in_sample())
        for process in self._processes.values():
            process.switch(mode)
        return records

    def _next_window_end_s(self) -> float:
        """At a multiple of the window in Unix time, like all readings: soon after that the agent sends."""
        clock, window_s = self._settings.clock, self._options.window_s
        end_s = common_start_s(window_s, clock) + window_s
        return end_s if end_s - clock.monotonic_s() > window_s / 2 else end_s + window_s

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
        locks = FileLocks(self._settings.proc)
        for name in self._scan_budget.next(self._names()):
            self._ignored.pop(self._directory / name, None)
            self._open_segment(self._directory / name, locks)

    def _names(self) -> list[str]:
        """Names of the segments in the directory, and paths of those elsewhere."""
        return [*segment_names(self._directory), *self._private_paths]

    def _name(self, path: Path) -> str:
        """The name of a segment in the directory, the path of one elsewhere."""
        return path.name if path.parent == self._directory else str(path)

    def _forget_processes(self) -> None:
        self._remove_left_over()
        self._private_paths = self._private.paths(FileLocks(self._settings.proc).all_holders())
        names = self._names()
        present = {self._directory / name for name in names}
        for path in set(self._processes) - present:
            self._drop(path)
        self._jobs.keep(self._pids.values())
        self._other_jobs &= present
        self._reported_files &= present
        self._ignored = {path: why for path, why in self._ignored.items() if path in present}
        self._progress = {name: self._progress[name] for name in names if name in self._progress}
        # The rest is tried again: a segment that was being created may be complete by then.
        skipped = {self._name(path) for path in (*self._processes, *self._other_jobs)}
        self._scan_budget.begin_window(names, skipped)

    def _drop(self, path: Path) -> None:
        self._processes.pop(path).close()
        del self._pids[path]

    def _remove_left_over(self) -> None:
        """Remove segments of dead processes: all that are read, some of the others per window.

        Those elsewhere go with their container.
        """
        read = {path.name for path in self._processes if path.parent == self._directory}
        others = [name for name in segment_names(self._directory) if name not in read]
        first = self._windows * _MAX_REMOVAL_CHECKS_PER_WINDOW % max(1, len(others))
        self._windows += 1
        chosen = [*read, *(others[first:] + others[:first])[:_MAX_REMOVAL_CHECKS_PER_WINDOW]]
        remove_left_over((self._directory / name for name in chosen), self._settings.clock.unix_ns() / 1e9)

    def _open_segment(self, path: Path, locks: FileLocks) -> None:
        try:
            segment = Segment(path)
        except NothingHere:
            return
        except Unavailable as error:
            self._ignored[path] = str(error)
            return
        stated, status = segment.process.pid, segment.status()
        pid = writer_of(locks, status, stated) or stated
        job = self._jobs.job_of(pid)
        user = self._settings.local_jobs.uid(job or self._settings.job)
        reason = ownership_problem(locks, status, stated, os.geteuid(), user)
        second = any(process.file == segment.identity() for process in self._processes.values())
        if second:
            reason = "it is a second name of a file that is already read"
        viewer = self._private_paths.get(str(path))
        if viewer is not None and (second or viewer != pid):
            # Containers that share a directory each show what is in it.
            self._other_jobs.add(path)
        elif reason:
            self._ignored[path] = f"{path} is ignored: {reason}."
        elif job is None:
            self._other_jobs.add(path)
        else:
            # Imported with the first segment: without the plugin, an agent does not need numpy's memory.
            from perfd_collectors.nccl.operations import SegmentReader  # noqa: PLC0415

            now_unix_ns, progress = self._settings.clock.unix_ns(), self._progress.pop(self._name(path), None)
            self._processes[path] = SegmentReader(segment, now_unix_ns, progress)
            self._pids[path] = pid
            return
        segment.close()

    def _in_sample(self) -> bool:
        options, now_unix_s = self._options, self._settings.clock.unix_ns() / 1e9
        return options.gpu_time and in_sample(now_unix_s, options.sample_s, options.sample_one_in)

    def _by_job(self) -> dict[str, dict[Path, SegmentReader]]:
        """The readers by job, looked up each time: a pod's job or agent may be found after its process."""
        found: dict[str, dict[Path, SegmentReader]] = {}
        for path in [*self._processes]:
            job = self._jobs.job_of(self._pids[path])
            if job is None:
                self._drop(path)
                self._other_jobs.add(path)
            else:
                found.setdefault(job, {})[path] = self._processes[path]
        return found

    def _report(self) -> list[Record]:
        job, now_unix_ns = self._settings.job, self._settings.clock.unix_ns()
        by_job = self._by_job()
        self._ranks = {name: self._ranks.get(name) or JobRanks(self._settings.proc) for name in by_job}
        records: list[Record] = []
        numbered: dict[int, Sequence[NumberedRank]] = {}
        for name, readers in by_job.items():
            ranks = self._ranks[name].number(readers, self._pids)
            numbered |= self._ranks[name].by_process()
            for path, reader in readers.items():
                records += reader.report(
                    name,
                    now_unix_ns,
                    self._options.max_operations_per_s,
                    ranks.get(path, NO_RANKS),
                )
        self._settings.communicating_ranks.replace(numbered)
        progress = {self._name(path): process.progress() for path, process in self._processes.items()}
        self._settings.bookmark.text = msgspec.json.encode(self._progress | progress).decode()
        if self._processes or self._ignored:
            records.append(SampleTable.of_node(now_unix_ns, {"nccl_ignored_segments": len(self._ignored)}))
        unreported = [path for path in self._ignored if path not in self._reported_files]
        for path in unreported[: _MAX_REPORTED_FILES - len(self._reported_files)]:
            self._reported_files.add(path)
            records.append(
                Event(
                    kind=EventKind.NCCL_WARNING,
                    time_unix_ns=now_unix_ns,
                    message=self._ignored[path],
                    job=job,
                )
            )
        return records


def _recording_mode(*, gpu_time: bool) -> RecordingMode:
    return RecordingMode.OPERATIONS | (RecordingMode.GPU_TIME if gpu_time else RecordingMode.NOTHING)


def _read_bookmark(text: str | None) -> dict[str, SegmentProgress]:
    try:
        return _BOOKMARK.decode(text) if text else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}  # Written by another version: the ring buffers are read from their oldest record.


SPEC = CollectorSpec(
    name="nccl",
    options=NcclOptions,
    create=NcclCollector,
    interval_s=0.1,
    on_unavailable=OnUnavailable.IGNORE,
    columns=COLUMNS,
    provides=(
        RankColumn.NCCL_BUSY,
        RankColumn.NCCL_OPERATIONS,
        RankColumn.NCCL_LOST_OPERATIONS,
    ),
    replay={"nccl-inspector": RecordedInspector, "flight-recorder": RecordedDump},
)
