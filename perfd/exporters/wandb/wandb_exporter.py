"""Logs a job's numbers to Weights & Biases, on the training step as x axis."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Protocol

import msgspec

from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.config import WandbConfig, WandbTeam
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, JobRound, Round
from perfd.exporters.http_post import read_secret
from perfd.exporters.job_numbers import job_numbers, summary_numbers
from perfd.exporters.job_teams import check_teams, team_of
from perfd.exporters.wandb.wandb_messages import LogNumbers, RunMessage, SaveReport, SendAlert
from perfd.exporters.wandb.wandb_runs import RunLostError, WandbRuns
from perfd.model import Alert
from perfd.report.render.html import to_html
from perfd.report.sources.from_summary import report_of_summary

SUMMARY_FILE, REPORT_FILE = "perfd-summary.json", "perfd-report.html"

log = logging.getLogger(__name__)
_MAX_WAITING = 10_000
"""Rows and alerts of one job that wait for its run to open."""
_KEY = "exporters.wandb"
_LEVELS = {"critical": "ERROR", "warning": "WARN"}

_MAX_TAG = 64
"""Characters of a tag; W&B refuses longer ones."""


class Runs(Protocol):
    """What the exporter needs of `WandbRuns`."""

    def open(self, job: str, config: WandbConfig, labels: Mapping[str, str], /) -> None:
        """Open the run of a job, if it is not open. Raises `OSError` if W&B does not answer or refuses."""

    def send(self, job: str, message: RunMessage, /) -> None:
        """Wait, for a bounded time, until W&B has the message. An `OSError` means that the run is closed."""

    def close(self, job: str) -> None:
        """Let W&B upload the rest of a run."""

    def close_all(self) -> None:
        """Let W&B upload the rest of all runs, and end."""


@dataclass(slots=True)
class _Job:
    config: WandbConfig
    labels: Mapping[str, str]
    waiting: deque[RunMessage] = field(default_factory=deque)
    step: tuple[int, int] | None = None
    ended: bool = False
    backoff: Backoff = field(default_factory=Backoff)


class WandbExporter:
    """One run per job: the job's own (`run: same`) or a separate one (`run: sibling`).

    W&B has its own process, which keeps rows on disk and uploads them when it can. Until a run is open
    its rows wait here.
    """

    def __init__(self, config: WandbConfig, context: ExporterContext, *, runs: Runs | None = None) -> None:
        if find_spec("wandb") is None:
            raise ConfigError(f"{_KEY}: install perfd[wandb].")
        check(config)
        self._config = config
        self._runs: Runs = WandbRuns() if runs is None else runs
        self._clock = context.clock
        self._tally = context.tally
        self._chance = context.chance
        self._jobs: dict[str, _Job] = {}

    def export(self, round_: Round) -> None:
        for job in round_.jobs:
            self._row(job)
        for alert in round_.changes:
            self._alert(alert)
        for summary in round_.finals:
            self._report(summary)
        present = {job.summary.name for job in round_.jobs}
        for name, known in self._jobs.items():
            self._flush(name, known)
            # A job that the aggregator has forgotten ended without an event.
            known.ended = known.ended or name not in present
        done = {name: job for name, job in self._jobs.items() if job.ended and not job.waiting}
        for name in done:
            del self._jobs[name]
            self._runs.close(name)
        self._tally.pending = sum(len(known.waiting) for known in self._jobs.values())

    def close(self) -> None:
        for name, job in self._jobs.items():
            if not job.backoff.failures:
                self._flush(name, job)
            if job.waiting:
                self._tally.lost += len(job.waiting)
                log.warning(
                    "W&B never accepted these rows and alerts of a job; they are lost.",
                    extra={"job": name, "count": len(job.waiting)},
                )
        self._runs.close_all()
        self._jobs.clear()
        self._tally.pending = 0

    def _row(self, job: JobRound) -> None:
        name = job.summary.name
        if job.step is None or (job.ended and name not in self._jobs):
            return
        known = self._jobs.get(name)
        if known is None:
            if len(self._jobs) >= self._config.max_runs:
                self._tally.lost += 1
                return
            known = self._jobs[name] = _Job(config_of(self._config, job.labels), job.labels)
        known.ended = job.ended
        position = (job.attempt, job.step)
        if position == known.step:
            return
        known.step = position
        numbers = {f"perfd/{key}": value for key, value in job_numbers(job).items()}
        row = {"perfd/step": float(job.step), "perfd/attempt": float(job.attempt), **numbers}
        self._wait(known, LogNumbers(row))

    def _alert(self, alert: Alert) -> None:
        # An alert without a job is sent to the run of the only job, if there is just one.
        name = alert.job or (next(iter(self._jobs)) if len(self._jobs) == 1 else "")
        if not self._config.alerts or name not in self._jobs or alert.resolved:
            return
        text = alert.annotations.get("description") or alert.annotations.get("summary") or alert.name
        level = _LEVELS.get(alert.labels.get("severity", ""), "INFO")
        self._wait(self._jobs[name], SendAlert(alert.name, text, level))

    def _report(self, summary: JobSummary) -> None:
        job = self._jobs.get(summary.name)
        if job is None:
            return
        numbers = {f"perfd/final/{key}": value for key, value in summary_numbers(summary).items()}
        files = {
            SUMMARY_FILE: msgspec.json.encode(to_json([summary])).decode() + "\n",
            REPORT_FILE: to_html(report_of_summary(summary, "perfd aggregator")),
        }
        self._wait(job, SaveReport(numbers, files))

    def _wait(self, job: _Job, item: RunMessage) -> None:
        job.waiting.append(item)
        if len(job.waiting) > _MAX_WAITING:
            job.waiting.popleft()
            self._tally.lost += 1

    def _flush(self, name: str, job: _Job) -> None:
        if not job.waiting or not job.backoff.due(self._clock.monotonic_s()):
            return
        try:
            self._runs.open(name, job.config, job.labels)
            while job.waiting:
                self._send(name, job)
        except RunLostError:
            # Nothing is lost, and W&B may well work: it is opened again in the next round.
            self._tally.retries += 1
        except OSError as error:
            self._tally.retries += 1
            if job.backoff.failures == 0:
                log.warning(
                    "W&B does not accept the rows of a job; they wait.",
                    extra={"job": name, "error": str(error)},
                )
            job.backoff = job.backoff.failed(self._clock.monotonic_s(), chance=self._chance())
        else:
            job.backoff = job.backoff.succeeded()

    def _send(self, name: str, job: _Job) -> None:
        try:
            self._runs.send(name, job.waiting[0])
        except RunLostError:
            raise
        except OSError:
            # Whether W&B has it is unknown: resent, it might be there twice, or fail forever.
            job.waiting.popleft()
            self._tally.lost += 1
            raise
        job.waiting.popleft()
        self._tally.sent += 1


def config_of(config: WandbConfig, labels: Mapping[str, str]) -> WandbConfig:
    """The configuration for a job of these labels, by its team."""
    team = team_of(labels, config.teams)
    if team is None:
        return msgspec.structs.replace(config, teams=[])
    key_file, key_variable = config.api_key_file, config.api_key_variable
    if team.api_key_file is not None or team.api_key_variable is not None:
        key_file, key_variable = team.api_key_file, team.api_key_variable
    return msgspec.structs.replace(
        config,
        project=config.project if team.project is None else team.project,
        entity=config.entity if team.entity is None else team.entity,
        api_key_file=key_file,
        api_key_variable=key_variable,
        tags=[*config.tags, *team.tags],
        teams=[],
    )


def check(config: WandbConfig) -> None:
    """Raises `ConfigError` for a configuration that can never work."""
    check_teams(config.teams, key=_KEY)
    settings: dict[str, WandbConfig | WandbTeam] = {_KEY: config}
    settings |= {f"{_KEY}.teams[{place}]": team for place, team in enumerate(config.teams)}
    for place, one in settings.items():
        if one.api_key_file is not None:
            read_secret(one.api_key_file, f"{place}.api_key_file")
        elif one.api_key_variable is not None and not os.environ.get(one.api_key_variable):
            raise ConfigError(f"{place}.api_key_variable: {one.api_key_variable} is not set.")
        for tag in one.tags:
            if not 0 < len(tag) <= _MAX_TAG:
                raise ConfigError(f"{place}.tags: {tag!r} must have 1 to {_MAX_TAG} characters.")
    for key, template in (("run_id", config.run_id), ("group", config.group)):
        try:
            (template or "").format(job="job")
        except (KeyError, IndexError, ValueError, AttributeError):
            raise ConfigError(f"{_KEY}.{key}: {template!r} may contain {{job}} only.") from None
