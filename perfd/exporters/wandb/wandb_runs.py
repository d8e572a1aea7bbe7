"""The runs of all jobs, in one process as long as W&B works (docs/adr/0023)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from perfd.config import WandbConfig
from perfd.exporters.wandb.wandb_messages import CloseRun, Message, OpenRun, RunMessage
from perfd.exporters.wandb.wandb_process import END_WITHIN_S, RefusedByWandbError, WandbProcess


class RunLostError(OSError):
    """The run's process ended over another job's message: this one was not sent."""


class RunProcess(Protocol):
    """What is needed of a `WandbProcess`."""

    alive: bool

    def send(self, job: str, message: Message, /, *, timeout_s: float) -> None:
        """Wait until W&B has the message."""

    def hang_up(self) -> None:
        """Let W&B end."""

    def end(self, within_s: float) -> None:
        """Wait for that."""


class WandbRuns:
    """Opens, feeds and closes runs by the name of their job. Each raises `OSError` if W&B fails.

    A job over whose message a process ended has one of its own from then on, so that it cannot end the
    others' runs again. W&B's process never opens a run that it failed to open once: such a job tries
    another process.
    """

    def __init__(self, start: Callable[[], RunProcess] = WandbProcess) -> None:
        self._start = start
        self._processes: list[RunProcess] = []
        self._of_job: dict[str, RunProcess] = {}
        self._timeouts_s: dict[str, float] = {}
        self._failed: dict[int, set[str]] = {}
        """By `id` of a process: jobs whose run it could not open."""
        self._alone: set[str] = set()

    def open(self, job: str, config: WandbConfig, labels: Mapping[str, str]) -> None:
        """Open the run of a job; nothing if it is open."""
        if (known := self._of_job.get(job)) is not None and known.alive:
            return
        process = self._process_for(job)
        try:
            process.send(job, OpenRun(config, labels), timeout_s=config.timeout_s)
        except RefusedByWandbError:
            self._failed[id(process)].add(job)
            if process not in self._of_job.values():
                self._end(process, within_s=0.0)
            raise
        except OSError:
            self._blame(job, process)
            raise
        self._of_job[job] = process
        self._timeouts_s[job] = config.timeout_s

    def send(self, job: str, message: RunMessage) -> None:
        """Send to an open run; a `RunLostError` if it is no longer open."""
        process = self._of_job[job]
        if not process.alive:
            del self._of_job[job]
            raise RunLostError("W&B's process ended; the run is opened again")
        try:
            process.send(job, message, timeout_s=self._timeouts_s[job])
        except OSError as error:
            # W&B's own helper may have died, after which every call fails.
            within_s = END_WITHIN_S if isinstance(error, RefusedByWandbError) else 0.0
            self._blame(job, process, within_s)
            raise

    def close(self, job: str) -> None:
        """Let W&B upload the rest of a run. Processes without runs end, within a few seconds."""
        self._alone.discard(job)
        process = self._of_job.pop(job, None)
        if process is None or not process.alive:
            return
        if process not in self._of_job.values():
            self._end(process, END_WITHIN_S)
            return
        try:
            process.send(job, CloseRun(), timeout_s=self._timeouts_s[job])
        except OSError:
            self._end(process, within_s=0.0)

    def close_all(self) -> None:
        """Let W&B upload the rest of all runs, and end within a few seconds."""
        for process in self._processes:
            process.hang_up()
        deadline_s = time.monotonic() + END_WITHIN_S
        for process in list(self._processes):
            self._end(process, max(0.0, deadline_s - time.monotonic()))
        self._of_job.clear()

    def _process_for(self, job: str) -> RunProcess:
        if job not in self._alone:
            own = {id(process) for name, process in self._of_job.items() if name in self._alone}
            for process in self._processes:
                if process.alive and id(process) not in own and job not in self._failed[id(process)]:
                    return process
        process = self._start()
        self._processes.append(process)
        self._failed[id(process)] = set()
        return process

    def _blame(self, job: str, process: RunProcess, within_s: float = 0.0) -> None:
        self._alone.add(job)
        self._of_job.pop(job, None)
        self._end(process, within_s)

    def _end(self, process: RunProcess, within_s: float) -> None:
        process.end(within_s)
        self._processes.remove(process)
        del self._failed[id(process)]
