"""Recorded runs and public timelines of known truth, judged by perfd and by two simpler rules."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.faults.baselines import RULES
from benchmarks.faults.score import Case
from benchmarks.faults.simulated import LEAST_COST
from benchmarks.faults.timelines import Evidence, Timeline, job_of, read_timeline
from benchmarks.gpu.fault_runs import baselines_of, case_of, cost_ratio_of, judge_again
from benchmarks.without_rules import WITHOUT_RULES
from perfd.analysis.data.job_data import Floats
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Kind
from perfd.recording import bundled
from perfd.session.replay_session import ReplayOptions, replay

RECORDINGS = {"dp2_nccl": (), "dp4": (), "dp4_slow2": (2,), "pp2dp2": (), "pp4_few": ()}
"""By name, the ranks to blame; `pp4_few` has a large bubble by design, `dp2_nccl` the plugin's timings."""
GPU_RUNS = Path(__file__).parents[1] / "gpu" / "recorded"
"""Runs of `benchmarks.gpu.faults` on two and four H200s, 2026-11-21; the truth of each is beside it."""
TIMELINES = {"AR": (0,), "SE": ()}
"""AR has a slow worker; in SE sequences are of unequal length and nobody is to blame."""
_BLAMING = {Kind.STRAGGLER, Kind.DATA_LOADING, Kind.THROTTLING, Kind.HANG}


def recorded_cases() -> list[Case]:
    """The bundled recordings, through agent, wire and aggregator."""
    cases = []
    for name, truth in RECORDINGS.items():
        begun = time.perf_counter()
        (summary,) = replay(ReplayOptions(recording=bundled(name), config=WITHOUT_RULES)).summaries
        cases.append(_case(name, truth, summary, time.perf_counter() - begun))
    return cases


def gpu_cases() -> list[Case]:
    """Recorded runs of a real training job into which faults were put."""
    cases = []
    for folder in sorted(GPU_RUNS.iterdir()):
        begun = time.perf_counter()
        outcome = judge_again(folder)
        cases.append(
            Case(
                name=folder.name,
                truth=frozenset(outcome.case.truth),
                blamed=frozenset(outcome.blamed),
                kinds=tuple(outcome.kinds),
                seconds=time.perf_counter() - begun,
                small=_is_small(folder),
            )
        )
    return cases


def timeline_cases(folder: Path) -> list[Case]:
    """The public timelines, with each kind of evidence on its own."""
    cases = []
    for name, truth in TIMELINES.items():
        timeline = read_timeline(folder / f"{name}.parquet")
        for evidence in Evidence:
            job = job_of(name, timeline, evidence)
            begun = time.perf_counter()
            summary = summarise(job, AnalysisSettings())
            cases.append(_case(f"{name}, {evidence}", truth, summary, time.perf_counter() - begun))
    return cases


def baseline_cases(folder: Path | None) -> dict[str, list[Case]]:
    """The same runs by the simpler rules. The bundled recordings do not hold compute times of each rank."""
    timelines = (
        {} if folder is None else {name: read_timeline(folder / f"{name}.parquet") for name in TIMELINES}
    )
    return {
        rule: [
            *(Case(name=name, truth=frozenset(truth), blamed=None) for name, truth in RECORDINGS.items()),
            *(_by_rule(run, rule) for run in sorted(GPU_RUNS.iterdir())),
            *(
                Case(
                    name=name, truth=frozenset(TIMELINES[name]), blamed=frozenset(judge(_compute_s(timeline)))
                )
                for name, timeline in timelines.items()
            ),
        ]
        for rule, judge in RULES.items()
    }


def _by_rule(run: Path, rule: str) -> Case:
    case = case_of(run)
    blamed = frozenset(baselines_of(run)[rule])
    return Case(name=run.name, truth=frozenset(case.truth), blamed=blamed, small=_is_small(run))


def _is_small(run: Path) -> bool:
    cost_ratio = cost_ratio_of(run)
    return bool(case_of(run).truth) and cost_ratio is not None and cost_ratio < LEAST_COST


def _compute_s(timeline: Timeline) -> Floats:
    return np.sum([timeline.by_rank(name) for name in ("forward-compute", "backward-compute")], axis=0)


def _case(name: str, truth: Sequence[int], summary: JobSummary, seconds: float) -> Case:
    blamed = {
        int(culprit.id)
        for finding in summary.findings
        if finding.kind in _BLAMING
        for culprit in finding.culprits
        if culprit.kind == "rank"
    }
    return Case(
        name=name,
        truth=frozenset(truth),
        blamed=frozenset(blamed),
        kinds=tuple(finding.kind.value for finding in summary.findings),
        seconds=seconds,
    )
