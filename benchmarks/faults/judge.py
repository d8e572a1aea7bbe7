"""Runs perfd's state and analysis over what agents sent of a simulated job, second by second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.faults.baselines import min_median, sliding_mean
from benchmarks.faults.edge import JOB, START_UNIX_S, batches
from benchmarks.faults.scenario import Fault, Scenario
from benchmarks.faults.simulation import Trace, simulate
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state import Fleet, job_data
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Finding, Kind

BLAMING = frozenset({Kind.STRAGGLER, Kind.DATA_LOADING, Kind.THROTTLING, Kind.HANG})
_LIVE_STEPS = 50
_LIVE_ROWS = 4 * _LIVE_STEPS
LIVE = AnalysisSettings(window_steps=_LIVE_STEPS)
"""As a live session sets it."""
_SETTLE_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was said of one simulated job."""

    scenario: Scenario
    blamed: frozenset[int]
    """At the end."""
    wrongly: frozenset[int]
    """Ranks that were ever blamed and are not to blame; before the onset nobody is."""
    detected_after_s: float | None
    """From the fault's onset to the first time that the right rank is named and nobody else."""
    detected_after_steps: float | None
    kinds: tuple[str, ...]
    lost_ratio: float | None
    cost_ratio: float
    """How much longer a step takes than before the onset."""
    baselines: dict[str, frozenset[int]]

    @property
    def found(self) -> bool:
        """Whether all that are to blame were named in the end, and nobody else."""
        return bool(self.scenario.truth) and self.blamed == self.scenario.truth

    @property
    def in_time(self) -> bool:
        """Whether it was found within ten seconds or five steps, whichever is longer."""
        if self.detected_after_s is None or self.detected_after_steps is None:
            return False
        return self.found and (self.detected_after_s <= 10 or self.detected_after_steps <= 5)


def judge(scenario: Scenario, *, every_s: float = 1.0) -> Verdict:
    """Simulate a job and watch it as a live session does, once every so many seconds."""
    trace = simulate(scenario)
    onset_s, step_s, cost = _truth(scenario, trace)
    length_s = max(scenario.length_s, (trace.hung_at_s or 0.0) + 40)
    fleet = Fleet(Limits(), AggregatorCounters())
    due_s = 5.0
    wrongly: set[int] = set()
    detected_s: float | None = None
    summary: JobSummary | None = None
    for sent in batches(scenario, trace, length_s):
        while sent.at_s >= due_s and JOB in fleet.jobs:
            summary = look(fleet, due_s, LIVE)
            named = blamed_by(summary.findings)
            allowed = scenario.may_be_blamed if due_s >= onset_s else frozenset[int]()
            wrongly |= named - allowed
            if named == scenario.truth and named and due_s >= onset_s and detected_s is None:
                detected_s = due_s - onset_s
            due_s += every_s
        source = RecordSource(
            agent_id=sent.node, node=sent.node, sent_unix_s=sent.sent_unix_s, now_s=sent.at_s, late=False
        )
        fleet.apply(sent.records, source)
    summary = look(fleet, length_s + 1, LIVE)
    named = blamed_by(summary.findings)
    return Verdict(
        scenario=scenario,
        blamed=named,
        wrongly=frozenset(wrongly | (named - scenario.may_be_blamed)),
        detected_after_s=detected_s,
        detected_after_steps=None if detected_s is None else detected_s / step_s,
        kinds=tuple(finding.kind.value for finding in summary.findings),
        lost_ratio=next((one.gain_ratio for one in summary.findings if one.kind in BLAMING), None),
        cost_ratio=cost,
        baselines=_baselines(scenario, trace, onset_s),
    )


def blamed_by(findings: Iterable[Finding]) -> frozenset[int]:
    """The ranks that findings name as the cause of the others' waiting."""
    return frozenset(
        rank for finding in findings if finding.kind in BLAMING for rank in finding.culprit_ranks
    )


def look(fleet: Fleet, now_s: float, settings: AnalysisSettings) -> JobSummary:
    """What is said at one moment, in seconds since the job's start."""
    data = job_data(
        fleet, fleet.jobs[JOB], now_unix_s=START_UNIX_S + now_s, now_s=now_s, window_steps=_LIVE_ROWS
    )
    return summarise(data, settings)


def _truth(scenario: Scenario, trace: Trace) -> tuple[float, float, float]:
    """When the fault began, how long a step takes then, and how much longer than before."""
    ends = np.array(trace.step_end_s)
    times = np.diff(ends, prepend=0.0)
    after = ends - times >= scenario.onset_s
    if scenario.fault is Fault.HANG:
        return float(trace.hung_at_s or 0.0), float(np.median(times)), float("inf")
    before = np.flatnonzero(~after)[_SETTLE_STEPS:-1]
    clean_s, step_s = float(times[before].mean()), float(times[after].mean())
    return float((ends - times)[after][0]), step_s, step_s / clean_s - 1


def _baselines(scenario: Scenario, trace: Trace, onset_s: float) -> dict[str, frozenset[int]]:
    """The simpler rules, by true compute times of each rank in the steps since the onset.

    That is more than perfd is given, which has the plugin's timings alone.
    """
    if scenario.fault is Fault.HANG:
        return {"min-median of all ranks, 0.75": frozenset(), "sliding mean of ten steps": frozenset()}
    compute = np.array(trace.compute_s)
    begun = np.array(trace.step_end_s) - np.diff(trace.step_end_s, prepend=0.0)
    judged = compute[begun >= onset_s]
    return {
        "min-median of all ranks, 0.75": frozenset(min_median(judged)),
        "sliding mean of ten steps": frozenset(sliding_mean(judged)),
    }
