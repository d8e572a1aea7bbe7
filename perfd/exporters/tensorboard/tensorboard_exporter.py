"""Event files for TensorBoard: a directory per start of a job, with the training step as x axis."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from perfd.config import TensorBoardConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import ExporterContext, JobRound, Round
from perfd.exporters.job_numbers import job_numbers
from perfd.exporters.safe_names import plain_name
from perfd.exporters.tensorboard.event_file import scalars_event, text_event, version_event
from perfd.model import Alert

_KEY = "exporters.tensorboard"


@dataclass(slots=True)
class _Job:
    attempt: int
    file: BinaryIO
    step: int


class TensorBoardExporter:
    """Writes `DIRECTORY/JOB/attempt-N/`; each record is flushed when `export` returns."""

    def __init__(self, config: TensorBoardConfig, context: ExporterContext) -> None:
        if config.directory is None:
            raise ConfigError(f"{_KEY}.directory: required.")
        self._root = Path(config.directory)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{_KEY}.directory: cannot create {self._root}: {error.strerror}.") from error
        if not os.access(self._root, os.W_OK):
            raise ConfigError(f"{_KEY}.directory: {self._root} is not writable.")
        self._max_jobs = config.max_jobs
        self._tally = context.tally
        self._jobs: dict[str, _Job] = {}
        self._file_numbers: Iterator[int] = itertools.count()

    def export(self, round_: Round) -> None:
        failed: OSError | None = None
        for job in round_.jobs:
            alerts = [alert for alert in round_.changes if alert.job == job.summary.name and alert.firing]
            try:
                self._write(job, alerts, round_.time_unix_s)
            except OSError as error:
                # A partial record makes the rest of its file unreadable: the next step begins a new file.
                self._tally.lost += 1
                self._close(job.summary.name)
                failed = error
        for name in self._jobs.keys() - {job.summary.name for job in round_.jobs}:
            # The aggregator has forgotten it.
            self._close(name)
        if failed is not None:
            raise failed

    def close(self) -> None:
        for name in list(self._jobs):
            self._close(name)

    def _write(self, job: JobRound, alerts: list[Alert], now_unix_s: float) -> None:
        name, step = job.summary.name, job.step
        known = self._jobs.get(name)
        if step is None or (job.ended and known is None):
            return
        new = known is None or (job.attempt, step) != (known.attempt, known.step)
        if known is None or known.attempt != job.attempt:
            self._close(name)
            if len(self._jobs) >= self._max_jobs:
                self._tally.lost += 1
                return
            known = self._jobs[name] = self._open(name, job.attempt, step, now_unix_s)
        if new:
            known.file.write(scalars_event(now_unix_s, step, _scalars(job)))
        for alert in alerts:
            known.file.write(text_event(now_unix_s, step, "perfd/alerts", _markdown(alert)))
        known.file.flush()
        known.step = step
        self._tally.sent += new + len(alerts)
        if job.ended:
            self._close(name)

    def _open(self, name: str, attempt: int, step: int, now_unix_s: float) -> _Job:
        folder = self._root / plain_name(name) / f"attempt-{attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        number = next(self._file_numbers)
        path = folder / (
            f"events.out.tfevents.{int(now_unix_s):010d}.{socket.gethostname()}.{os.getpid()}.{number}.perfd"
        )
        file = path.open("ab")
        file.write(version_event(now_unix_s))
        return _Job(attempt, file, step)

    def _close(self, name: str) -> None:
        known = self._jobs.pop(name, None)
        if known is not None:
            # Everything was flushed; failures were counted when writing.
            with suppress(OSError):
                known.file.close()


def _scalars(job: JobRound) -> dict[str, float]:
    return {f"perfd/{name}": value for name, value in job_numbers(job).items()}


def _markdown(alert: Alert) -> str:
    text = alert.annotations.get("description") or alert.annotations.get("summary") or ""
    return f"**{alert.name}** {text}".strip()
