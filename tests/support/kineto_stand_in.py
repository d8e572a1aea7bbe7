"""A process that behaves like one with libkineto, started by tests and in their pods."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import uuid
from pathlib import Path

import msgspec

from perfd.capture.kineto import CLIENT_PREFIX, NAME, abstract, config_text, kineto_protocol

_ANSWER_S = 0.09
"""libkineto waits 9 times 10 ms; what comes later is read at the next poll."""


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """How a process behaves; as it comes, it traces what is asked of it."""

    socket_directory: str | None = None
    """`KINETO_IPC_SOCKET_DIR`; None for abstract sockets."""
    poll_s: float = 0.1
    """libkineto polls every 5 s."""
    busy: bool = False
    """Another client uses its profiler."""
    gpu_work: bool = True
    writes: bool = True
    """Whether a trace reaches the disk."""
    cut_short: bool = False
    dies: bool = False
    """It ends when asked to trace."""
    links_to: str | None = None
    """It leaves a link instead of a file."""


def main() -> None:
    """Poll until killed; carry out what the daemon says."""
    habits = msgspec.json.decode(sys.argv[1], type=Habits)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    name = f"{CLIENT_PREFIX}{uuid.uuid4()}"
    daemon: str | bytes
    if habits.socket_directory is None:
        client.bind(abstract(name))
        daemon = abstract(NAME)
    else:
        client.bind(str(Path(habits.socket_directory) / name))
        daemon = str(Path(habits.socket_directory) / NAME)
    client.settimeout(_ANSWER_S)
    busy = habits.busy
    pids = (os.getpid(), os.getppid())
    print("polls", flush=True)  # noqa: T201  (its parent waits for it)
    while True:
        configuration = _ask(
            client, daemon, kineto_protocol.ConfigPoll(types=1 if busy else 3, job_id=0, pids=pids)
        )
        if configuration and not busy:
            _obey(habits, config_text.parse(configuration))
        time.sleep(habits.poll_s)


def _ask(client: socket.socket, daemon: str | bytes, poll: kineto_protocol.ConfigPoll) -> str:
    try:
        client.sendto(kineto_protocol.encode(poll), daemon)
        reply, sender = client.recvfrom(kineto_protocol.MAX_FRAME_BYTES)
    except OSError:
        return ""  # No daemon, or a slow one.
    if sender != daemon:
        # libkineto does so at a name without its folder, and ends the process with it.
        os.abort()
    # A length of 8 bytes and a kind of 32, as libkineto reads it.
    size, kind, text = int.from_bytes(reply[:8], "little"), reply[8:40].rstrip(b"\0"), reply[40:]
    return text.decode() if kind == b"req" and size == len(text) else ""


def _obey(habits: Habits, order: dict[str, str]) -> None:
    output = Path(order["ACTIVITIES_LOG_FILE"])
    path = output.with_name(f"{output.stem}_{os.getpid()}{output.suffix}")
    start_s = int(order["PROFILE_START_TIME"]) / 1e3
    part = path.with_name(f"{path.name}.tmp")
    part.touch()
    if start_s - time.time() < int(order["ACTIVITIES_WARMUP_PERIOD_SECS"]):
        return  # Too late: libkineto logs that and says nothing.
    if habits.dies:
        sys.exit(1)
    time.sleep(max(0.0, start_s + int(order["ACTIVITIES_DURATION_MSECS"]) / 1e3 - time.time()))
    if not habits.writes:
        return
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 2.0}]
    if habits.gpu_work:
        events.append({"ph": "X", "cat": "kernel", "name": "gemm", "ts": 2.0, "dur": 1.0})
    content = json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": str(path)})
    part.write_text(content[: len(content) // 2] if habits.cut_short else content)
    if habits.links_to is not None:
        path.symlink_to(habits.links_to)
    elif path.parent.is_dir():
        part.rename(path)


if __name__ == "__main__":
    main()
