"""The `host` collector: tables of the node, its network interfaces and ports, and its disks."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from perfd.collector import Options, Settings
from perfd.errors import ConfigError, Unavailable
from perfd.model import Record, SampleTable, Scope
from perfd.procfs import rooted
from perfd_collectors.host import infiniband, procfs
from perfd_collectors.host.small_files import names_in, read_bytes

Rows = Mapping[str, Mapping[str, float]]
"""Values by entity and column."""

_UNREADABLE = (OSError, ValueError, TypeError, AssertionError)
"""Exceptions of psutil for a missing file, or unexpected content."""
_CPU_STATES = {
    "cpu_user_ratio": ("user", "nice"),
    "cpu_system_ratio": ("system", "irq", "softirq"),
    "cpu_idle_ratio": ("idle",),
    "cpu_iowait_ratio": ("iowait",),
    "cpu_steal_ratio": ("steal",),
}
"""The CPU states summed in each share. The kernel counts guests in `user` and `nice`."""
_INTERFACE_FIELDS = {
    "rx_bytes": "bytes_recv",
    "rx_packets": "packets_recv",
    "rx_errors": "errin",
    "rx_dropped_packets": "dropin",
    "tx_bytes": "bytes_sent",
    "tx_packets": "packets_sent",
    "tx_errors": "errout",
    "tx_dropped_packets": "dropout",
}
"""psutil's field of each column."""


class HostOptions(Options, frozen=True):
    """Options of the `host` collector."""

    slow_interval_s: float = 10.0
    """How often to read link states, link errors and congestion, which query the adapter's firmware."""
    exclude_interfaces: str = (
        r"lo|(veth|cali|docker|br-|virbr|cni|flannel|lxc|ifb|dummy|tunl|sit|ip6tnl|nodelocaldns).*"
    )
    """Interfaces to exclude: a regular expression for the whole name."""
    exclude_disks: str = r"(loop|ram|zram|sr|fd|nbd)\d+"
    """Disks to exclude: a regular expression for the whole name."""


class HostCollector:
    """Reads /proc and /sys below the roots in the settings. Raises `Unavailable` without /proc/stat."""

    def __init__(self, options: HostOptions, settings: Settings) -> None:
        self._proc = settings.proc
        self._sys = settings.sys
        self._clock = settings.clock
        self._slow_interval_s = options.slow_interval_s
        self._excluded_interface = _expression("exclude_interfaces", options.exclude_interfaces)
        self._excluded_disk = _expression("exclude_disks", options.exclude_disks)
        self._slow_due_s = -math.inf
        self._cpu_s: Mapping[str, float] = {}
        self._agent = psutil.Process()
        if self._read("stat") is None:
            raise Unavailable(
                f"{self._proc / 'stat'} cannot be read: in a container, mount the host's /proc and set "
                "`proc` to its path."
            )

    def collect(self) -> Sequence[Record]:
        now_ns, now_s = self._clock.unix_ns(), self._clock.monotonic_s()
        interfaces = self._interfaces()
        parts: list[tuple[Scope, Rows]] = [
            (Scope.NODE, {"": self._node()}),
            (Scope.NIC, interfaces),
            (Scope.NIC, self._ports(infiniband.TRAFFIC)),
            (Scope.DISK, self._disks()),
        ]
        if now_s >= self._slow_due_s:
            self._slow_due_s = now_s + self._slow_interval_s
            parts += [(Scope.NIC, self._links(interfaces)), (Scope.NIC, self._port_health())]
        return [
            table for scope, rows in parts if (table := SampleTable.of_rows(scope, now_ns, rows)) is not None
        ]

    def close(self) -> None:
        """Nothing to free."""

    def _node(self) -> Mapping[str, float]:
        node = {
            **procfs.parse_stat_counts(self._read("stat") or b""),
            **procfs.parse_loadavg(self._read("loadavg") or b""),
            **procfs.parse_meminfo(self._read("meminfo") or b""),
            **procfs.parse_vmstat(self._read("vmstat") or b""),
            **self._cpu(),
            "agent_cpu_s": time.process_time(),
            "agent_rss_bytes": float(self._agent.memory_info().rss),
        }
        for resource in ("cpu", "memory", "io"):
            node |= procfs.parse_pressure(resource, self._read(f"pressure/{resource}") or b"")
        return node

    def _cpu(self) -> Mapping[str, float]:
        """Shares of CPU time since the last collect; empty when no time has passed."""
        try:
            with rooted(self._proc):
                times = psutil.cpu_times()
        except _UNREADABLE:
            self._cpu_s = {}
            return {}
        before_s = self._cpu_s
        self._cpu_s = {
            column: sum(getattr(times, state) for state in states) for column, states in _CPU_STATES.items()
        }
        spent_s = {column: self._cpu_s[column] - before_s[column] for column in before_s}
        total_s = sum(spent_s.values())
        # The kernel's iowait may decrease (proc(5)), but shares are not negative.
        return {column: max(0.0, one_s) / total_s for column, one_s in spent_s.items() if total_s > 0}

    def _interfaces(self) -> Rows:
        # The agent may have its own network namespace; the first process has the node's.
        interfaces = _interfaces(self._proc / "1") or _interfaces(self._proc)
        return {
            name: counters
            for name, counters in interfaces.items()
            if not self._excluded_interface.fullmatch(name)
        }

    def _links(self, interfaces: Rows) -> Rows:
        return {name: _interface_link(self._sys / "class" / "net" / name) for name in interfaces}

    def _ports(self, files: Mapping[str, tuple[str, float]]) -> Rows:
        return {
            name: infiniband.read_counters(path, files) for name, path in infiniband.ports(self._sys).items()
        }

    def _port_health(self) -> Rows:
        return {
            name: {**infiniband.read_counters(path, infiniband.HEALTH), **infiniband.read_link(path)}
            for name, path in infiniband.ports(self._sys).items()
        }

    def _disks(self) -> Rows:
        whole = set(names_in(self._sys / "block"))
        return {
            name: counters
            for name, counters in procfs.parse_diskstats(self._read("diskstats") or b"").items()
            # sysfs writes `!` for the `/` in a name, and lists no partitions.
            if name.replace("/", "!") in whole and not self._excluded_disk.fullmatch(name)
        }

    def _read(self, name: str) -> bytes | None:
        return read_bytes(self._proc / name)


def _interfaces(proc: Path) -> Rows:
    try:
        with rooted(proc):
            interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
    except _UNREADABLE:
        return {}
    return {
        name: {column: float(getattr(counters, field)) for column, field in _INTERFACE_FIELDS.items()}
        for name, counters in interfaces.items()
    }


def _interface_link(path: Path) -> Mapping[str, float]:
    link = {}
    state = (read_bytes(path / "operstate") or b"").strip()
    if state in {b"up", b"down", b"lowerlayerdown"}:
        link["link_up"] = float(state == b"up")
    megabits = (read_bytes(path / "speed") or b"").strip()
    # A link that is down or has no speed reports -1 or nothing.
    if megabits.isdigit() and int(megabits):
        link["speed_bytes_per_s"] = int(megabits) * 1e6 / 8
    return link


def _expression(option: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"collectors.host.options.{option} is not a regular expression: {error}."
        ) from error
