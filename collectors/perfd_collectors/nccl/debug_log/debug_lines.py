"""What NCCL prints with NCCL_DEBUG=WARN or INFO: communicators, transports, versions, warnings.

A line is `host:pid:tid [device] NCCL LEVEL text`; warnings have their place in NCCL's source before `NCCL`,
and launchers prepend their own prefix. Formats are those of NCCL 2.10 to 2.29.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_PREFIX = re.compile(
    r"(?<![\w.-])(?P<host>[\w.-]{1,253}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) \[(?P<device>\d{1,3})\] "
    r"(?:[\w./-]{1,128}:\d{1,6} )?NCCL (?P<level>INFO|WARN) (?P<text>.*)",
    re.ASCII,
)
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)(?:\+|\s|$)", re.ASCII)
_INIT = re.compile(
    r"comm 0x[0-9a-f]+ rank (?P<rank>\d{1,9}) n(?:R|r)anks (?P<ranks>\d{1,9}) "
    r".*?commId 0x(?P<id>[0-9a-f]{1,16}) - Init COMPLETE",
    re.ASCII,
)
_CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : (?P<from>\d{1,9})\[\w+\] -> (?P<to>\d{1,9})\[\w+\] "
    r"(?:\[\w+\] )?via (?P<via>[\w/]+)",
    re.ASCII,
)
_NETWORK = re.compile(r"Using network (\w[\w .-]{0,40})", re.ASCII)
_MAX_PAIRS = 65_536
"""Connections between two ranks that are kept; the rest is not counted. Bounds memory."""
_MAX_COMMUNICATORS = 4096
"""Communicators that are kept; bounds memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCommunicator:
    """One rank's place in a communicator. `id` is the same as in the profiler plugin."""

    id: str
    rank: int
    ranks: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugRemark:
    """A line, or a conclusion from several, that becomes an event."""

    message: str
    host: str
    pid: int


@dataclass(slots=True)
class DebugLog:
    """The facts from the lines of one or many processes so far."""

    versions: dict[str, int] = field(default_factory=dict)
    """The first process that reported each version."""
    communicators: dict[tuple[str, int], NcclCommunicator] = field(default_factory=dict)
    """By id and rank."""
    transports: Counter[str] = field(default_factory=Counter)
    """Connections between two ranks by transport: `P2P`, `SHM`, `NET/IB`, ..."""
    networks: set[str] = field(default_factory=set)
    _pairs: set[tuple[str, int, int, int]] = field(default_factory=set)
    _reported: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether any fact is known."""
        return bool(self.versions or self.communicators or self.transports or self.networks)

    def feed(self, line: str) -> Iterator[DebugRemark]:
        """Parse one line; yields remarks that deserve an event."""
        if "NCCL " not in line:
            return
        found = _PREFIX.search(line)
        version = _VERSION.search(line)
        if version is not None:
            yield from self._version(version[1], found)
        if found is None:
            return
        host, pid, text = found["host"], int(found["pid"]), found["text"]
        if found["level"] == "WARN":
            yield DebugRemark(message=f"NCCL WARN {text.strip()}", host=host, pid=pid)
        elif channel := _CHANNEL.search(text):
            yield from self._channel(channel, host, pid)
        elif init := _INIT.search(text):
            self._communicator(init, host, pid)
        elif network := _NETWORK.search(text):
            self.networks.add(network[1].strip())

    def _version(self, version: str, found: re.Match[str] | None) -> Iterator[DebugRemark]:
        pid = int(found["pid"]) if found else 0
        host = found["host"] if found else ""
        if version in self.versions:
            return
        self.versions[version] = pid
        if len(self.versions) > 1:
            both = " and ".join(sorted(self.versions))
            yield from self._once(f"Processes of the job use different NCCL versions: {both}.", host, pid)

    def _communicator(self, init: re.Match[str], host: str, pid: int) -> None:
        one = NcclCommunicator(
            id=f"{int(init['id'], 16):x}",
            rank=int(init["rank"]),
            ranks=int(init["ranks"]),
            host=host,
            pid=pid,
        )
        if len(self.communicators) < _MAX_COMMUNICATORS:
            self.communicators[one.id, one.rank] = one

    def _channel(self, channel: re.Match[str], host: str, pid: int) -> Iterator[DebugRemark]:
        pair = (host, pid, int(channel["from"]), int(channel["to"]))
        if pair in self._pairs or len(self._pairs) >= _MAX_PAIRS:
            # All channels of a pair report the same transport.
            return
        self._pairs.add(pair)
        transport = _transport(channel["via"])
        self.transports[transport] += 1
        if transport == "SHM":
            yield from self._once(
                f"NCCL connects GPUs of {host} through host memory (SHM), not peer to peer: check"
                " NCCL_P2P_DISABLE, and whether a container or virtual machine hides peer access.",
                host,
                pid,
            )
        elif transport == "NET/Socket":
            yield from self._once(
                f"NCCL connects ranks of {host} through TCP sockets, not InfiniBand or RoCE: check that the"
                " container has the devices, and NCCL_IB_DISABLE.",
                host,
                pid,
            )

    def _once(self, message: str, host: str, pid: int) -> Iterator[DebugRemark]:
        if message not in self._reported:
            self._reported.add(message)
            yield DebugRemark(message=message, host=host, pid=pid)


def _transport(via: str) -> str:
    """The transport without details: `P2P` for `P2P/CUMEM/read`, `NET/IB` for `NET/IB/0/GDRDMA`."""
    parts = via.split("/")
    return "/".join(parts[:2]) if parts[0] == "NET" else parts[0]
