"""Derived numbers and summaries of jobs, made again only when something changed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfd.aggregator.configured_analysis import analysis_settings
from perfd.aggregator.failures import Part
from perfd.aggregator.job_changes import JobChanges, progress_of
from perfd.aggregator.jobs import JobState, shown_steps
from perfd.aggregator.live_facts import NO_ORIGIN, LiveFacts
from perfd.aggregator.state import AggregatorState, Derived, JobNumbers, StateKey, all_compute, state_key
from perfd.aggregator.summary_turns import (
    GPUS_IN_EACH_ROUND,
    GPUS_PER_SECOND,
    SummaryTurn,
    WaitingJob,
    counted_gpus,
    may_rest,
    next_turn,
)
from perfd.analysis.data.job_data import StepTable
from perfd.analysis.diagnosis import JobPast, JobSummary, with_alerts
from perfd.analysis.diagnosis.job_summary import failed_summary
from perfd.analysis.findings import (
    FaultHistory,
    FaultPeriod,
    Finding,
    LastingFault,
    Moment,
    Verdict,
    of_whole_job,
    steady_verdict,
    with_lasting_fault,
    without_last_of_late_hosts,
)
from perfd.analysis.hang import without_steps
from perfd.analysis.steps import StepTimeChange, newest_step_s, step_time_change
from perfd.clock import Clock
from perfd.config import AnalysisConfig
from perfd.model import Alert, StepDoubt, StepSource

_WINDOW_SLACK = 4
"""Of the lines in the window some are not steady: so many times the steady ones are looked at."""
_GPUS_EVERY_S = 10.0
"""GPUs of a job are counted again after so long: their number decides only when its numbers are made."""
_OLDEST_ASKED_S = 4.0
"""Requested numbers are not older, however many GPUs there are: few jobs are requested. Chosen."""

_IDLE_S = 60.0
"""Without a line, a step or an operation for longer, the activity of a job's GPUs is looked at. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CountedGpus:
    """As how many GPUs a job counts, when that was counted, and with how many nodes."""

    gpus: int
    counted_s: float
    nodes: int


@dataclass(slots=True)
class _JobMemory:
    """What earlier rounds leave to the next one about a job."""

    looked_s: float = -math.inf
    """When its live numbers were asked for last, whatever came of it."""
    gpus: _CountedGpus | None = None
    found: Sequence[Finding] = ()
    """In the newest round, before an earlier headline was held."""
    verdict: Verdict = field(default_factory=Verdict)
    newest_step_s: float | None = None
    lasting: LastingFault | None = None
    """What began while it ran and goes on."""
    faults: FaultHistory | None = None
    change: tuple[StateKey, StepTimeChange | None] | None = None
    """With the key of the numbers that it belongs to."""
    of_whole: tuple[int, Sequence[Finding]] | None = None
    """Once it is over, what the summary of all of it found, and the version of its state then."""


class JobSummaries:
    """Derives the numbers of jobs on demand; what fails of one stays its own.

    Any thread may call `newest`, `whole` and `since`; all else only who holds the analysis loop's lock.
    """

    def __init__(self, config: AnalysisConfig, state: AggregatorState, clock: Clock) -> None:
        whole = analysis_settings(config)
        live = replace(whole, window_steps=config.window_steps)
        window = live.window_steps
        self._live = JobNumbers(state, live, None if window is None else _WINDOW_SLACK * window)
        self._whole = JobNumbers(state, whole, None)
        self._state = state
        self._fleet = state.fleet
        self._failures = state.failures
        self._clock = clock
        self._jobs: defaultdict[str, _JobMemory] = defaultdict(_JobMemory)
        self._signs = JobChanges()
        self._turn = SummaryTurn(jobs=(), credit_gpus=0.0)
        self._turned_s, self._rested_s = -math.inf, 0.0
        self._interval_s = 0.0
        self.calm: frozenset[str] = frozenset()
        """The jobs that go on and showed no change for a while, as of the newest round."""

    def make(self, now_unix_s: float, *, rest: bool = False) -> bool:
        """Make the live numbers of the jobs whose turn it is, of those with news.

        Where nothing else needs the round it may `rest`: false if it does.
        """
        now_s = self._clock.monotonic_s()
        waiting: list[WaitingJob] = []
        calm: list[tuple[JobState, WaitingJob]] = []
        all_gpus, calm_gpus = 0, 0
        with self._state.lock:
            for name, job in self._fleet.jobs.items():
                memory = self._jobs[name]
                gpus = self._gpus_of(memory, job, now_s)
                known = self._live.newest.get(name)
                waited_s = now_s - memory.looked_s
                pending = known is not None and memory.verdict.pending
                data = None if known is None else known.data
                summary = None if known is None else known.summary
                signs = self._signs.signs(name, progress_of(job, data, summary), now_s, waited_s)
                all_gpus += 0 if job.ended else gpus
                calm_gpus += gpus if signs.calm and not job.ended else 0
                if signs.calm and not signs.presses and not pending:
                    calm.append((job, WaitingJob(name=name, waited_s=waited_s, gpus=gpus, calm=True)))
                    continue
                news = self._has_news(name, job, now_s)
                if news or pending:
                    waiting.append(
                        WaitingJob(
                            name=name,
                            waited_s=waited_s,
                            gpus=gpus if news else 0,
                            pressing=news and (pending or signs.presses),
                            calm=signs.calm and not pending,
                        )
                    )
        self.calm = frozenset(one.name for job, one in calm if not job.ended)
        turned_ago_s = now_s - self._turned_s
        if rest and may_rest(waiting, all_gpus=all_gpus, calm_gpus=calm_gpus, turned_ago_s=turned_ago_s):
            self._rested_s = turned_ago_s
            return False
        with self._state.lock:
            # Most rounds rest, and need not look at each node of calm jobs.
            waiting += [one for job, one in calm if self._has_news(one.name, job, now_s)]
        few = all_gpus <= GPUS_IN_EACH_ROUND
        self._interval_s = math.inf if few else min(float(all_gpus // GPUS_PER_SECOND), _OLDEST_ASKED_S)
        self._turn = next_turn(
            waiting,
            all_gpus=all_gpus,
            calm_gpus=calm_gpus,
            credit_gpus=self._turn.credit_gpus,
            elapsed_s=turned_ago_s,
            rested_s=self._rested_s,
        )
        self._turned_s, self._rested_s = now_s, 0.0
        for name in self._turn.jobs:
            self._derive_live(name, now_unix_s)
        return True

    def _has_news(self, name: str, job: JobState, now_s: float) -> bool:
        """Whether its numbers are not of what is known now; called with the state's lock held."""
        known = self._live.newest.get(name)
        return known is None or known.key != state_key(self._fleet, job, now_s)

    def _gpus_of(self, memory: _JobMemory, job: JobState, now_s: float) -> int:
        """As how many GPUs a job counts, of late; called with the state's lock held."""
        known = memory.gpus
        if known is None or known.nodes != len(job.nodes) or now_s - known.counted_s >= _GPUS_EVERY_S:
            nodes = [self._fleet.nodes[node] for node in job.nodes if node in self._fleet.nodes]
            gpus = counted_gpus(sum(len(node.readings.gpus) for node in nodes))
            known = memory.gpus = _CountedGpus(gpus=gpus, counted_s=now_s, nodes=len(job.nodes))
        return known.gpus

    def newest(self, job: str) -> Derived | None:
        """The live numbers that were made last; None when there are none, or its analysis failed since.

        Any thread may call it.
        """
        return self._live.newest.get(job)

    def live(self, job: str, now_unix_s: float) -> Derived | None:
        """Numbers over the newest steps; None when the job is gone or its analysis failed.

        They are as old as their cost asks for, four seconds with 4,096 GPUs or more. With few GPUs each round
        makes them, and a request changes nothing: a replay, which has none, comes to the same verdicts.
        """
        known = self._live.newest.get(job)
        if known is not None and 0 <= self._clock.monotonic_s() - known.made_s < self._interval_s:
            return known
        return self._derive_live(job, now_unix_s)

    def _derive_live(self, job: str, now_unix_s: float) -> Derived | None:
        with self._failures.contained(Part.ANALYSIS, job=job):
            now_s, memory = self._clock.monotonic_s(), self._jobs[job]
            memory.looked_s = now_s
            known = self._live.newest.get(job)
            derived = self._live.derive(job, now_unix_s, now_s)
            if derived is None:
                return None
            if derived is not known:
                _find(memory, derived, now_unix_s)
            elif not memory.verdict.pending:
                return derived
            steady = replace(derived, summary=self._steadied(job, derived.summary, now_unix_s))
            self._live.keep(job, steady)
            return steady
        self._live.newest.pop(job, None)
        return None

    def whole(self, job: str, now_unix_s: float, alerts: Sequence[Alert]) -> JobSummary | None:
        """The summary of the whole job with its alerts; None when it is gone or its summary failed."""
        with self._failures.contained(Part.SUMMARY, job=job):
            version = self._version_at_end(job)
            derived = self._whole.derive(job, now_unix_s, self._clock.monotonic_s())
            if derived is None:
                return None
            self._whole.keep(job, derived)
            memory = self._jobs[job]
            found = without_last_of_late_hosts(memory.lasting, derived.summary.findings)
            summary = self._with_past(job, replace(derived.summary, findings=found))
            steady = () if memory.faults is None else memory.faults.steady.findings
            faults = summary.past.faults
            found = of_whole_job(found, steady, faults, job_s=_made_steps_s(derived.data.steps, faults))
            if version is not None:
                memory.of_whole = version, found
            return with_alerts(replace(summary, findings=found), alerts)
        return None

    def shown(self, job: str) -> JobSummary | None:
        """The live numbers that were made last, and once the job is over what cost all of it the most.

        None when there are none. Any thread may call it.
        """
        live = self._live.newest.get(job)
        if live is None:
            return None
        known = self._whole_findings(job)
        over = known is not None and self._version_at_end(job) is not None
        return replace(live.summary, findings=known[1]) if known and over else live.summary

    def lacks_whole(self, job: str) -> bool:
        """Whether the job is over, and no summary of all that is known of it was made."""
        version, known = self._version_at_end(job), self._whole_findings(job)
        return version is not None and (known is None or known[0] != version)

    def _whole_findings(self, job: str) -> tuple[int, Sequence[Finding]] | None:
        memory = self._jobs.get(job)
        return None if memory is None else memory.of_whole

    def _version_at_end(self, job: str) -> int | None:
        """That of the state of a job that is over, else None."""
        with self._state.lock:
            known = self._fleet.jobs.get(job)
            return known.version if known is not None and known.ended else None

    def since(self, job: str, now_unix_s: float, since_unix_s: float) -> JobSummary | None:
        """The summary from a moment on, of what is in memory, made anew each time; None if there is none."""
        with self._failures.contained(Part.SUMMARY, job=job):
            return self._whole.since(job, now_unix_s, self._clock.monotonic_s(), since_unix_s)
        return None

    def failed(self, job: str, part: Part) -> JobSummary | None:
        """A summary that says why there is none; None when nothing failed."""
        reason = self._failures.reason(job, part)
        return None if reason is None else failed_summary(job, reason)

    def facts(self, job: str, found: Derived, firing: Sequence[str], now_s: float) -> LiveFacts:
        """What is known of a job besides its live numbers; `firing` are the names of its alerts."""
        change = self.step_time_change(job)
        with self._state.lock:
            state = self._fleet.jobs[job]
            silent_s = state.log_silent_s(now_s)
            idle_s = None if silent_s is None else state.logs.idle_s(now_s)
            if idle_s is not None and idle_s > _IDLE_S and all_compute(self._fleet, state, now_s):
                state.logs.works(now_s)
            return LiveFacts(
                labels=state.labels,
                origin=state.ownership.origin or NO_ORIGIN,
                het_groups={
                    node: group for node, group in state.ownership.het_groups.items() if node in state.nodes
                },
                attempt=state.attempts.number,
                exported=state.exported,
                end=state.lifetime.end,
                nodes=len(state.nodes),
                ranks=found.summary.parallel.world_size or state.ownership.world_size,
                log_silent_s=silent_s,
                idle_s=idle_s,
                stepless_s=state.stepless_s(now_s),
                first_step_s=state.attempts.first_step_s,
                log_lines=state.logs.lines,
                unrecognized_lines=state.logs.unrecognized_lines,
                step_time_change=change,
                alerts=firing,
            )

    def step_time_change(self, name: str) -> StepTimeChange | None:
        """Whether the newest steps are longer than those before them; None with too few steps.

        As old as the job's live numbers. Steps between two lines of the log count where operations show them.
        """
        with self._state.lock:
            job, live = self._fleet.jobs.get(name), self.newest(name)
            if job is None or live is None:
                return None
            memory = self._jobs[name]
            if memory.change is not None and memory.change[0] == live.key:
                return memory.change[1]
            steps, events = shown_steps(job).steps, tuple(job.events)
        parts = live.data.step_doubt is StepDoubt.MICRO_BATCHES
        change = step_time_change(steps, events, may_be_parts=parts)
        memory.change = live.key, change
        return change

    def forget(self, jobs: Iterable[str]) -> None:
        """Forget the numbers of jobs that are gone."""
        for name in jobs:
            self._live.newest.pop(name, None)
            self._whole.newest.pop(name, None)
            self._jobs.pop(name, None)
            self._signs.forget(name)

    def _steadied(self, job: str, summary: JobSummary, now_unix_s: float) -> JobSummary:
        """The summary with the headline of earlier rounds, until another one has lasted."""
        steps, memory = summary.steps, self._jobs[job]
        newest = None if steps.source is StepSource.NCCL else steps.last
        with self._state.lock:
            if (known := self._fleet.jobs.get(job)) is None:
                return summary
            earlier, ended_unix_s = known.attempts.earlier_faults, known.ended_unix_s
            began_unix_s = known.attempts.began_unix_s
        moment = Moment(
            unix_s=now_unix_s,
            step=newest,
            steady_steps=0 if steps.of_earlier_start else steps.steady_steps_count,
            step_s=summary.step_time_s.median,
            newest_step=steps.last,
            newest_step_s=memory.newest_step_s,
            began_unix_s=began_unix_s,
        )
        memory.verdict, findings = steady_verdict(memory.verdict, memory.found, moment)
        summary = replace(summary, findings=findings)
        # Rounds after the end find what the last steps show.
        moment = replace(moment, unix_s=min(now_unix_s, ended_unix_s or math.inf))
        memory.faults = memory.faults or FaultHistory(earlier)
        memory.faults.take(findings, moment)
        return self._with_past(job, summary)

    def _with_past(self, job: str, summary: JobSummary) -> JobSummary:
        """The summary with what the job went through since it started, in another aggregator too."""
        faults = self._jobs[job].faults
        with self._state.lock:
            if (known := self._fleet.jobs.get(job)) is None:
                return summary
            restarts, lost_s = known.attempts.restarts, known.attempts.lost_s
            started_unix_s, ended = known.attempts.started_unix_s, known.ended
            periods = known.attempts.earlier_faults if faults is None else faults.periods
        # A job of the same name may have run before.
        own = tuple(
            replace(one, lasts=one.lasts and not ended)
            for one in periods
            if started_unix_s is None or one.seen_unix_s >= started_unix_s
        )
        past = JobPast(restarts_count=restarts, restarts_lost_s=lost_s, faults=own)
        return replace(summary, past=past)


def _find(memory: _JobMemory, derived: Derived, now_unix_s: float) -> None:
    """Note what a round found, with the fault that goes on though its evidence is of long ago."""
    memory.newest_step_s = newest_step_s(derived.data.steps)
    memory.lasting, memory.found = with_lasting_fault(
        memory.lasting,
        derived.summary.findings,
        unix_s=now_unix_s,
        step=derived.summary.steps.last,
        newest_step_s=memory.newest_step_s,
        makes_steps=not derived.summary.steps.of_earlier_start and without_steps(derived.data) is None,
    )


def _made_steps_s(steps: StepTable, faults: Sequence[FaultPeriod]) -> float:
    """From the first step that is known, or fault, to the last one; 0 without any."""
    began_unix_s, ended_unix_s = [one.began_unix_s for one in faults], [one.seen_unix_s for one in faults]
    if len(steps):
        took_s = np.nan_to_num(steps.step_time_s[0] * steps.steps_covered[0])
        began_unix_s.append(float(steps.time_unix_s[0] - took_s))
        ended_unix_s.append(float(steps.time_unix_s[-1]))
    return max(ended_unix_s) - min(began_unix_s) if began_unix_s else 0.0
