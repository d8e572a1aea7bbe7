"""Builds /proc and /sys in a directory, for tests of collectors with a configurable root."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

STAT = """\
cpu  1000 100 500 8000 200 10 20 50 0 0
cpu0 500 50 250 4000 100 5 10 25 0 0
cpu1 500 50 250 4000 100 5 10 25 0 0
intr 1000 0 0
ctxt 123456
btime 1700000000
processes 4242
procs_running 3
procs_blocked 1
softirq 10 0 0
"""
MEMINFO = """\
MemTotal:       16384000 kB
MemFree:         1024000 kB
MemAvailable:    8192000 kB
Buffers:           10240 kB
Cached:          4096000 kB
SwapCached:            0 kB
Shmem:            512000 kB
Dirty:              1024 kB
SwapTotal:       2048000 kB
SwapFree:        1024000 kB
HugePages_Total:       0
"""
NET_DEV = """\
Inter-|   Receive                                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier
    lo: 1000 10 0 0 0 0 0 0 1000 10 0 0 0 0 0 0
  eth0: 5000000 4000 1 2 0 0 0 0 6000000 5000 3 4 0 0 0 0
"""
DISKSTATS = """\
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 100 0 2000 50 200 0 4000 70 0 90 120 0 0 0 0
 259       1 nvme0n1p1 90 0 1800 45 190 0 3800 65 0 80 110 0 0 0 0
"""


class FakeNode:
    """A node's /proc and /sys below `root`: healthy and small; a test overwrites what it is about."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.sys = root / "sys"
        self.write_proc("stat", STAT)
        self.write_proc("loadavg", "1.50 0.75 0.25 3/400 4242\n")
        self.write_proc("meminfo", MEMINFO)
        self.write_proc("vmstat", "nr_free_pages 1\npgmajfault 77\noom_kill 1\n")
        self.write_proc("net/dev", NET_DEV)
        self.write_proc("diskstats", DISKSTATS)
        self.write_proc("self/statm", "20000 10000 500 1 0 9000 0\n")
        for resource in ("cpu", "memory", "io"):
            self.write_proc(f"pressure/{resource}", pressure(some_us=3_000_000, full_us=1_000_000))
        self.write_sys("class/net/eth0/operstate", "up\n")
        self.write_sys("class/net/eth0/speed", "25000\n")
        for disk in ("loop0", "nvme0n1"):
            self.write_sys(f"block/{disk}/size", "1\n")
        self.process(1, {}, parent=0, name="systemd", start_ticks=1)

    def write_proc(self, name: str, content: str | bytes) -> None:
        """Write a file below /proc."""
        _write(self.proc / name, content)

    def put_in_gpu(self) -> None:
        """Let the PCI bus have a GPU of NVIDIA's; no driver comes with it."""
        self.write_sys("bus/pci/devices/0000:18:00.0/vendor", "0x10de\n")
        self.write_sys("bus/pci/devices/0000:18:00.0/class", "0x030200\n")

    def write_sys(self, name: str, content: str | bytes) -> None:
        """Write a file below /sys."""
        _write(self.sys / name, content)

    def process(
        self,
        pid: int,
        environ: Mapping[str, str] | None = None,
        *,
        parent: int = 1,
        name: str = "python3",
        cgroup: str = "0::/user.slice\n",
        inner_pids: Sequence[int] = (),
        start_ticks: int = 1000,
        uid: int = 0,
    ) -> None:
        """Start a process, or change it; `inner_pids` are those in its own namespaces, None is unreadable."""
        self.write_proc(f"{pid}/stat", process_stat(pid, name, parent, start_ticks))
        self.write_proc(f"{pid}/cgroup", cgroup)
        pids = _join("\t", [pid, *inner_pids])
        owner = f"Uid:\t{_join(chr(9), [uid] * 4)}\nGid:\t0\t0\t0\t0\n"
        self.write_proc(f"{pid}/status", f"Name:\t{name}\nPPid:\t{parent}\n{owner}NSpid:\t{pids}\n")
        if environ is None:
            # A folder cannot be read by root either, who may read any file.
            (self.proc / str(pid) / "environ").mkdir(exist_ok=True)
        else:
            items = [f"{key}={value}".encode() + b"\0" for key, value in environ.items()]
            self.write_proc(f"{pid}/environ", b"".join(items))
        self._children(pid, self._children_of(pid))
        self._children(parent, {*self._children_of(parent), pid})

    def end_process(self, pid: int) -> None:
        """Remove a process, as after its end."""
        shutil.rmtree(self.proc / str(pid))
        for folder in self.proc.glob("*/task/*/children"):
            parent = int(folder.parts[-4])
            self._children(parent, [child for child in self._children_of(parent) if child != pid])

    def infiniband_port(
        self,
        adapter: str,
        port: int,
        *,
        counters: Mapping[str, int] | None = None,
        hw_counters: Mapping[str, int] | None = None,
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
    ) -> None:
        """Add a port, or change it; counters by the names of their files, in the units of the kernel."""
        folder = f"class/infiniband/{adapter}/ports/{port}"
        self.write_sys(f"{folder}/state", f"{state}\n")
        self.write_sys(f"{folder}/rate", f"{rate}\n")
        for kind, values in (("counters", counters), ("hw_counters", hw_counters)):
            for name, value in (values or {}).items():
                self.write_sys(f"{folder}/{kind}/{name}", f"{value}\n")

    def _children(self, pid: int, children: Iterable[int]) -> None:
        if (self.proc / str(pid)).is_dir():
            self.write_proc(f"{pid}/task/{pid}/children", _join(" ", sorted(children)))

    def _children_of(self, pid: int) -> list[int]:
        path = self.proc / str(pid) / "task" / str(pid) / "children"
        return [int(field) for field in path.read_text().split()] if path.exists() else []


def pressure(*, some_us: int, full_us: int) -> str:
    """The content of a file of /proc/pressure."""
    averages = "avg10=0.00 avg60=0.00 avg300=0.00"
    return f"some {averages} total={some_us}\nfull {averages} total={full_us}\n"


def process_stat(pid: int, name: str, parent: int, start_ticks: int) -> str:
    """The content of /proc/PID/stat."""
    between, after = " ".join(["0"] * 17), " ".join(["0"] * 30)
    return f"{pid} ({name}) S {parent} {between} {start_ticks} {after}\n"


def _join(separator: str, numbers: Iterable[int]) -> str:
    return separator.join(str(number) for number in numbers)


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
