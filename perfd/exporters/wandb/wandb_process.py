"""A W&B run in its own process, which is killed if it does not answer (docs/adr/0006)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

import msgspec
import psutil

from perfd.config import WandbConfig
from perfd.exporters.wandb.wandb_messages import Message, OpenRun, WorkerPipe, WorkerReply

START_WITHIN_S = 12.0
"""Time for W&B's processes to start, in addition to W&B's time to answer."""
END_WITHIN_S = 8.0
"""Time for a process to end: more than W&B's own to finish a run, less than the aggregator's."""


class WandbProcess:
    """The open run of one job. Raises `OSError` with W&B's reason if it cannot be opened.

    After an `OSError` of any method the process is gone.
    """

    def __init__(self, job: str, config: WandbConfig) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_WITHIN_S + config.timeout_s)
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
        self.send(OpenRun(job, config))
        self._socket.settimeout(config.timeout_s)

    def send(self, message: Message) -> None:
        """Wait until W&B has the message."""
        try:
            answer = self._ask(message)
        except OSError as error:
            self.end(within_s=0.0)
            raise OSError(f"W&B's process: {error}") from error
        if answer.error:
            self.end(within_s=0.0)
            raise OSError(answer.error)

    def hang_up(self) -> None:
        """Let W&B upload the rest and end."""
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

    def _ask(self, message: Message) -> WorkerReply:
        self._line.send(message)
        data = self._line.receive()
        if data is None:
            raise ConnectionResetError("it ended by itself")
        return msgspec.json.decode(data, type=WorkerReply)
