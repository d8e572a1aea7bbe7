"""The collector: tables of the node, its network interfaces and ports, and its disks."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from resource import getpagesize

from perfd.collector import Options, Settings
from perfd.errors import ConfigError, Unavailable
from perfd.model import Record, SampleTable, Scope
from perfd_collectors.host import infiniband, procfs
from perfd_collectors.host.small_files import names_in, read_bytes

Rows = Mapping[str, Mapping[str, float]]
"""Values by entity and column."""


class HostOptions(Options, frozen=True):
    """Options of the `host` collector."""

    slow_interval_s: float = 10.0
    """How often to read link states, link errors and congestion, which ask the adapter's firmware."""
    exclude_interfaces: str = (
        r"lo|(veth|cali|docker|br-|virbr|cni|flannel|lxc|ifb|dummy|tunl|sit|ip6tnl|nodelocaldns).*"
    )
    """Interfaces to leave out: a regular expression for the whole name."""
    exclude_disks: str = r"(loop|ram|zram|sr|fd|nbd)\d+"
    """Disks to leave out: a regular expression for the whole name."""


class HostCollector:
    """Reads /proc and /sys below the roots of the settings. Raises `Unavailable` without /proc/stat."""

    def __init__(self, options: HostOptions, settings: Settings) -> None:
        self._proc = settings.proc
        self._sys = settings.sys
        self._clock = settings.clock
        self._slow_interval_s = options.slow_interval_s
        self._excluded_interface = _expression("exclude_interfaces", options.exclude_interfaces)
        self._excluded_disk = _expression("exclude_disks", options.exclude_disks)
        self._slow_due_s = -math.inf
        self._ticks: procfs.CpuTicks | None = None
        if self._read("stat") is None:
            raise Unavailable(
                f"{self._proc / 'stat'} cannot be read: in a container, mount the host's /proc and set "
                "`proc` to where it is."
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
        return [table for scope, rows in parts if (table := _table(scope, now_ns, rows)) is not None]

    def close(self) -> None:
        """Nothing is held between two collects."""

    def _node(self) -> Mapping[str, float]:
        stat = self._read("stat") or b""
        ticks, before = procfs.parse_cpu_ticks(stat), self._ticks
        self._ticks = ticks
        node = {
            **procfs.parse_stat_counts(stat),
            **procfs.parse_loadavg(self._read("loadavg") or b""),
            **procfs.parse_meminfo(self._read("meminfo") or b""),
            **procfs.parse_vmstat(self._read("vmstat") or b""),
            **self._agent(),
        }
        if ticks is not None and before is not None:
            node |= procfs.cpu_ratios(before, ticks)
        for resource in ("cpu", "memory", "io"):
            node |= procfs.parse_pressure(resource, self._read(f"pressure/{resource}") or b"")
        return node

    def _agent(self) -> Mapping[str, float]:
        pages = (self._read("self/statm") or b"").split()
        agent = {"agent_cpu_s": time.process_time()}
        if len(pages) > 1 and pages[1].isdigit():
            agent["agent_rss_bytes"] = float(int(pages[1]) * getpagesize())
        return agent

    def _interfaces(self) -> Rows:
        # The agent may have a network of its own; the first process has the node's.
        text = self._read("1/net/dev") or self._read("net/dev") or b""
        return {
            name: counters
            for name, counters in procfs.parse_net_dev(text).items()
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


def _interface_link(path: Path) -> Mapping[str, float]:
    link = {}
    state = (read_bytes(path / "operstate") or b"").strip()
    if state in {b"up", b"down", b"lowerlayerdown"}:
        link["link_up"] = float(state == b"up")
    megabits = (read_bytes(path / "speed") or b"").strip()
    # A link that is down, or that has no speed, says -1 or nothing.
    if megabits.isdigit() and int(megabits):
        link["speed_bytes_per_s"] = int(megabits) * 1e6 / 8
    return link


def _table(scope: Scope, now_ns: int, rows: Rows) -> SampleTable | None:
    present = {entity: values for entity, values in rows.items() if values}
    if not present:
        return None
    names = dict.fromkeys(name for values in present.values() for name in values)
    return SampleTable(
        scope=scope,
        times_unix_ns=[now_ns] * len(present),
        entities=list(present),
        columns={name: [values.get(name, math.nan) for values in present.values()] for name in names},
    )


def _expression(option: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"collectors.host.options.{option} is not a regular expression: {error}."
        ) from error
