"""Parsers of /proc files: bytes in, numbers in SI units out; what the kernel does not write is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MAX_DIGITS = 20
"""No 64-bit counter has more."""
SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the disk's own are (Documentation/admin-guide/iostats.rst)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTicks:
    """Time of all CPUs since boot, in clock ticks. Guests are in `user`, as the kernel counts them."""

    user: int
    system: int
    """With interrupts."""
    idle: int
    iowait: int
    steal: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.user + self.system + self.idle + self.iowait + self.steal


def parse_cpu_ticks(stat: bytes) -> CpuTicks | None:
    """The first line of /proc/stat."""
    fields = stat.partition(b"\n")[0].split()
    if len(fields) < 5 or fields[0] != b"cpu" or not all(map(_is_count, fields[1:])):
        return None
    user, nice, system, idle, *rest = (int(field) for field in fields[1:])
    iowait, irq, softirq, steal = [*rest, 0, 0, 0, 0][:4]
    return CpuTicks(user=user + nice, system=system + irq + softirq, idle=idle, iowait=iowait, steal=steal)


def cpu_ratios(before: CpuTicks, after: CpuTicks) -> Mapping[str, float]:
    """Shares of the time of all CPUs between two readings; empty when no time has passed."""
    total = after.total - before.total
    if total <= 0:
        return {}
    # The kernel's iowait may go back a little (proc(5)), and no share is negative.
    return {
        f"cpu_{name}_ratio": max(0, getattr(after, name) - getattr(before, name)) / total
        for name in ("user", "system", "idle", "iowait", "steal")
    }


def parse_stat_counts(stat: bytes) -> Mapping[str, float]:
    """The counts of /proc/stat: CPUs that are on, context switches, and processes by state."""
    counts = {"online_cpus": float(stat.count(b"\ncpu"))}
    for column, key in (
        ("context_switches", b"\nctxt "),
        ("runnable_processes", b"\nprocs_running "),
        ("blocked_processes", b"\nprocs_blocked "),
    ):
        start = stat.find(key)
        value = stat[start + len(key) :].partition(b"\n")[0] if start >= 0 else b""
        if _is_count(value):
            counts[column] = float(value)
    return counts


def parse_loadavg(text: bytes) -> Mapping[str, float]:
    """The load averages of /proc/loadavg."""
    names = ("load_1min_processes", "load_5min_processes", "load_15min_processes")
    fields = text.split()[:3]
    return {
        name: value
        for name, field in zip(names, fields, strict=False)
        if (value := _decimal(field)) is not None
    }


def parse_meminfo(text: bytes) -> Mapping[str, float]:
    """Memory of the node out of /proc/meminfo."""
    found = {
        key.decode(): int(fields[0]) * 1024.0
        for key, fields in _keys(text)
        if key in _MEMORY_KEYS and fields and _is_count(fields[0])
    }
    memory = {column: found[key] for key, column in _MEMORY_COLUMNS if key in found}
    if found.get("SwapTotal", -1) >= found.get("SwapFree", math.inf):
        memory["swap_used_bytes"] = found["SwapTotal"] - found["SwapFree"]
    return memory


def parse_vmstat(text: bytes) -> Mapping[str, float]:
    """Events of memory management out of /proc/vmstat."""
    counts = {}
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key in _VMSTAT_COLUMNS and _is_count(value):
            counts[_VMSTAT_COLUMNS[key]] = float(value)
    return counts


def parse_pressure(resource: str, text: bytes) -> Mapping[str, float]:
    """Total stall time out of /proc/pressure/RESOURCE (Documentation/accounting/psi.rst)."""
    totals = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(b" ")
        value = rest.rpartition(b"total=")[2]
        # For CPU and the whole node, "full" is not defined, and the kernel writes 0.
        if kind in {b"some", b"full"} and _is_count(value) and (resource, kind) != ("cpu", b"full"):
            totals[f"pressure_{resource}_{kind.decode()}_s"] = int(value) / 1e6
    return totals


def parse_net_dev(text: bytes) -> Mapping[str, Mapping[str, float]]:
    """Counters of each network interface out of /proc/net/dev."""
    interfaces = {}
    for name, fields in _keys(text):
        if len(fields) >= 12 and all(map(_is_count, fields)):
            interfaces[_text(name)] = {
                column: float(fields[position]) for column, position in _NET_DEV_COLUMNS
            }
    return interfaces


def parse_diskstats(text: bytes) -> Mapping[str, Mapping[str, float]]:
    """Counters of each block device, partitions too, out of /proc/diskstats."""
    disks = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 14 and all(map(_is_count, fields[3:14])):
            disks[_text(fields[2])] = {
                column: int(fields[position]) / per_unit for column, position, per_unit in _DISK_COLUMNS
            }
    return disks


def _keys(text: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    for line in text.splitlines():
        key, separator, rest = line.partition(b":")
        if separator:
            yield key.strip(), rest.split()


def _is_count(field: bytes) -> bool:
    return field.isdigit() and len(field) <= _MAX_DIGITS


def _decimal(field: bytes) -> float | None:
    whole, _, fraction = field.partition(b".")
    return float(field) if _is_count(whole) and (not fraction or _is_count(fraction)) else None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


_MEMORY_COLUMNS = (
    ("MemTotal", "memory_total_bytes"),
    ("MemAvailable", "memory_available_bytes"),
    ("Cached", "memory_page_cache_bytes"),
    ("Shmem", "memory_shared_bytes"),
    ("Dirty", "memory_dirty_bytes"),
    ("SwapTotal", "swap_total_bytes"),
)
_MEMORY_KEYS = frozenset({b"SwapFree", *(key.encode() for key, _ in _MEMORY_COLUMNS)})
_VMSTAT_COLUMNS = {b"pgmajfault": "major_page_faults", b"oom_kill": "oom_kills"}
_NET_DEV_COLUMNS = (
    ("rx_bytes", 0),
    ("rx_packets", 1),
    ("rx_errors", 2),
    ("rx_dropped_packets", 3),
    ("tx_bytes", 8),
    ("tx_packets", 9),
    ("tx_errors", 10),
    ("tx_dropped_packets", 11),
)
_DISK_COLUMNS = (
    ("read_operations", 3, 1.0),
    ("read_bytes", 5, 1 / SECTOR_BYTES),
    ("read_s", 6, 1e3),
    ("write_operations", 7, 1.0),
    ("write_bytes", 9, 1 / SECTOR_BYTES),
    ("write_s", 10, 1e3),
    ("busy_s", 12, 1e3),
    ("queue_s", 13, 1e3),
)
