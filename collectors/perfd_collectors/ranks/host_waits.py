"""Why the host of a rank is late: shares of time that its threads wait, by what for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.collector import Column
from perfd.model import RankColumn, RankPlacement, SampleTable, Scope
from perfd_collectors.host.small_files import read_bytes
from perfd_collectors.ranks.thread_times import (
    ProcessReader,
    ProcessTimes,
    cpu_stat_file,
    parse_cpu_busy_s,
    parse_cpu_list,
)

_SCAN_EVERY = 6
"""Readings from one scan of all threads to the next: 30 s. Chosen, not measured."""
_STATES = 12
"""Newest readings whose states stand for the time that is spent in them, without delay accounting: 60 s."""
_FEWEST_BLOCKED = 3
"""Of these, in state D, that are a share of time: one or two may be of a moment. Chosen."""

COLUMNS: Sequence[Column] = tuple(
    Column(scope=Scope.RANK, name=name.value, help=text, source=source, absent=absent)
    for name, text, source, absent in (
        (
            RankColumn.CPU_WAIT,
            "Share of time in which the rank's thread that waits most was ready to run and had no CPU.",
            "/proc/PID/task/TID/schedstat of the busiest 16 threads and the main thread",
            "Without CONFIG_SCHED_INFO.",
        ),
        (
            RankColumn.CPU_THROTTLED,
            "Share of the cgroup's CPU periods in which its quota was used up, so that its threads stood.",
            "cpu.stat of the process's cgroup",
            "Without a CPU quota, or where the cgroup is not visible.",
        ),
        (
            RankColumn.CPU_DEMAND,
            "Time those threads ran or waited for a CPU, over the time of the CPUs that the rank may use.",
            "/proc/PID/task/TID/schedstat, Cpus_allowed_list",
            "Without CONFIG_SCHED_INFO.",
        ),
        (
            RankColumn.IO_WAIT,
            "Share of time in which the rank's thread that waits most waited for storage or swap.",
            "delay accounting in /proc/PID/task/TID/stat; else readings in state D during the newest minute",
            "Without delay accounting for a minute, and while few of its readings are in state D.",
        ),
        (
            RankColumn.MAJOR_FAULTS,
            "Page faults per second that had to read from storage.",
            "/proc/PID/stat",
            "Before a second reading.",
        ),
        (RankColumn.SWAPPED, "Memory of the rank's process in swap.", "VmSwap", "Without swap accounting."),
        (
            RankColumn.REMOTE_NUMA,
            "Share of the threads' running time on CPUs that are not local to the rank's GPU.",
            "the CPU in /proc/PID/task/TID/stat, local_cpulist of the GPU's PCI device",
            "Where the GPU or its CPUs are unknown, or all CPUs are local.",
        ),
        (
            RankColumn.OTHERS_CPU,
            "Share of the time of the CPUs that the rank may use, used by processes other than ranks.",
            "/proc/stat, /proc/PID/stat; data loader workers are such processes",
            "Where its CPUs are unknown.",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeCpus:
    at_s: float
    busy_s: Mapping[int, float]


class HostWaits:
    """Reads the processes of ranks below a /proc, and reports rates between two readings."""

    def __init__(self, proc: Path, sys: Path) -> None:
        self._proc = proc
        self._sys = sys
        self._delay_accounting = (read_bytes(proc / "sys/kernel/task_delayacct") or b"").strip() == b"1"
        self._readers: dict[tuple[int, int | None], ProcessReader] = {}
        self._before: dict[tuple[int, int | None], ProcessTimes] = {}
        self._states: dict[tuple[int, int | None], deque[bool]] = {}
        self._node: _NodeCpus | None = None
        self._readings = 0

    def collect(
        self,
        ranks: Sequence[RankPlacement],
        local_cpus: Mapping[int, frozenset[int]],
        now_s: float,
        now_unix_ns: int,
    ) -> SampleTable | None:
        """One row per rank that was read twice; None without any. `local_cpus` is by GPU index."""
        scan = self._readings % _SCAN_EVERY == 0
        self._readings += 1
        keys: dict[tuple[int, int | None], list[RankPlacement]] = {}
        for rank in ranks:
            if rank.pid is not None:
                keys.setdefault(_key(rank), []).append(rank)
        node = _NodeCpus(at_s=now_s, busy_s=parse_cpu_busy_s(read_bytes(self._proc / "stat") or b""))
        now = {key: times for key in keys if (times := self._reader(key).read(now_s, scan=scan)) is not None}
        self._readers = {key: reader for key, reader in self._readers.items() if key in now}
        self._states = {key: states for key, states in self._states.items() if key in now}
        for key, times in now.items():
            states = self._states.setdefault(key, deque(maxlen=_STATES))
            states.append(any(thread.blocked for thread in times.threads.values()))
        rows = {
            f"{rank.job}/{rank.rank}": {
                **rates(self._before[key], times, local_cpus.get(_gpu(rank), frozenset())),
                RankColumn.OTHERS_CPU: self._others(key, now, node),
                **self._io_by_state(key),
            }
            for key, times in now.items()
            for rank in keys[key]
            if key in self._before and times.at_s > self._before[key].at_s
        }
        self._before, self._node = now, node
        return SampleTable.of_rows(Scope.RANK, now_unix_ns, rows)

    def _reader(self, key: tuple[int, int | None]) -> ProcessReader:
        if key not in self._readers:
            folder = self._proc / str(key[0])
            cgroup = read_bytes(folder / "cgroup") or b""
            self._readers[key] = ProcessReader(
                folder, cpu_stat=cpu_stat_file(self._sys, cgroup), delay_accounting=self._delay_accounting
            )
        return self._readers[key]

    def _io_by_state(self, key: tuple[int, int | None]) -> Mapping[str, float]:
        states = self._states[key]
        if self._delay_accounting or len(states) < _STATES:
            return {}
        older, newer = list(states)[: _STATES // 2], list(states)[_STATES // 2 :]
        lasts = sum(states) >= _FEWEST_BLOCKED and any(older) and any(newer)
        # Seen only in one half of the minute it was a start, or a checkpoint.
        return {RankColumn.IO_WAIT: sum(states) / len(states)} if lasts or not any(states) else {}

    def _others(
        self,
        key: tuple[int, int | None],
        now: Mapping[tuple[int, int | None], ProcessTimes],
        node: _NodeCpus,
    ) -> float:
        cpus, before = now[key].cpus, self._node
        if before is None or not cpus or node.at_s <= before.at_s:
            return math.nan
        used_s = sum(node.busy_s.get(cpu, 0.0) - before.busy_s.get(cpu, 0.0) for cpu in cpus)
        for other, times in now.items():
            earlier = self._before.get(other)
            if earlier is not None and times.cpu_s is not None and earlier.cpu_s is not None and times.cpus:
                shared = len(cpus & times.cpus) / len(times.cpus)
                used_s -= shared * (times.cpu_s - earlier.cpu_s)
        return min(1.0, max(0.0, used_s / (len(cpus) * (node.at_s - before.at_s))))


def rates(before: ProcessTimes, now: ProcessTimes, local: frozenset[int]) -> Mapping[str, float]:
    """What a rank's process did between two readings, by column; what cannot be known is left out."""
    elapsed_s = now.at_s - before.at_s
    pairs = [(before.threads[tid], one) for tid, one in now.threads.items() if tid in before.threads]
    ran_s = [max(0.0, later.run_s - earlier.run_s) for earlier, later in pairs]
    waited_s = [max(0.0, later.wait_s - earlier.wait_s) for earlier, later in pairs]
    found: dict[str, float] = {}
    if pairs:
        found[RankColumn.CPU_WAIT] = min(1.0, max(waited_s) / elapsed_s)
    if pairs and now.cpus:
        found[RankColumn.CPU_DEMAND] = (sum(ran_s) + sum(waited_s)) / (elapsed_s * len(now.cpus))
    io_s = [
        max(0.0, later.io_s - earlier.io_s)
        for earlier, later in pairs
        if earlier.io_s is not None and later.io_s is not None
    ]
    if io_s:
        found[RankColumn.IO_WAIT] = min(1.0, max(io_s) / elapsed_s)
    if now.major_faults is not None and before.major_faults is not None:
        found[RankColumn.MAJOR_FAULTS] = max(0, now.major_faults - before.major_faults) / elapsed_s
    if now.swapped_bytes is not None:
        found[RankColumn.SWAPPED] = now.swapped_bytes
    found |= _throttled(before, now)
    placed = [(ran, one.cpu) for ran, (_, one) in zip(ran_s, pairs, strict=True) if one.cpu is not None]
    total_s = sum(ran for ran, _ in placed)
    if local and total_s > 0 and not now.cpus <= local:
        found[RankColumn.REMOTE_NUMA] = sum(ran for ran, cpu in placed if cpu not in local) / total_s
    return found


def local_cpus(sys: Path, pci_bus_id: str) -> frozenset[int]:
    """The CPUs of the NUMA node of a PCI device, empty when unknown; NVML writes its domain with 8 digits."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    return parse_cpu_list(
        read_bytes(sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "local_cpulist") or b""
    )


def _throttled(before: ProcessTimes, now: ProcessTimes) -> Mapping[str, float]:
    if None in {before.periods, now.periods, before.throttled_periods, now.throttled_periods}:
        return {}
    periods = (now.periods or 0) - (before.periods or 0)
    throttled = (now.throttled_periods or 0) - (before.throttled_periods or 0)
    if periods <= 0 or not 0 <= throttled <= periods:
        # Without a quota no period is counted; one that is idle uses none of it up.
        return {} if not now.periods else {RankColumn.CPU_THROTTLED: 0.0}
    return {RankColumn.CPU_THROTTLED: throttled / periods}


def _key(rank: RankPlacement) -> tuple[int, int | None]:
    """A process by its id and start."""
    return rank.pid or 0, rank.started_unix_ns


def _gpu(rank: RankPlacement) -> int:
    return -1 if rank.gpu is None else rank.gpu
