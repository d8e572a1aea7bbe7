"""Probes what captures need besides nsys."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from perfd.capture.jax import find_server, loaded
from perfd.capture.kineto import NAME, abstract
from perfd.capture.node import pids
from perfd.capture.stacks import find_py_spy
from perfd.config import AgentCaptureConfig, KinetoConfig
from perfd.doctor.node_facts import PySpyFacts, SocketFacts
from perfd.errors import CaptureError

_CAP_SYS_PTRACE = 19
"""Bit of the capability, in include/uapi/linux/capability.h."""


def probe_kineto_socket(config: KinetoConfig, proc: Path) -> SocketFacts | None:
    """Whether the socket that libkineto polls is taken; None when Kineto captures are disabled."""
    if not config.enabled:
        return None
    directory = Path(config.socket_directory) if config.socket_directory else None
    place = f"@{NAME}" if directory is None else str(directory / NAME)
    address = abstract(NAME) if directory is None else place
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        try:
            client.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return SocketFacts(place=place, taken=False)
        except OSError as error:
            return SocketFacts(place=place, taken=False, problem=error.strerror or str(error))
    return SocketFacts(place=place, taken=True, owner=_owner(place, proc))


def probe_jax(config: AgentCaptureConfig, proc: Path) -> Mapping[int, str]:
    """The processes that have loaded JAX, with why its profiler cannot capture them (empty: it can)."""
    found: dict[int, str] = {}
    for pid in pids(proc) if config.enabled else ():
        if loaded(proc, pid):
            try:
                find_server(proc, pid, config.jax.ports)
            except CaptureError as error:
                found[pid] = str(error)
            else:
                found[pid] = ""
    return found


def probe_py_spy(config: AgentCaptureConfig, environment: Mapping[str, str], proc: Path) -> PySpyFacts:
    """The path of py-spy, and whether the kernel lets it trace processes that are not its children."""
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = None
    return PySpyFacts(
        path=find_py_spy(config.py_spy_path, environment.get("PATH")),
        ptrace_scope=scope,
        may_trace=_has_capability(proc / "self" / "status", _CAP_SYS_PTRACE),
    )


def _has_capability(status: Path, bit: int) -> bool:
    try:
        lines = status.read_text(errors="replace").splitlines()
        effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return os.geteuid() == 0
    return bool(effective >> bit & 1)


def _owner(place: str, proc: Path) -> str:
    """The process that holds a UNIX socket, as `name (pid N)`; empty when not visible."""
    try:
        rows = [line.split() for line in (proc / "net/unix").read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    # Num RefCount Protocol Flags Type St Inode Path; the NUL at the end of the name is shown as @ too.
    inodes = {row[6] for row in rows if len(row) > 7 and row[7] in {place, f"{place}@"}}
    sockets = {f"socket:[{inode}]" for inode in inodes}
    return next((_name(proc / str(pid)) for pid in pids(proc) if _holds(proc / str(pid), sockets)), "")


def _holds(process: Path, sockets: set[str]) -> bool:
    """Whether a process has one of these sockets open; False when not visible."""
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # Closed meanwhile.
            if str(descriptor.readlink()) in sockets:
                return True
    return False


def _name(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")[:4]
    except OSError:
        words = []
    names = [Path(word.decode(errors="replace")).name for word in words if word]
    return f"{' '.join(names) or 'a process'} (pid {process.name})"
