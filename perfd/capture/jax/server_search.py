"""Finds the profiler server of a process among the ports on which it listens.

Only a process that has JAX's library loaded is asked, and only on ports that it opened for all addresses, as
`jax.profiler.start_server` does, or for loopback: NCCL's own sockets listen on addresses of interfaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from perfd.capture.jax.profiler_client import ProfilerClient
from perfd.errors import CaptureError
from perfd.procfs import rooted

_LIBRARY = b"/jaxlib/"
"""In the path of JAX's library, in a process that has loaded it."""
_PLACES = frozenset({"::", "0.0.0.0", "::1", "127.0.0.1"})  # noqa: S104  (of another process)


def find_server(proc: Path, pid: int, ports: Sequence[int] = ()) -> tuple[int, int]:
    """The process and the port of the profiler server of a process, or of one that it started.

    With `ports` only those are tried. Raises `CaptureError`, with what to do.
    """
    with_jax = [one for one in (pid, *_below(proc, pid)) if loaded(proc, one)]
    if not with_jax:
        raise CaptureError(f"Process {pid} has not loaded JAX.")
    for one in with_jax:
        for port in _listening(proc, one):
            if (not ports or port in ports) and _serves(port):
                return one, port
    raise CaptureError(
        f"Process {with_jax[0]} has no profiler server"
        f"{' on a port of capture.jax.ports' if ports else ''}: the job must call "
        "jax.profiler.start_server(PORT)."
    )


def _serves(port: int) -> bool:
    client = ProfilerClient(port)
    try:
        return client.answers()
    finally:
        client.close()


def _listening(proc: Path, pid: int) -> list[int]:
    """The ports that this machine can reach, in order; raises `CaptureError` if they cannot be seen."""
    try:
        if (proc / str(pid) / "ns/net").readlink() != (proc / "self/ns/net").readlink():
            raise CaptureError(
                f"Process {pid} and the agent are in different network namespaces: run the agent in "
                "the process's pod or container."
            )
        with rooted(proc):
            sockets = psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, OSError) as error:
        raise CaptureError(
            f"The sockets of process {pid} cannot be seen; run the agent as the job's user or as root."
        ) from error
    return sorted(
        {
            one.laddr.port
            for one in sockets
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.ip in _PLACES
        }
    )


def loaded(proc: Path, pid: int) -> bool:
    """Whether a process has loaded JAX's library."""
    try:
        return _LIBRARY in (proc / str(pid) / "maps").read_bytes()
    except OSError:
        return False


def _below(proc: Path, pid: int) -> list[int]:
    try:
        with rooted(proc):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
