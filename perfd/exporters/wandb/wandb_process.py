"""A process with W&B runs, which is killed if it does not answer (docs/adr/0023)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

import msgspec
import psutil

from perfd.exporters.wandb.wandb_messages import Message, OpenRun, WorkerPipe, WorkerReply, WorkerRequest

START_WITHIN_S = 12.0
"""Time for W&B's processes to start, in addition to W&B's time to answer."""
END_WITHIN_S = 8.0
"""Time for a process to end: more than W&B's own to finish its runs, less than the aggregator's."""


class RefusedByWandbError(OSError):
    """W&B's own reason; the process goes on."""


class WandbProcess:
    """Runs in one process. Any `OSError` but `RefusedByWandbError` means that the process is gone."""

    def __init__(self) -> None:
        self.alive = True
        self._socket, theirs = socket.socketpair()
        self._line = WorkerPipe(self._socket)
        with theirs:
            # In its own session, out of reach of a Ctrl-C in the terminal. W&B must not prompt: there is no
            # user to answer.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "perfd.exporters.wandb.wandb_worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"},
            )

    def send(self, job: str, message: Message, *, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s + (START_WITHIN_S if isinstance(message, OpenRun) else 0.0))
        try:
            answer = self._ask(WorkerRequest(job, message))
        except OSError as error:
            self.end(within_s=0.0)
            raise OSError(f"W&B's process: {error}") from error
        if answer.error:
            raise RefusedByWandbError(answer.error)

    def hang_up(self) -> None:
        """Let W&B upload the rest of all runs and end."""
        self.alive = False
        self._socket.close()

    def end(self, within_s: float) -> None:
        """Wait for the end, and kill what has not ended in time. May be called twice."""
        self.hang_up()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
            return
        # Its helper has its own process group, and a stopped one would not notice the end.
        with suppress(psutil.NoSuchProcess):
            worker = psutil.Process(self._process.pid)
            for process in (*worker.children(recursive=True), worker):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()

    def _ask(self, request: WorkerRequest) -> WorkerReply:
        self._line.send(request)
        data = self._line.receive()
        if data is None:
            raise ConnectionResetError("it ended by itself")
        return msgspec.json.decode(data, type=WorkerReply)
