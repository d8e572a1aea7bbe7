"""What the kernel counts for every process: time on CPUs, waiting for them, for storage and for memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfd_collectors.host.small_files import names_in, read_bytes

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_THREADS = 512
"""Threads of a process that are scanned; bounds the cost. A rank of PyTorch has 100 to 300. Chosen."""
_FOLLOWED = 16
"""Threads that are read between scans: a rank computes and launches in fewer. Chosen, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTimes:
    """One thread's cumulative times."""

    run_s: float
    wait_s: float
    """Runnable, and waiting for a CPU."""
    io_s: float | None = None
    """Waiting for block I/O and for pages from swap; None without the kernel's delay accounting."""
    cpu: int | None = None
    """Where it ran last."""
    blocked: bool = False
    """In uninterruptible sleep, as during a read from storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimes:
    """One process's counters at one instant."""

    at_s: float
    """By a monotonic clock."""
    threads: Mapping[int, ThreadTimes] = field(default_factory=dict)
    """Those that are followed, by thread id."""
    cpu_s: float | None = None
    """Of all threads."""
    major_faults: int | None = None
    swapped_bytes: float | None = None
    cpus: frozenset[int] = frozenset()
    """Where it may run; empty when unknown."""
    throttled_periods: int | None = None
    periods: int | None = None
    """Of its cgroup's CPU quota; None without one."""


class ProcessReader:
    """Reads one process again and again: all its threads now and then, else those that do something.

    `cpu_stat` is the file with the counters of its cgroup's CPU quota.
    """

    def __init__(self, folder: Path, *, cpu_stat: Path | None, delay_accounting: bool) -> None:
        self._folder = folder
        self._cpu_stat = cpu_stat
        self._delay_accounting = delay_accounting
        self._all: dict[int, tuple[float, float]] = {}
        """Of all threads at the newest scan, run and waiting times."""
        self._followed: list[int] = []

    def read(self, at_s: float, *, scan: bool) -> ProcessTimes | None:
        """The counters now; None when the process is gone. `scan` looks which threads do something."""
        stat = parse_task_stat(read_bytes(self._folder / "stat") or b"")
        if stat is None:
            return None
        if scan or not self._followed:
            self._scan()
        threads = {tid: times for tid in self._followed if (times := self._thread(tid)) is not None}
        status = read_bytes(self._folder / "status") or b""
        throttled, periods = parse_cpu_stat(read_bytes(self._cpu_stat or "") or b"")
        return ProcessTimes(
            at_s=at_s,
            threads=threads,
            cpu_s=stat.cpu_s,
            major_faults=stat.major_faults,
            swapped_bytes=parse_swapped_bytes(status),
            cpus=parse_allowed_cpus(status),
            throttled_periods=throttled,
            periods=periods,
        )

    def _scan(self) -> None:
        found = {}
        for name in names_in(self._folder / "task")[:_MAX_THREADS]:
            times = parse_schedstat(read_bytes(self._folder / "task" / name / "schedstat") or b"")
            if name.isdigit() and times is not None:
                found[int(name)] = times
        done = {tid: sum(times) - sum(self._all.get(tid, (0.0, 0.0))) for tid, times in found.items()}
        busiest = sorted(done, key=lambda tid: -done[tid])[:_FOLLOWED]
        # The main thread launches kernels, however little it did lately.
        main = int(self._folder.name) if self._folder.name.isdigit() else -1
        self._followed = list(dict.fromkeys([*([main] if main in found else []), *busiest]))
        self._all = found

    def _thread(self, tid: int) -> ThreadTimes | None:
        folder = self._folder / "task" / str(tid)
        times = parse_schedstat(read_bytes(folder / "schedstat") or b"")
        stat = parse_task_stat(read_bytes(folder / "stat") or b"")
        if times is None:
            return None
        return ThreadTimes(
            run_s=times[0],
            wait_s=times[1],
            io_s=stat.io_s if stat is not None and self._delay_accounting else None,
            cpu=None if stat is None else stat.cpu,
            blocked=stat is not None and stat.state == "D",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStat:
    """Fields of the `stat` file of a process or thread."""

    state: str
    major_faults: int
    cpu_s: float
    cpu: int | None
    io_s: float | None


def parse_task_stat(content: bytes) -> TaskStat | None:
    """Parse /proc/PID/stat or /proc/PID/task/TID/stat; None when it is not one."""
    fields = content.rpartition(b")")[2].split()
    # Field 3 of proc(5), the state, is the first of these.
    if len(fields) < 13 or not all(fields[at].isdigit() for at in (9, 11, 12)):
        return None
    more = [fields[at] if len(fields) > at and fields[at].isdigit() else None for at in (36, 39)]
    return TaskStat(
        state=fields[0].decode("ascii", "replace"),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        cpu=None if more[0] is None else int(more[0]),
        io_s=None if more[1] is None else int(more[1]) / _TICKS_PER_S,
    )


def parse_schedstat(content: bytes) -> tuple[float, float] | None:
    """Seconds on a CPU and seconds of waiting for one, from /proc/PID/task/TID/schedstat."""
    fields = content.split()
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    return int(fields[0]) / 1e9, int(fields[1]) / 1e9


def parse_cpu_stat(content: bytes) -> tuple[int | None, int | None]:
    """Periods in which a CPU quota was used up, and all periods, from a cgroup's cpu.stat."""
    values = {
        key: int(value)
        for key, _, value in (line.partition(b" ") for line in content.splitlines())
        if value.strip().isdigit()
    }
    return values.get(b"nr_throttled"), values.get(b"nr_periods")


def parse_swapped_bytes(status: bytes) -> float | None:
    """Bytes in swap, from /proc/PID/status."""
    value = _status_field(status, b"VmSwap").split()
    return float(value[0]) * 1024 if value and value[0].isdigit() else None


def parse_allowed_cpus(status: bytes) -> frozenset[int]:
    """CPUs that a process may use, from /proc/PID/status; empty when unknown."""
    return parse_cpu_list(_status_field(status, b"Cpus_allowed_list"))


def parse_cpu_list(text: bytes) -> frozenset[int]:
    """CPUs of a list such as `0-3,8`; empty when it is none."""
    found: set[int] = set()
    for part in text.strip().split(b","):
        first, _, last = part.partition(b"-")
        if not first.isdigit() or (last and not last.isdigit()) or len(last or first) > 6:
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def parse_cpu_busy_s(stat: bytes) -> Mapping[int, float]:
    """By CPU, seconds in which it was not idle since boot, from /proc/stat."""
    found = {}
    for line in stat.splitlines():
        name, *values = line.split() or [b""]
        if name[:3] == b"cpu" and name[3:].isdigit() and len(values) >= 5:
            ticks = [int(value) for value in values[:8] if value.isdigit()]
            if len(ticks) >= 5:
                # The fourth and fifth are idle time.
                found[int(name[3:])] = (sum(ticks) - ticks[3] - ticks[4]) / _TICKS_PER_S
        elif found:
            break
    return found


def cpu_stat_file(sys: Path, cgroup: bytes) -> Path | None:
    """Where the counters of a process's CPU quota are, by its /proc/PID/cgroup; None without any."""
    root = sys / "fs" / "cgroup"
    candidates: list[Path] = []
    for line in cgroup.decode("utf-8", "replace").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        # A path of another namespace may begin with `..`.
        inside = path.strip().lstrip("/")
        if ".." in inside.split("/"):
            inside = ""
        if controllers == "" or "cpu" in controllers.split(","):
            base = root if controllers == "" else root / "cpu"
            candidates += [base / inside / "cpu.stat", base / "cpu.stat"]
    return next((file for file in candidates if file.is_file()), None)


def _status_field(status: bytes, name: bytes) -> bytes:
    for line in status.splitlines():
        key, _, value = line.partition(b":")
        if key == name:
            return value.strip()
    return b""
