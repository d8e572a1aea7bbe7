"""A run of W&B in a process of its own, which is killed when it does not answer (docs/adr/0006)."""

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
"""What W&B's processes are given to start in, beside the time that W&B has to answer."""
END_WITHIN_S = 8.0
"""What a process is given to end in: more than W&B is given to finish a run, less than the aggregator is."""


class WandbProcess:
    """The open run of one job. Raises `OSError` with W&B's reason when it cannot be opened.

    After an `OSError` of any method the process is gone.
    """

    def __init__(self, job: str, config: WandbConfig) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_WITHIN_S + config.timeout_s)
        self._line = WorkerPipe(self._socket)
        with theirs:
            # In a session of its own: a Ctrl-C in the terminal is not meant for it. Nobody can answer W&B's
            # questions, so it must not ask any.
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
        """Let W&B upload what is left and end."""
        self._socket.close()

    def end(self, within_s: float) -> None:
        """Wait for the end, and kill what has not ended in time. Legal twice."""
        self.hang_up()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
            return
        # Its helper is in a process group of its own, and one that is stopped would not see it go.
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
