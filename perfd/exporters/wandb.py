"""Logs a job's numbers to Weights & Biases, on the training step as x axis."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Protocol

import msgspec

from perfd.analysis.summary import JobSummary, to_json
from perfd.config import WandbConfig
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.contract import AlertUpdate, ExporterContext, JobRound, Round
from perfd.exporters.numbers import job_numbers, summary_numbers

log = logging.getLogger(__name__)
_MAX_WAITING = 10_000
"""Rows and alerts of one job that wait for its run to open."""
_KEY = "exporters.wandb"


class Run(Protocol):
    """What is needed of a run of W&B. None of it waits for the server, but for `finish`."""

    def log(self, row: Mapping[str, float]) -> None:
        """Add one row of history."""

    def alert(self, alert: AlertUpdate) -> None:
        """Send an alert."""

    def report(self, summary: Mapping[str, float], document: bytes) -> None:
        """Set the run's summary and keep the report as its file."""

    def finish(self) -> None:
        """Upload what is left."""


class OpenRun(Protocol):
    """Opens the run of a job; raises `OSError` when W&B does not answer."""

    def __call__(self, job: str, config: WandbConfig) -> Run:
        """The run, open."""


@dataclass(slots=True)
class _Job:
    run: Run | None = None
    waiting: deque[dict[str, float] | AlertUpdate] = field(default_factory=deque)
    step: tuple[int, int] | None = None
    backoff: Backoff = field(default_factory=Backoff)


class WandbExporter:
    """One run for each job: the job's own (`run: same`) or one beside it (`run: sibling`).

    Rows go to W&B's own process, which keeps them on disk and uploads them when it can. Until a run is
    open its rows wait here.
    """

    def __init__(
        self, config: WandbConfig, context: ExporterContext, *, open_run: OpenRun | None = None
    ) -> None:
        if open_run is None and find_spec("wandb") is None:
            raise ConfigError(f"{_KEY}: install perfd[wandb].")
        check(config)
        self._config = config
        self._open = open_run or _open_wandb
        self._clock = context.clock
        self._tally = context.tally
        self._jobs: dict[str, _Job] = {}

    def export(self, round_: Round) -> None:
        for job in round_.jobs:
            self._row(job)
        for alert in round_.changes:
            self._alert(alert)
        for name, known in self._jobs.items():
            self._flush(name, known)
        for summary in round_.finals:
            self._finish(summary)
        self._tally.pending = sum(len(known.waiting) for known in self._jobs.values())

    def close(self) -> None:
        for name, job in self._jobs.items():
            job.backoff = job.backoff.succeeded()
            self._flush(name, job)
            self._tally.lost += len(job.waiting)
            if job.run is not None:
                job.run.finish()
        self._jobs.clear()
        self._tally.pending = 0

    def _job(self, name: str) -> _Job | None:
        known = self._jobs.get(name)
        if known is None and len(self._jobs) < self._config.max_runs:
            known = self._jobs[name] = _Job()
        if known is None:
            self._tally.lost += 1
        return known

    def _row(self, job: JobRound) -> None:
        if job.step is None or (job.ended and job.summary.name not in self._jobs):
            return
        known = self._job(job.summary.name)
        position = (job.attempt, job.step)
        if known is None or position == known.step:
            return
        known.step = position
        numbers = {f"perfd/{name}": value for name, value in job_numbers(job).items()}
        self._wait(known, {"perfd/step": float(job.step), "perfd/attempt": float(job.attempt), **numbers})

    def _alert(self, alert: AlertUpdate) -> None:
        known = self._jobs.get(alert.job) if alert.job else None
        if known is None and len(self._jobs) == 1 and not alert.job:
            known = next(iter(self._jobs.values()))
        if known is not None and alert.resolved_at_unix_s is None and self._config.alerts:
            self._wait(known, alert)

    def _wait(self, job: _Job, item: dict[str, float] | AlertUpdate) -> None:
        job.waiting.append(item)
        if len(job.waiting) > _MAX_WAITING:
            job.waiting.popleft()
            self._tally.lost += 1

    def _flush(self, name: str, job: _Job) -> None:
        if job.run is None:
            self._try_open(name, job)
        while job.run is not None and job.waiting:
            item = job.waiting.popleft()
            if isinstance(item, AlertUpdate):
                job.run.alert(item)
            else:
                job.run.log(item)
            self._tally.sent += 1

    def _try_open(self, name: str, job: _Job) -> None:
        if not job.waiting or not job.backoff.due(self._clock.monotonic_s()):
            return
        try:
            job.run = self._open(name, self._config)
        except OSError as error:
            self._tally.retries += 1
            if job.backoff.failures == 0:
                log.warning(
                    "W&B does not open the run of a job; its rows wait.",
                    extra={"job": name, "error": str(error)},
                )
            job.backoff = job.backoff.failed(self._clock.monotonic_s())

    def _finish(self, summary: JobSummary) -> None:
        job = self._jobs.get(summary.name)
        if job is None or job.run is None:
            return
        numbers = {f"perfd/final/{name}": value for name, value in summary_numbers(summary).items()}
        job.run.report(numbers, msgspec.json.encode(to_json([summary])) + b"\n")


def check(config: WandbConfig) -> None:
    """Refuse what can never work; raises `ConfigError`."""
    if config.run not in {"same", "sibling"}:
        raise ConfigError(f"{_KEY}.run: {config.run!r} is neither `same` nor `sibling`.")
    if config.mode not in {"online", "offline"}:
        raise ConfigError(f"{_KEY}.mode: {config.mode!r} is none of disabled, offline, online.")
    for key, template in (("run_id", config.run_id), ("group", config.group)):
        try:
            (template or "").format(job="job")
        except (KeyError, IndexError, ValueError, AttributeError):
            raise ConfigError(f"{_KEY}.{key}: {template!r} may hold {{job}} and nothing else.") from None


def _open_wandb(job: str, config: WandbConfig) -> Run:
    # W&B takes half a second and 50 MB to import: only where it is configured.
    from perfd.exporters.wandb_run import open_run  # noqa: PLC0415

    return open_run(job, config)
