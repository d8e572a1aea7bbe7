"""The `launch_threads` collector: how busy launching threads and loader workers of the ranks' processes are.

It also has what these processes read and wrote. The processes are those that `ranks` found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from perfd.collector import CollectorSpec, Column, ColumnKind, Options, Settings
from perfd.model import RankColumn, Record, SampleTable, Scope
from perfd_collectors.host.small_files import names_in, read_bytes

_AUTOGRAD = b"pt_autograd_"
"""Names of the threads in which PyTorch runs the backward pass, while the main thread waits for it."""
_WORKER = b"pt_data_worker"
"""That of PyTorch's data loader workers, which are processes."""
_SCAN_EVERY = 32
"""Readings from one look at all threads to the next; in a process's first ones there are more."""
_MOST_THREADS = 512
"""Most threads read per process; those that launch kernels are among the first."""
_MOST_CHILDREN = 128
"""Most children read per process: more loader workers than cores are useless."""

_SOURCE = "/proc/PID/task/TID/schedstat"
COLUMNS: Sequence[Column] = (
    Column(
        scope=Scope.RANK,
        name=RankColumn.LAUNCH_BUSY.value,
        help="Time in which the rank's main thread or PyTorch's autograd threads ran or were ready to run.",
        source=_SOURCE,
        absent="Without PyTorch's autograd threads, or CONFIG_SCHED_INFO.",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name=RankColumn.LOADER_BUSY.value,
        help="Time in which the rank's PyTorch data loader workers ran or were ready to run, all together.",
        source=f"{_SOURCE} of its child processes named pt_data_worker",
        absent="Without CONFIG_SCHED_INFO, or such workers (PyTorch 2.6 names them).",
        kind=ColumnKind.COUNTER,
    ),
    Column(
        scope=Scope.RANK,
        name=RankColumn.LOADER_WORKERS.value,
        help="PyTorch data loader workers of the rank.",
        source="its child processes named pt_data_worker",
        absent="Without such workers.",
    ),
    Column(
        scope=Scope.RANK,
        name=RankColumn.IO.value,
        help="Bytes that the rank's process read and wrote: by system calls, or by storage if that is more.",
        source="/proc/PID/io",
        absent="Without CONFIG_TASK_IO_ACCOUNTING.",
        kind=ColumnKind.COUNTER,
    ),
)


class LaunchThreads:
    """Reads one process again and again; what it returns are counters since the first reading."""

    def __init__(self, proc: Path, pid: int) -> None:
        self._proc = proc
        self._tasks = proc / str(pid) / "task"
        self._pid = pid
        self._readings = 0
        self._own: list[Path] = []
        self._last: dict[Path, float] = {}
        self._busy_s = {RankColumn.LAUNCH_BUSY.value: 0.0, RankColumn.LOADER_BUSY.value: 0.0}
        self._last_io: tuple[int, int] | None = None
        self._io_bytes = 0

    def read(self) -> Mapping[str, float]:
        """The columns that are known; none for a process that is gone."""
        return {**self._read_threads(), **self._read_io()}

    def _read_io(self) -> Mapping[str, float]:
        now, last = _io_bytes(self._proc / str(self._pid) / "io"), self._last_io
        if now is None:
            return {}
        if last is not None:
            # A call counts when it returns, which may be after many seconds, storage page by page; but not
            # all that is read and written is storage.
            self._io_bytes += max(0, now[0] - last[0], now[1] - last[1])
        self._last_io = now
        return {RankColumn.IO.value: float(self._io_bytes)}

    def _read_threads(self) -> Mapping[str, float]:
        if self._readings % _SCAN_EVERY == 0 or self._readings & (self._readings - 1) == 0:
            self._own = [self._tasks / str(self._pid), *self._named(_AUTOGRAD)]
        self._readings += 1
        workers = self._workers()
        now = {task: busy for task in (*self._own, *workers) if (busy := _busy_s(task)) is not None}
        if self._own[0] not in now or len(self._own) == 1:
            # Without a thread of autograd it is unknown which thread launches.
            return {}
        self._count(RankColumn.LAUNCH_BUSY.value, self._own, now)
        self._count(RankColumn.LOADER_BUSY.value, workers, now)
        self._last = now
        if not workers:
            return {RankColumn.LAUNCH_BUSY.value: self._busy_s[RankColumn.LAUNCH_BUSY.value]}
        return {**self._busy_s, RankColumn.LOADER_WORKERS.value: float(len(workers))}

    def _count(self, column: str, tasks: Iterable[Path], now: Mapping[Path, float]) -> None:
        """What they did since the last reading; a thread that is new, or whose id is, counts from now on."""
        self._busy_s[column] += sum(
            max(0.0, now[task] - self._last[task]) for task in tasks if task in now and task in self._last
        )

    def _named(self, name: bytes) -> list[Path]:
        tasks = [self._tasks / task for task in names_in(self._tasks)[:_MOST_THREADS]]
        return [task for task in tasks if (read_bytes(task / "comm") or b"").startswith(name)]

    def _workers(self) -> list[Path]:
        children = (read_bytes(self._tasks / str(self._pid) / "children") or b"").split()[:_MOST_CHILDREN]
        pids = [child.decode() for child in children if child.isdigit()]
        tasks = [self._proc / pid / "task" / pid for pid in pids]
        return [task for task in tasks if (read_bytes(task / "comm") or b"").startswith(_WORKER)]


def _busy_s(task: Path) -> float | None:
    """Running, and ready to run."""
    fields = (read_bytes(task / "schedstat") or b"").split()
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    return (int(fields[0]) + int(fields[1])) / 1e9


def _io_bytes(file: Path) -> tuple[int, int] | None:
    """Read and written by system calls, and by storage."""
    lines = (line.partition(b":") for line in (read_bytes(file) or b"").splitlines())
    counted = {name: int(value) for name, _, value in lines if value.strip().isdigit()}
    if not counted.keys() >= {b"rchar", b"wchar", b"read_bytes", b"write_bytes"}:
        return None
    return counted[b"rchar"] + counted[b"wchar"], counted[b"read_bytes"] + counted[b"write_bytes"]


class LaunchThreadsOptions(Options, frozen=True):
    """No options."""


class LaunchThreadsCollector:
    """Reads each rank's process once a second."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._processes: dict[int, LaunchThreads] = {}

    def collect(self) -> Sequence[Record]:
        """One table with a row per rank; ranks of one process share what is read of it."""
        ranks = self._settings.local_jobs.ranks()
        pids = {rank.pid for rank in ranks}
        self._processes = {
            pid: self._processes.get(pid) or LaunchThreads(self._settings.proc, pid) for pid in pids
        }
        read = {pid: process.read() for pid, process in self._processes.items()}
        rows = {f"{rank.job}/{rank.rank}": read[rank.pid] for rank in ranks}
        table = SampleTable.of_rows(Scope.RANK, self._settings.clock.unix_ns(), rows)
        return [] if table is None else [table]

    def close(self) -> None:
        """Nothing to free."""
        self._processes.clear()


def _create(options: LaunchThreadsOptions, settings: Settings) -> LaunchThreadsCollector:  # noqa: ARG001
    return LaunchThreadsCollector(settings)


SPEC = CollectorSpec(
    name="launch_threads",
    options=LaunchThreadsOptions,
    create=_create,
    interval_s=1.0,
    columns=COLUMNS,
    provides=tuple(RankColumn(column.name) for column in COLUMNS),
)
