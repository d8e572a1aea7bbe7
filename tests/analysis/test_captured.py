"""What an analysed capture adds to a live diagnosis, and when it adds nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from analysis.jobs import description, gpu_table, infos, job_data, phase_table, step_table
from analysis.test_nccl import table

from perfd.analysis.data.job_data import Captured, JobData
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, from_json, summarise, to_json
from perfd.analysis.findings import Finding, Kind
from perfd.gpu_peaks import load_peaks
from perfd.model import TraceShares
from perfd.session.text.summary_text import findings_in_words, in_words
from tests.support.nccl_records import NcclTime

STEPS = step_table([1.0] * 20)
NOW_UNIX_S = 100_000.0
DP4 = description(world_size=4, tp=1, pp=1, dp=4, micro_batch_size=1, global_batch_size=8)
TP2 = description(world_size=4, tp=2, pp=1, dp=2, micro_batch_size=1, global_batch_size=8)
IDLE = gpu_table(STEPS, {"busy_ratio": [0.7] * 4})


def captured(
    *, ended_s_ago: float = 240.0, step_time_s: float | None = 1.0, ranks: int = 4, **shares: Any
) -> Captured:
    """A capture of ten seconds, with these shares."""
    reported: dict[str, Any] = {
        "compute_ratio": 1.0,
        "communication_ratio": 0.0,
        "exposed_communication_ratio": 0.0,
        "exposed_copies_ratio": 0.0,
        "launch_ratio": 0.0,
        "long_gaps_ratio": 0.0,
        "synchronization_ratio": 0.0,
        "unexplained_idle_ratio": 0.0,
        **shares,
    }
    return Captured(
        capture_id="c1",
        start_unix_s=NOW_UNIX_S - ended_s_ago - 10,
        end_unix_s=NOW_UNIX_S - ended_s_ago,
        shares=TraceShares(ranks=tuple(range(ranks)), **reported),
        step_time_s=step_time_s,
    )


def job(capture: Captured | None, **fields: Any) -> JobData:
    fields = {"description": DP4, **fields}
    return job_data(STEPS, captured=capture, now_unix_s=NOW_UNIX_S, **fields)


def judged(capture: Captured | None, **fields: Any) -> JobSummary:
    return summarise(job(capture, **fields), AnalysisSettings())


def finding(result: JobSummary, *kinds: Kind) -> Finding:
    (found,) = (one for one in result.findings if one.kind in kinds)
    return found


def kinds(result: JobSummary) -> set[Kind]:
    return {one.kind for one in result.findings}


# Whether it stands for now.


def test_a_capture_of_this_run_at_this_pace_is_used_and_named_with_its_age():
    result = judged(captured(launch_ratio=0.2), gpu=IDLE)

    assert result.capture is not None
    assert (result.capture.used, result.capture.reason, result.capture.age_s) == (True, None, 240.0)
    assert "(capture c1, 4 min ago)" in finding(result, Kind.LAUNCH_BOUND).evidence[1]
    assert from_json(to_json([result]))[0].capture == result.capture


@pytest.mark.parametrize(
    ("capture", "fields", "reason"),
    [
        (captured(), {"run_began_unix_s": NOW_UNIX_S - 245}, "the job started again since"),
        (captured(ended_s_ago=7 * 3600.0), {}, "it is 7 h old"),
        (captured(step_time_s=1.2), {}, "steps took 1200.0 ms meanwhile and take 1000.0 ms now"),
        (captured(step_time_s=0.8), {}, "steps took 800.0 ms meanwhile and take 1000.0 ms now"),
        (captured(step_time_s=None), {}, "how long steps took meanwhile is not known"),
    ],
)
def test_a_capture_of_another_state_of_the_job_is_left_out_and_the_evidence_says_why(capture, fields, reason):
    shares = replace(capture.shares, launch_ratio=0.3, compute_ratio=0.7)
    result = judged(replace(capture, shares=shares), gpu=IDLE, **fields)

    assert result.capture is not None
    assert (result.capture.used, result.capture.reason) == (False, reason)
    said = f"The newest analyzed capture, c1, is not used: {reason}."
    assert finding(result, Kind.HOST_BOUND).evidence[-1] == said
    assert said in "".join(findings_in_words([result]))
    assert Kind.LAUNCH_BOUND not in kinds(result)


def test_where_the_log_prints_no_step_in_a_capture_the_traces_own_steps_count():
    of_traces = captured(step_time_s=None, launch_ratio=0.3)
    of_traces = replace(of_traces, shares=replace(of_traces.shares, step_time_s=1.02))

    result = judged(of_traces)

    assert result.capture is not None
    assert (result.capture.used, result.capture.step_time_s) == (True, 1.02)


def test_the_age_of_a_capture_of_a_job_that_ended_is_reported_at_its_end():
    ended = judged(captured(ended_s_ago=900.0), ended_unix_s=NOW_UNIX_S - 600)

    assert ended.capture is not None
    assert ended.capture.age_s == 300.0


# Launches and synchronisations.


def test_idle_gpus_are_put_down_to_what_the_capture_shows_to_be_the_larger_part():
    assert Kind.HOST_BOUND in kinds(judged(None, gpu=IDLE))

    launching = judged(captured(launch_ratio=0.2, synchronization_ratio=0.06), gpu=IDLE)
    waiting = judged(captured(launch_ratio=0.06, synchronization_ratio=0.2), gpu=IDLE)

    assert kinds(launching) & {Kind.LAUNCH_BOUND, Kind.SYNCHRONIZATION, Kind.HOST_BOUND} == {
        Kind.LAUNCH_BOUND
    }
    assert kinds(waiting) & {Kind.LAUNCH_BOUND, Kind.SYNCHRONIZATION, Kind.HOST_BOUND} == {
        Kind.SYNCHRONIZATION
    }
    found = finding(launching, Kind.LAUNCH_BOUND)
    # NVML and the capture agree, and what is lost is what is seen now.
    assert (found.confidence, found.gain_ratio) == (0.9, pytest.approx(0.3))
    assert "CUDA graphs" in found.advice
    assert ".item()" in finding(waiting, Kind.SYNCHRONIZATION).advice


def test_gaps_in_which_the_host_does_something_else_get_another_advice():
    found = finding(judged(captured(launch_ratio=0.2, long_gaps_ratio=0.15), gpu=IDLE), Kind.LAUNCH_BOUND)

    assert "the host does something else" in found.advice


def test_a_capture_alone_shows_what_gpus_that_seem_busy_lose_to_the_host():
    busy = gpu_table(STEPS, {"busy_ratio": [1.0] * 4})

    of_all = finding(judged(captured(synchronization_ratio=0.12), gpu=busy), Kind.SYNCHRONIZATION)
    of_two = finding(judged(captured(synchronization_ratio=0.12, ranks=2), gpu=busy), Kind.SYNCHRONIZATION)

    assert (of_all.confidence, of_all.gain_ratio) == (0.8, pytest.approx(0.12))
    assert of_two.confidence == 0.6
    assert Kind.SYNCHRONIZATION not in kinds(judged(captured(synchronization_ratio=0.04), gpu=busy))


def test_what_the_profiler_may_have_added_is_no_late_launch():
    # 18% of steps of 1.1 s are 19.8% of one of 1.0 s, of which 10 are those that steps became longer by.
    assert Kind.LAUNCH_BOUND not in kinds(judged(captured(step_time_s=1.1, launch_ratio=0.18)))
    found = finding(judged(captured(step_time_s=1.1, launch_ratio=0.3)), Kind.LAUNCH_BOUND)
    assert found.gain_ratio == pytest.approx(0.23)


def test_what_the_input_takes_is_not_said_a_second_time():
    timers = {"batch-generator": (0.24, 0.25), "forward-backward": (0.9, 0.9), "optimizer": (0.1, 0.1)}
    phases = phase_table(STEPS, timers)

    result = judged(captured(launch_ratio=0.3, compute_ratio=0.7), phases=phases)

    assert Kind.DATA_LOADING in kinds(result)
    assert Kind.LAUNCH_BOUND not in kinds(result)


def test_idle_that_the_capture_does_not_show_stays_the_hosts_and_is_said_to_be_unexplained():
    without = finding(judged(captured(launch_ratio=0.01), gpu=IDLE), Kind.HOST_BOUND)
    no_calls = finding(judged(captured(unexplained_idle_ratio=0.3), gpu=IDLE), Kind.HOST_BOUND)

    assert without.evidence[-1].startswith("The host kept GPUs idle in 1.0% of a step only when traced")
    assert "no host call explains it (capture c1, 4 min ago)" in no_calls.evidence[-1]


# Communication.


def in_nccl(share: float, **fields: Any) -> dict[str, Any]:
    """Four ranks in two tensor groups, and the share of time with an NCCL kernel."""
    pairs = [
        table([0, 1], [0, 0], transfer_s=0.03),
        table([2, 3], [0, 0], transfer_s=0.03, communicator="cd"),
    ]
    times = [NcclTime(rank=r, busy_s=10 * share, span_s=10, lost_operations=0) for r in range(4)]
    return {"description": TP2, "collectives": pairs, "nccl": times, **fields}


def test_what_a_capture_showed_to_be_hidden_costs_nothing():
    some = judged(captured(communication_ratio=0.3, exposed_communication_ratio=0.18), **in_nccl(0.3))

    assert some.communication.exposed_ratio == pytest.approx(0.18)
    assert some.communication.exposed_source == "capture c1, 4 min ago"
    found = finding(some, Kind.COMMUNICATION)
    assert found.gain_ratio == pytest.approx(0.18)
    said = (
        "Computation and copies hid 40.0% of communication, so about 18.0% of a step is exposed"
        " (capture c1, 4 min ago)."
    )
    assert said in found.evidence
    assert "exposed 18.0% (capture c1, 4 min ago)" in in_words([some])
    hidden = judged(captured(communication_ratio=0.3, exposed_communication_ratio=0.03), **in_nccl(0.3))
    assert Kind.COMMUNICATION not in kinds(hidden)


def test_of_more_communication_than_in_the_capture_as_large_a_part_is_exposed_and_it_is_said():
    more = judged(captured(communication_ratio=0.2, exposed_communication_ratio=0.12), **in_nccl(0.3))

    assert more.communication.exposed_ratio == pytest.approx(0.18)
    assert more.communication.exposed_source == "capture c1, 4 min ago, scaled: communication took 20.0% then"


def test_communication_of_which_no_usable_capture_shows_the_exposed_part_says_so():
    stale = captured(communication_ratio=0.3, exposed_communication_ratio=0.18, ended_s_ago=8 * 3600.0)

    result = judged(stale, **in_nccl(0.3))

    assert result.communication.exposed_ratio is None
    assert any("is not used: it is 8 h old" in said for said in finding(result, Kind.COMMUNICATION).evidence)


def test_timers_that_show_what_is_exposed_need_no_capture():
    phases = phase_table(STEPS, {"all-grads-sync": (0.2, 0.2)})

    result = judged(captured(communication_ratio=0.5, exposed_communication_ratio=0.5), phases=phases)

    assert result.communication.exposed_ratio == pytest.approx(0.2)
    assert result.communication.exposed_source == result.communication.source == "timers: all-grads-sync"


def test_without_timers_and_plugin_the_capture_shows_the_share_and_waiting_is_no_loss():
    shown = {"communication_ratio": 0.5, "exposed_communication_ratio": 0.4, "waiting_ratio": 0.8}

    waiting = judged(captured(**shown))
    unmatched = judged(captured(**shown | {"waiting_ratio": None}))

    assert (waiting.communication.share_ratio, waiting.communication.source) == (0.5, "capture c1, 4 min ago")
    assert waiting.communication.wait_ratio == pytest.approx(0.4)
    assert Kind.COMMUNICATION not in kinds(waiting)
    assert finding(unmatched, Kind.COMMUNICATION).gain_ratio == pytest.approx(0.4)


def test_waiting_between_stages_in_a_capture_is_not_taken_for_communication():
    stages = description(world_size=4, tp=1, pp=4, dp=1, micro_batch_size=1, global_batch_size=64)

    result = judged(captured(communication_ratio=0.5, exposed_communication_ratio=0.4), description=stages)

    assert result.communication.exposed_ratio == pytest.approx(0.4)
    assert Kind.COMMUNICATION not in kinds(result)


# Computing.


def test_without_timers_and_counters_a_capture_distinguishes_compute_bound_from_memory_bound():
    matrix = judged(captured(compute_ratio=0.9, matrix_ratio=0.8)).bottleneck
    moving = judged(captured(compute_ratio=0.9, matrix_ratio=0.3)).bottleneck

    assert judged(None).bottleneck.kind is Kind.UNKNOWN
    assert (matrix.kind, matrix.confidence) == (Kind.COMPUTE_BOUND, 0.6)
    assert (moving.kind, moving.confidence) == (Kind.MEMORY_BOUND, 0.4)
    said = "Compute kernels run 90.0% of a step, at most 30.0% of it matrix products and attention"
    assert moving.evidence[0] == f"{said} (capture c1, 4 min ago)."


@pytest.mark.parametrize(
    ("dram", "matrix", "kind", "confidence"),
    [
        (0.8, 0.3, Kind.MEMORY_BOUND, 0.9),
        (0.8, 0.9, Kind.MEMORY_BOUND, 0.6),
        (0.1, 0.3, Kind.COMPUTE_BOUND, 0.6),
    ],
)
def test_counters_of_the_memory_and_names_of_kernels_confirm_or_contradict_each_other(
    dram, matrix, kind, confidence
):
    activity = {
        "sm_active_ratio": [0.9] * 4,
        "tensor_active_ratio": [0.1] * 4,
        "dram_active_ratio": [dram] * 4,
    }
    steps = step_table([1.0] * 20, flops_per_s_per_gpu=[2e14] * 20)
    capture = captured(compute_ratio=0.9, matrix_ratio=matrix)
    data = job_data(
        steps,
        description=DP4,
        captured=capture,
        now_unix_s=NOW_UNIX_S,
        gpu=gpu_table(steps, activity),
        gpu_infos=infos("NVIDIA H200", 4),
    )

    found = summarise(data, AnalysisSettings(peaks=load_peaks())).bottleneck

    assert (found.kind, found.confidence) == (kind, confidence)


def test_a_capture_that_is_mostly_something_else_leaves_it_unknown():
    assert judged(captured(compute_ratio=0.3, exposed_copies_ratio=0.05)).bottleneck.kind is Kind.UNKNOWN


COPYING = gpu_table(STEPS, {"pcie_rx_bytes_per_s": [20e9] * 4, "sm_active_ratio": [0.5] * 4})


def test_what_copies_cost_is_what_a_capture_shows_unhidden():
    found = finding(judged(captured(exposed_copies_ratio=0.4), gpu=COPYING), Kind.HOST_TRANSFER)
    assert (found.gain_ratio, found.confidence) == (pytest.approx(0.4), 0.9)
    assert found.evidence[1] == "Copies and fills that nothing hid took 40.0% (capture c1, 4 min ago)."

    little = captured(exposed_copies_ratio=0.01)
    # What joins the GPUs is not known here: they may send to each other.
    assert Kind.HOST_TRANSFER not in kinds(judged(little, gpu=COPYING))
    joined = job(little, gpu=COPYING, gpu_infos=infos("NVIDIA H200", 4))
    hidden = summarise(joined, AnalysisSettings(peaks=load_peaks()))
    assert finding(hidden, Kind.HOST_TRANSFER).gain_ratio is None
