"""Logs a job's numbers to an MLflow tracking server, by training step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from perfd.analysis.diagnosis import JobSummary
from perfd.config import HttpClientConfig, MlflowConfig
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, JobRound, Round
from perfd.exporters.job_numbers import job_numbers, summary_numbers
from perfd.exporters.job_teams import check_teams, team_of
from perfd.exporters.mlflow.mlflow_client import Metric, MlflowClient, MlflowError
from perfd.exporters.mlflow.run_contents import (
    final_tags,
    run_key,
    run_name,
    run_params,
    run_status,
    run_tags,
)

log = logging.getLogger(__name__)
_KEY = "exporters.mlflow"
_MAX_WAITING = 10_000
"""Rows of one job that wait for the server."""
_MAX_METRICS = 1_000
"""Of one request, by MLflow's limit."""
_MAX_EXPERIMENT = 500
"""Characters of an experiment's name, by MLflow's limit."""


@dataclass(slots=True)
class _Account:
    """A server with credentials. Everything for it waits while it does not answer or refuses them."""

    client: MlflowClient
    backoff: Backoff
    experiment_ids: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    account: _Account
    experiment: str
    tags: dict[str, str]
    name: str
    key: str
    attempt: int
    params: dict[str, str]
    begin_unix_s: float
    run_id: str = ""
    params_sent: dict[str, str] = field(default_factory=dict)
    step: int | None = None
    waiting: deque[list[Metric]] = field(default_factory=deque)
    status: str | None = None
    """Once the job has ended."""
    final: dict[str, str] = field(default_factory=dict)
    end_unix_s: float = 0.0
    refused: bool = False


class MlflowExporter:
    """One run per attempt of a job. After a restart of perfd a run that has not ended goes on."""

    def __init__(self, config: MlflowConfig, context: ExporterContext) -> None:
        check_teams(config.teams, key=_KEY)
        for name in (config.experiment, *(team.experiment for team in config.teams)):
            if name is not None and not 0 < len(name) <= _MAX_EXPERIMENT:
                raise ConfigError(
                    f"{_KEY}.experiment: {name[:80]!r} must have 1 to {_MAX_EXPERIMENT} characters."
                )
        self._config = config
        self._context = context
        self._tally = context.tally
        self._accounts: dict[int, _Account] = {}
        for http, key in self._credentials():
            client = MlflowClient(config.url or "", http, key=key)
            backoff = Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s)
            self._accounts[id(http)] = _Account(client, backoff)
        self._runs: dict[str, _Run] = {}
        self._ending: list[_Run] = []

    def export(self, round_: Round) -> None:
        for job in round_.jobs:
            self._row(job, round_.time_unix_s)
        for summary in round_.finals:
            self._final(summary, round_.time_unix_s)
        present = {job.summary.name for job in round_.jobs}
        over = [name for name, run in self._runs.items() if run.status or name not in present]
        for name in () if round_.last else over:
            self._end(name, round_.time_unix_s)
        for run in (*self._runs.values(), *self._ending):
            self._flush(run)
        self._ending = [run for run in self._ending if run.status is not None]
        self._tally.pending = sum(len(run.waiting) for run in (*self._runs.values(), *self._ending))

    def close(self) -> None:
        for account in self._accounts.values():
            account.client.close()
        self._tally.lost += self._tally.pending
        self._tally.pending = 0

    def _credentials(self) -> Iterator[tuple[HttpClientConfig, str]]:
        yield self._config.http, f"{_KEY}.http"
        for place, team in enumerate(self._config.teams):
            if team.http is not None:
                yield team.http, f"{_KEY}.teams[{place}].http"

    def _row(self, job: JobRound, now_unix_s: float) -> None:
        name = job.summary.name
        run = self._runs.get(name)
        if run is not None and run.attempt != job.attempt:
            self._end(name, now_unix_s)
            run = None
        if job.step is None or (run is None and job.ended):
            return
        if run is None:
            if len(self._runs) + len(self._ending) >= self._config.max_runs:
                self._tally.lost += 1
                return
            run = self._runs[name] = self._begin(job, now_unix_s)
        if job.ended:
            run.status, run.end_unix_s = run_status(job.outcome), now_unix_s
            run.final = final_tags(job.summary, job.outcome)
        run.params = run_params(job.summary)
        if run.step == job.step:
            return
        run.step = job.step
        self._wait(run, _metrics("perfd/", job_numbers(job), job.step, now_unix_s))

    def _begin(self, job: JobRound, now_unix_s: float) -> _Run:
        team = team_of(job.labels, self._config.teams)
        http = self._config.http if team is None or team.http is None else team.http
        own = {} if team is None else team.tags
        return _Run(
            account=self._accounts[id(http)],
            experiment=(None if team is None else team.experiment) or self._config.experiment,
            tags=run_tags(job, {**self._config.tags, **own}),
            name=run_name(job),
            key=run_key(job),
            attempt=job.attempt,
            params=run_params(job.summary),
            begin_unix_s=now_unix_s,
        )

    def _final(self, summary: JobSummary, now_unix_s: float) -> None:
        run = self._runs.get(summary.name)
        if run is None:
            return
        run.final = final_tags(summary, None) | {
            key: value for key, value in run.final.items() if key == "perfd.outcome"
        }
        self._wait(run, _metrics("perfd/final/", summary_numbers(summary), run.step or 0, now_unix_s))

    def _end(self, name: str, now_unix_s: float) -> None:
        """A job that the aggregator has forgotten, or that began anew, ended without an outcome."""
        run = self._runs.pop(name)
        run.status = run.status or run_status(None)
        run.end_unix_s = run.end_unix_s or now_unix_s
        self._ending.append(run)

    def _wait(self, run: _Run, metrics: list[Metric]) -> None:
        run.waiting.append(metrics)
        if len(run.waiting) > _MAX_WAITING:
            run.waiting.popleft()
            self._tally.lost += 1

    def _flush(self, run: _Run) -> None:
        account, now_s = run.account, self._context.clock.monotonic_s()
        if not account.backoff.due(now_s):
            return
        try:
            self._open(run)
            while run.waiting:
                self._send_rows(run)
            if run.final:
                account.client.log(run.run_id, tags=run.final)
                run.final = {}
            if run.status is not None:
                account.client.end(run.run_id, run.status, run.end_unix_s)
                run.status = None
        except MlflowError as error:
            self._failed(run, error, now_s)
        else:
            account.backoff = account.backoff.succeeded()

    def _open(self, run: _Run) -> None:
        client, ids = run.account.client, run.account.experiment_ids
        if not run.run_id:
            if run.experiment not in ids:
                ids[run.experiment] = client.experiment_id(run.experiment)
            experiment_id = ids[run.experiment]
            # Also after a creation whose answer was lost.
            run.run_id = client.running(experiment_id, run.key) or client.create(
                experiment_id, run.name, run.begin_unix_s, run.tags
            )
        # MLflow refuses to change a parameter.
        new = {name: value for name, value in run.params.items() if name not in run.params_sent}
        if new:
            run.params_sent |= new
            client.log(run.run_id, params=new)

    def _send_rows(self, run: _Run) -> None:
        metrics: list[Metric] = []
        rows = 0
        for row in run.waiting:
            if rows and len(metrics) + len(row) > _MAX_METRICS:
                break
            metrics += row
            rows += 1
        run.account.client.log(run.run_id, metrics=metrics)
        for _ in range(rows):
            run.waiting.popleft()
        self._tally.sent += rows

    def _failed(self, run: _Run, error: MlflowError, now_s: float) -> None:
        account = run.account
        if error.permanent:
            # For example of a run that a user deleted: the same would be refused forever.
            self._tally.lost += len(run.waiting)
            run.waiting.clear()
            account.experiment_ids.pop(run.experiment, None)
            run.run_id, run.status = "", None
            if not run.refused:
                run.refused = True
                extra = {"job": run.name, "error": str(error)}
                log.warning("MLflow refuses rows of a job; they are lost.", extra=extra)
            return
        self._tally.retries += 1
        if account.backoff.failures == 0:
            log.warning("MLflow does not accept rows; they wait.", extra={"error": str(error)})
        account.backoff = account.backoff.failed(now_s, chance=self._context.chance())


def _metrics(prefix: str, numbers: dict[str, float], step: int, time_unix_s: float) -> list[Metric]:
    time_ms = round(time_unix_s * 1e3)
    return [Metric(f"{prefix}{name}", value, time_ms, step) for name, value in sorted(numbers.items())]
