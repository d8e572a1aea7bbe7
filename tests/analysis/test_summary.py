"""The form of perfd.summary/2, and what absent values do to it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from analysis.jobs import LLAMA3_8B, description, gpu_table, infos, job_data, phase_table, step_table
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.analysis.data.job_data import JobData, PhaseTable
from perfd.analysis.diagnosis import SCHEMA, AnalysisSettings, from_json, summarise, to_json, with_alerts
from perfd.analysis.findings import Kind
from perfd.gpu_peaks import load_peaks
from perfd.model import Alert, AlertState, ParallelLayout
from tests.support.examples import examples

SETTINGS = AnalysisSettings(peaks=load_peaks())
KEYS: dict[str, Any] = {
    "name": None,
    "framework": None,
    "parallel": ["world_size", "tp", "pp", "dp", "cp", "ep", "vp", "micro_batch_size", "global_batch_size"],
    "steps": ["count", "steady_count", "first", "last"],
    "step_time_s": ["median", "p95"],
    "efficiency": [
        "tokens_per_s", "samples_per_s", "model_flops_per_s_per_gpu", "mfu_ratio", "hfu_ratio",
        "peak_flops_per_s", "flops_convention",
    ],
    "communication": ["share_ratio", "exposed_ratio", "source"],
    "pipeline": ["bubble_theory_ratio", "stall_ratio", "stages", "source"],
    "data": ["share_ratio"],
    "optimizer": ["share_ratio"],
    "memory": ["max_used_ratio"],
    "gpus": None,
    "bottleneck": [
        "kind", "name", "sentence", "confidence", "culprits", "evidence", "advice", "gain_ratio", "effects",
    ],
    "alerts": None,
}  # fmt: skip
TIMERS = {
    "forward-backward": (0.8, 0.85),
    "forward-compute": (0.2, 0.25),
    "backward-compute": (0.4, 0.45),
    "all-grads-sync": (0.05, 0.06),
    "optimizer": (0.05, 0.05),
    "batch-generator": (0.01, 0.02),
    "forward-recv": (0.05, 0.1),
}
METRICS = {
    "sm_active_ratio": [0.7] * 4,
    "tensor_active_ratio": [0.3] * 4,
    "dram_active_ratio": [0.4] * 4,
    "graphics_active_ratio": [0.95] * 4,
    "power_w": [600.0] * 4,
    "sm_clock_hz": [1.9e9] * 4,
    "memory_used_bytes": [60e9] * 4,
    "clocks_event_reasons_bits": [4.0] * 4,
}


def full_job(count: int = 12) -> JobData:
    """A pipeline of two stages of which everything is known."""
    steps = step_table([1.0] * count, flops_per_s_per_gpu=3e14, global_batch_size=16.0)
    return job_data(
        steps,
        description=description(
            LLAMA3_8B, world_size=4, pp=2, dp=2, micro_batch_size=1, global_batch_size=16
        ),
        phases=phase_table(steps, TIMERS),
        gpu=gpu_table(steps, METRICS),
        gpu_infos=infos("NVIDIA H100 80GB HBM3", 4),
        started_unix_s=990.0,
    )


def test_every_key_of_the_schema_is_there():
    alert = Alert(
        name="Slow",
        labels={"perfd_job": "job"},
        first_step=4,
        state=AlertState.FIRING,
        active_at_unix_s=1.0,
    )
    document = to_json([replace(summarise(full_job(), SETTINGS), alerts=(alert,))])
    assert document["schema"] == SCHEMA
    job = document["jobs"][0]
    for key, inner in KEYS.items():
        assert key in job
        for name in inner or ():
            assert name in job[key], f"{key}.{name}"
    assert set(job["pipeline"]["stages"][0]) >= {"stage", "stall_ratio", "compute_s"}
    assert set(job["gpus"][0]) >= {
        "node", "gpu", "rank", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_w",
    }  # fmt: skip
    assert set(job["alerts"][0]) >= {"name", "labels", "first_step", "captures"}


def test_all_that_can_be_known_of_a_full_job_is_known():
    job = to_json([summarise(full_job(), SETTINGS)])["jobs"][0]
    unknown = [key for key in KEYS if job[key] is None]
    assert unknown == []


def test_a_job_of_which_nothing_is_known_says_so_with_nulls():
    summary = summarise(job_data(step_table([])), SETTINGS)
    job = to_json([summary])["jobs"][0]
    assert [name for name in KEYS["efficiency"] if job["efficiency"][name] is not None] == []
    assert (job["parallel"]["world_size"], job["goodput_ratio"]) == (None, None)
    assert job["step_time_s"]["median"] is None
    assert job["communication"]["share_ratio"] is None
    assert job["pipeline"]["bubble_theory_ratio"] is None
    assert job["bottleneck"]["kind"] == "unknown"


def test_a_summary_can_be_read_back():
    summary = summarise(full_job(), SETTINGS)
    document = json.loads(json.dumps(to_json([summary])))
    assert to_json(from_json(document)) == document
    document["jobs"][0]["a key of a later version"] = 1
    assert from_json(document)[0].name == "job"
    document["jobs"][0]["efficiency"]["mfu_ratio"] = "much"
    with pytest.raises(msgspec.ValidationError, match=r"mfu_ratio"):
        from_json(document)


def test_threads_may_read_their_first_summaries_at_once() -> None:
    document = json.dumps(to_json([summarise(full_job(), SETTINGS)]))
    script = """
import json, sys, threading
from perfd.analysis.diagnosis import from_json
document = json.load(sys.stdin)
start = threading.Barrier(16)
read = []
def reader():
    start.wait()
    read.append(from_json(document)[0].name)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=reader) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(read))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=document, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr[-300:]


def with_nan(job: JobData, holes: list[tuple[str, int]]) -> JobData:
    """Absent values where hypothesis put them: any column of steps, timers or GPU samples."""
    steps = {name: getattr(job.steps, name) for name in job.steps.__slots__}
    columns: dict[str, Any] = {name: values.copy() for name, values in steps.items() if values.dtype == float}
    least = {name: values.copy() for name, values in job.phases.min_s.items()}
    most = {name: values.copy() for name, values in job.phases.max_s.items()}
    gpu = {name: values.copy() for name, values in job.gpu.metrics.items()}
    arrays = columns | {f"min {k}": v for k, v in least.items()} | {f"max {k}": v for k, v in most.items()}
    arrays |= {f"gpu {name}": values for name, values in gpu.items()}
    for name, index in holes:
        flat = arrays[name].reshape(-1)
        if index < 0:
            flat[:] = np.nan
        else:
            flat[index % len(flat)] = np.nan
    return replace(
        job,
        steps=replace(job.steps, **columns),
        phases=replace(job.phases, min_s=least, max_s=most),
        gpu=replace(job.gpu, metrics=gpu),
    )


COLUMNS = [
    "time_unix_s", "step_time_s", "flops_per_s_per_gpu", "tokens_per_s", "samples_per_s", "global_batch_size",
    *(f"{end} {name}" for end in ("min", "max") for name in TIMERS),
    *(f"gpu {name}" for name in METRICS),
]  # fmt: skip
HOLES = st.lists(st.tuples(st.sampled_from(COLUMNS), st.integers(-1, 200)), max_size=30)


def numbers_in(value: Any, path: str = "") -> dict[str, float]:
    """Every number of a document by its path."""
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in numbers_in(inner, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {k: v for i, inner in enumerate(value) for k, v in numbers_in(inner, f"{path}[{i}]").items()}
    return {path: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}


@settings(max_examples=examples(150), deadline=None)
@given(HOLES)
def test_absent_values_never_raise_and_never_become_zero(holes):
    whole = numbers_in(to_json([summarise(full_job(), SETTINGS)]))
    holed = to_json([summarise(with_nan(full_job(), holes), SETTINGS)])
    for path, value in numbers_in(holed).items():
        assert np.isfinite(value)
        # Counts, shares of outliers and the findings that follow from them may be nought; measurements not.
        exempt = (
            "findings",
            "diagnosis",
            "bottleneck",
            "count",
            "outlier_ratio",
            "jitter_ratio",
            "dropped",
            "imbalance",
        )
        if value == 0 and whole.get(path) != 0:
            assert any(word in path for word in exempt), path


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sets(st.sampled_from([field.name for field in fields(ParallelLayout)])),
    st.sets(st.sampled_from(["model", "precision", "recompute", "logged_flops_convention"])),
)
def test_a_description_with_gaps_never_raises(sizes, others):
    job = full_job()
    assert job.description is not None
    layout = replace(job.description.parallel, **dict.fromkeys(sizes))
    gaps = replace(job.description, parallel=layout, **dict.fromkeys(others))
    summary = summarise(replace(job, description=gaps), SETTINGS)
    assert summary.step_time_s.median == 1.0
    assert (summary.pipeline.bubble_theory_ratio is None) == bool(
        sizes & {"pp", "dp", "micro_batch_size", "global_batch_size"}
    )


def test_timers_that_were_announced_and_never_came_are_unknown():
    job = full_job()
    empty = PhaseTable(
        step=np.empty(0, dtype=np.int64),
        min_s={"optimizer": np.empty(0)},
        max_s={"optimizer": np.empty(0)},
        by_rank_s={"forward-compute": np.empty((0, 4))},
    )
    assert summarise(replace(job, phases=empty), SETTINGS).optimizer.share_ratio is None


@settings(max_examples=examples(40), deadline=None)
@given(st.permutations(range(4)))
def test_permuting_gpus_permutes_their_rows_and_changes_nothing_else(order):
    job = full_job()
    rng = np.random.default_rng(2)
    metrics = {
        name: (values * rng.uniform(0.9, 1.1, values.shape)).astype(np.float32)
        for name, values in job.gpu.metrics.items()
        if name != "clocks_event_reasons_bits"
    }
    job = replace(job, gpu=replace(job.gpu, metrics=metrics))
    shuffled = replace(
        job,
        gpu=replace(
            job.gpu,
            gpus=[job.gpu.gpus[index] for index in order],
            metrics={name: values[:, order] for name, values in metrics.items()},
        ),
    )
    one, other = summarise(job, SETTINGS), summarise(shuffled, SETTINGS)
    assert [one.gpus[index] for index in order] == list(other.gpus)
    assert other.bottleneck.culprits == one.bottleneck.culprits
    assert other.efficiency.mfu_upper_ratio == pytest.approx(one.efficiency.mfu_upper_ratio, rel=1e-6)


def test_the_input_is_left_as_it_was():
    job = full_job()

    def content() -> list[float]:
        columns = job.steps.step_time_s, job.gpu.metrics["power_w"], job.phases.max_s["optimizer"]
        return [value for column in columns for value in column.ravel().tolist()]

    before = content()
    summarise(job, SETTINGS)
    assert content() == before


def test_a_window_looks_at_the_newest_steps():
    steps = step_table([2.0] * 60 + [1.0] * 60)
    job = replace(full_job(), steps=steps, phases=phase_table(steps, TIMERS))
    assert summarise(job, replace(SETTINGS, window_steps=50)).step_time_s.median == 1.0
    assert summarise(job, SETTINGS).steps.steady_count == 119


def stall_alert(step: int | None, *, fired: bool = True) -> Alert:
    return Alert(
        name="PerfdPeriodicStall",
        labels={"perfd_job": "job"},
        first_step=step,
        state=AlertState.RESOLVED if fired else AlertState.PENDING,
        active_at_unix_s=1.0,
        fired_at_unix_s=2.0 if fired else None,
    )


def test_what_fired_while_the_job_ran_is_said_where_the_whole_job_shows_no_cause():
    unknown = summarise(job_data(step_table([1.0] * 20)), SETTINGS)
    assert unknown.bottleneck.kind is Kind.UNKNOWN
    said = with_alerts(unknown, [stall_alert(45), stall_alert(110), stall_alert(None, fired=False)])
    fired = "alerts fired while the job ran: PerfdPeriodicStall (step 45, 110)."
    assert fired in said.bottleneck.evidence[-1]
    assert len(said.alerts) == 3
    assert "PerfdPeriodicStall." in with_alerts(unknown, [stall_alert(None)]).bottleneck.evidence[-1]
    assert with_alerts(unknown, [stall_alert(45, fired=False)]).findings == unknown.findings
    known = summarise(full_job(), SETTINGS)
    assert with_alerts(known, [stall_alert(45)]).findings == known.findings
