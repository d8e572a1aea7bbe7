"""Parsers for the parts of /proc that psutil lacks: bytes in, SI units out; missing values are absent.

psutil has no process states, no `Dirty`, no memory management events and no disk queue time; it returns 0 for
missing memory values, and estimates available memory if the kernel does not report it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

_MAX_DIGITS = 20
"""No 64-bit counter has more."""
SECTOR_BYTES = 512
"""The unit of /proc/diskstats, regardless of the disk's (Documentation/admin-guide/iostats.rst)."""


def parse_stat_counts(stat: bytes) -> Mapping[str, float]:
    """Online CPUs, context switches, and processes by state from /proc/stat."""
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
    """The load averages from /proc/loadavg."""
    names = ("load_1min_processes", "load_5min_processes", "load_15min_processes")
    fields = text.split()[:3]
    return {
        name: value
        for name, field in zip(names, fields, strict=False)
        if (value := _decimal(field)) is not None
    }


def parse_meminfo(text: bytes) -> Mapping[str, float]:
    """The node's memory from /proc/meminfo."""
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
    """Memory management events from /proc/vmstat."""
    counts = {}
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key in _VMSTAT_COLUMNS and _is_count(value):
            counts[_VMSTAT_COLUMNS[key]] = float(value)
    return counts


def parse_pressure(resource: str, text: bytes) -> Mapping[str, float]:
    """Total stall time from /proc/pressure/RESOURCE (Documentation/accounting/psi.rst)."""
    totals = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(b" ")
        value = rest.rpartition(b"total=")[2]
        # "full" is undefined for the CPU of the whole node; the kernel writes 0.
        if kind in {b"some", b"full"} and _is_count(value) and (resource, kind) != ("cpu", b"full"):
            totals[f"pressure_{resource}_{kind.decode()}_s"] = int(value) / 1e6
    return totals


def parse_diskstats(text: bytes) -> Mapping[str, Mapping[str, float]]:
    """Counters by block device, including partitions, from /proc/diskstats."""
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
