"""What is said to limit a job, with the worked example of the documentation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import LLAMA3_8B, description, gpu_table, infos, job_data, phase_table, step_table

from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Culprit, Kind
from perfd.gpu_peaks import load_peaks
from perfd.model import ModelShape, StepSource

H100 = "NVIDIA H100 80GB HBM3"
DP8 = description(LLAMA3_8B, world_size=8, dp=8, micro_batch_size=1, global_batch_size=64)
LLAMA_70B = ModelShape(
    layers=80,
    hidden_size=8192,
    ffn_size=28672,
    attention_heads=64,
    kv_heads=8,
    head_size=128,
    sequence_length=4096,
    vocab_size=32000,
    gated_mlp=True,
)


def judge(
    extremes=None, *, by_rank=None, metrics=None, job=DP8, flops: float | None = None, **settings
) -> JobSummary:
    """The summary of eight H100 with 1 s steps; `flops` stands for what the log prints."""
    steps = step_table([1.0] * 20, flops_per_s_per_gpu=np.nan if flops is None else flops)
    if flops is not None:
        job = replace(job, model=None)
    fields = {
        "description": job,
        "phases": phase_table(steps, extremes, by_rank),
        "gpu_infos": infos(H100, 8),
    }
    if metrics:
        fields["gpu"] = gpu_table(steps, metrics)
    return summarise(job_data(steps, **fields), AnalysisSettings(peaks=load_peaks()))


def test_the_worked_example_names_gradient_communication():
    # 64 H100, tensor 8, pipeline 2, data 4; forward 350, backward 700, gradient all-reduce 450,
    # optimizer 100, batch generator 5 ms: 450 of 1605 ms are 28%.
    steps = step_table([1.605] * 20, flops_per_s_per_gpu=0.28 * 989.4e12)
    job = description(None, world_size=64, tp=8, pp=2, dp=4, micro_batch_size=1, global_batch_size=32)
    phases = phase_table(
        steps,
        {
            "forward-compute": (0.35, 0.35),
            "backward-compute": (0.7, 0.7),
            "all-grads-sync": (0.45, 0.45),
            "optimizer": (0.1, 0.1),
            "batch-generator": (0.005, 0.005),
        },
    )
    data = job_data(steps, description=job, phases=phases, gpu_infos=infos(H100, 64))
    summary = summarise(data, AnalysisSettings(peaks=load_peaks(), network_bytes_per_s=50e9))
    assert summary.efficiency.mfu_ratio == pytest.approx(0.28)
    assert summary.pipeline.bubble_theory_ratio == 1 / 9
    assert summary.communication.share_ratio == pytest.approx(0.2804, abs=1e-4)
    assert summary.bottleneck.kind is Kind.COMMUNICATION
    assert summary.bottleneck.gain_ratio == pytest.approx(0.28, abs=0.005)
    assert summary.bottleneck.evidence[0] == (
        "Reducing gradients takes 28.0% of a step, 450.0 of 1605.0 ms (timers: all-grads-sync)."
    )
    assert "--overlap-grad-reduce" in summary.bottleneck.advice
    # Twice the micro-batches: 450 of 2 * 1055 + 550 ms.
    assert "16.9%" in summary.bottleneck.advice

    # With the model's shape the ring formula stands beside the measurement: 69 billion parameters
    # over 16 ranks in fp32, 1.5 times through links of 50 GB/s.
    shaped = summarise(
        replace(data, description=replace(job, model=LLAMA_70B)),
        AnalysisSettings(peaks=load_peaks(), network_bytes_per_s=50e9),
    )
    ring_s = 1.5 * (68.7e9 / 16 * 4) / 50e9
    assert shaped.communication.ring_estimate_s == pytest.approx(ring_s, rel=0.01)
    assert any(
        sentence.startswith(f"By the ring formula links of 50 GB/s need {1000 * ring_s:.0f}")
        and "it takes less, so links are faster" in sentence
        for sentence in shaped.bottleneck.evidence
    )


def test_a_job_that_overlaps_its_gradients_is_not_advised_to():
    overlapping = replace(DP8, arguments={"overlap_grad_reduce": "True"})

    advice = judge({"all-grads-sync": (0.25, 0.25)}, job=overlapping).bottleneck.advice

    assert "--overlap-grad-reduce" not in advice
    assert "--overlap-param-gather" in advice
    assert "--overlap-grad-reduce" in judge({"all-grads-sync": (0.25, 0.25)}).bottleneck.advice


def test_collectives_that_are_more_than_gradients_are_not_called_so():
    extremes = {"all-grads-sync": (0.2, 0.2), "params-all-gather": (0.05, 0.05)}

    evidence = judge(extremes).bottleneck.evidence[0]

    assert evidence.startswith("Collectives take 25.0% of a step, 250.0 of 1000.0 ms")


def test_a_network_is_doubted_where_gradients_take_over_twice_what_links_allow():
    # 7.5 billion parameters in fp32, 7/4 times through links of 450 GB/s.
    ring_s = judge({"all-grads-sync": (0.2, 0.2)}).communication.ring_estimate_s
    assert ring_s == pytest.approx(1.75 * 4 * 7.504e9 / 450e9, rel=0.001)

    def advice(took_s: float) -> str:
        return judge({"all-grads-sync": (took_s, took_s)}).bottleneck.advice

    assert "topology" in advice(2.01 * ring_s)
    assert "topology" not in advice(1.99 * ring_s)


def test_a_job_that_computes_well_has_no_bottleneck():
    summary = judge({"forward-compute": (0.3, 0.3), "backward-compute": (0.6, 0.6)}, flops=0.45 * 989.4e12)
    assert summary.bottleneck.kind is Kind.NONE


def test_a_job_that_computes_poorly_is_said_to():
    summary = judge({"forward-compute": (0.3, 0.3), "backward-compute": (0.6, 0.6)}, flops=0.2 * 989.4e12)
    assert summary.bottleneck.kind is Kind.COMPUTE_BOUND
    assert "20.0%" in summary.bottleneck.evidence[0]


def test_without_evidence_the_verdict_abstains_and_says_what_is_missing():
    summary = judge(flops=0.2 * 989.4e12)
    assert summary.bottleneck.kind is Kind.UNKNOWN
    assert summary.bottleneck.confidence == 0
    assert "neither timers" in summary.bottleneck.evidence[-2]


@pytest.mark.parametrize(
    ("extremes", "kind"),
    [
        ({"batch-generator": (0.2, 0.22)}, Kind.DATA_LOADING),
        ({"all-grads-sync": (0.25, 0.25)}, Kind.COMMUNICATION),
        ({"optimizer": (0.3, 0.3)}, Kind.OPTIMIZER),
        ({"forward-backward": (0.5, 0.5), "optimizer": (0.1, 0.1)}, Kind.HOST_BOUND),
    ],
)
def test_the_largest_part_of_the_step_is_named(extremes, kind: Kind):
    summary = judge(extremes)
    assert summary.bottleneck.kind is kind
    assert summary.bottleneck.evidence
    assert summary.bottleneck.advice


def test_findings_are_ordered_by_what_they_cost():
    summary = judge({"batch-generator": (0.06, 0.06), "all-grads-sync": (0.3, 0.3), "optimizer": (0.2, 0.2)})
    kinds = [finding.kind for finding in summary.findings]
    assert kinds == [Kind.COMMUNICATION, Kind.OPTIMIZER, Kind.DATA_LOADING]


def test_idle_gpus_are_the_hosts_fault():
    summary = judge(metrics={"graphics_active_ratio": [0.6] * 8, "sm_active_ratio": [0.5] * 8})
    assert summary.bottleneck.kind is Kind.HOST_BOUND
    assert summary.bottleneck.gain_ratio == pytest.approx(0.4, abs=1e-6)


def test_slow_input_of_all_ranks_is_named_before_the_idle_gpus_that_it_causes():
    summary = judge(
        {"batch-generator": (0.3, 0.335)},
        metrics={"graphics_active_ratio": [0.6] * 8, "sm_active_ratio": [0.5] * 8},
    )
    assert summary.bottleneck.kind is Kind.DATA_LOADING
    assert summary.bottleneck.gain_ratio == pytest.approx(0.335)
    assert [effect.summary for effect in summary.bottleneck.effects] == [
        "host: 33.5% of 40.0%; 6.5% more is unexplained"
    ]
    assert Kind.HOST_BOUND not in {finding.kind for finding in summary.findings}


@pytest.mark.parametrize(("tensor", "idle"), [(0.0099, True), (0.0101, False)])
def test_busy_gpus_whose_tensor_cores_are_idle_get_the_advice_to_use_them(tensor: float, idle: bool):
    steps = step_table([1.0] * 20)
    gpu = gpu_table(steps, {"tensor_active_ratio": [tensor] * 8, "sm_active_ratio": [0.95] * 8})
    data = job_data(steps, description=description(world_size=8, dp=8), gpu=gpu)
    summary = summarise(data, AnalysisSettings())
    assert summary.bottleneck.kind is Kind.COMPUTE_BOUND
    assert ("set_float32_matmul_precision" in summary.bottleneck.advice) is idle
    assert ("tensor cores are idle" in summary.bottleneck.evidence[-1]) is idle


def test_a_straggler_comes_before_what_the_configuration_costs():
    tensor, streaming = [0.3] * 8, [0.7] * 8
    tensor[2], streaming[2] = 0.45, 0.85
    summary = judge(
        {"all-grads-sync": (0.3, 0.3), "forward-compute": (0.2, 0.4), "backward-compute": (0.3, 0.3)},
        metrics={"tensor_active_ratio": tensor, "sm_active_ratio": streaming},
    )
    assert summary.bottleneck.kind is Kind.STRAGGLER
    assert summary.bottleneck.culprits == (Culprit(kind="rank", id=2),)
    assert summary.bottleneck.confidence == 0.9
    assert summary.findings[1].kind is Kind.COMMUNICATION


def test_timers_that_are_equal_on_all_ranks_contradict_the_activity():
    tensor, streaming = [0.3] * 8, [0.7] * 8
    tensor[2], streaming[2] = 0.45, 0.85
    summary = judge(
        {"forward-compute": (0.3, 0.3), "backward-compute": (0.6, 0.6)},
        metrics={"tensor_active_ratio": tensor, "sm_active_ratio": streaming},
        flops=0.2 * 989.4e12,
    )
    assert summary.bottleneck.kind is Kind.COMPUTE_BOUND


def test_an_mfu_that_cannot_be_is_not_praised():
    summary = judge({"forward-compute": (0.3, 0.3), "backward-compute": (0.6, 0.6)}, flops=1.2 * 989.4e12)
    assert summary.bottleneck.kind is Kind.UNKNOWN
    assert "120.0%" in summary.bottleneck.evidence[-1]


def test_slow_input_on_one_rank_is_named_by_its_idle_gpu():
    active = [0.95] * 8
    active[5] = 0.75
    summary = judge(
        {
            "batch-generator": (0.01, 0.2),
            "forward-compute": (0.2, 0.4),
            "backward-compute": (0.4, 0.4),
        },
        metrics={"graphics_active_ratio": active},
    )
    assert summary.bottleneck.kind is Kind.DATA_LOADING
    assert summary.bottleneck.culprits == (Culprit(kind="rank", id=5),)


ONE_LOADS = {"batch-generator": (0.01, 0.2)}
"""One rank's timer holds 20% of a step; it also waits for what the GPU still has to do."""


def test_a_long_timer_of_one_ranks_input_alone_is_not_called_slow_input():
    bottleneck = judge(ONE_LOADS).bottleneck
    assert (bottleneck.kind, bottleneck.confidence, bottleneck.culprits) == (Kind.UNKNOWN, 0.0, ())
    assert "does not say which rank" in bottleneck.evidence[1]
    assert "so does a slow GPU; what" in bottleneck.evidence[2]
    assert "NVML" in bottleneck.advice
    assert bottleneck.gain_ratio == pytest.approx(0.2)


def test_plain_utilisation_distinguishes_slow_input_from_a_slow_gpu_that_nobody_names():
    idle = judge(ONE_LOADS, metrics={"busy_ratio": [1.0] * 7 + [0.905]}).bottleneck
    assert (idle.kind, idle.confidence, idle.culprits) == (Kind.DATA_LOADING, 0.6, ())
    assert idle.evidence[2] == "One GPU idles 9.5% more than its peers (NVML)."

    busy = judge(ONE_LOADS, metrics={"busy_ratio": [1.0] * 8}).bottleneck
    assert (busy.kind, busy.confidence, busy.culprits) == (Kind.STRAGGLER, 0.4, ())
    assert "No GPU idles meanwhile" in busy.evidence[2]
    assert busy.gain_ratio == pytest.approx(0.19)

    by_rank = judge(
        by_rank={"batch-generator": [0.01] * 7 + [0.2]}, metrics={"busy_ratio": [1.0] * 8}
    ).bottleneck
    assert (by_rank.kind, by_rank.culprits) == (Kind.STRAGGLER, (Culprit(kind="rank", id=7),))

    unseen = judge(ONE_LOADS, metrics={"busy_ratio": [1.0] * 7 + [float("nan")]}).bottleneck
    assert unseen.kind is Kind.UNKNOWN


def test_input_that_is_slow_on_all_ranks_is_said_to_be():
    slow = judge(by_rank={"data_loading": [0.21] + [0.2] * 7}).bottleneck

    assert (slow.kind, slow.culprits) == (Kind.DATA_LOADING, ())
    assert "It takes 20.0% on the fastest one: all ranks wait for input." in slow.evidence


def test_a_timer_that_waits_for_no_gpu_is_the_input():
    bottleneck = judge({"data_loading": (0.01, 0.2)}).bottleneck
    assert (bottleneck.kind, bottleneck.confidence) == (Kind.DATA_LOADING, 0.6)


def test_a_hot_gpu_is_named_with_its_clock():
    reasons, clocks = [0.0] * 8, [1.98e9] * 8
    reasons[3], clocks[3] = float(0x40), 1.2e9
    summary = judge(metrics={"clocks_event_reasons_bits": reasons, "sm_clock_hz": clocks})
    assert summary.bottleneck.kind is Kind.THROTTLING
    assert summary.bottleneck.culprits == (Culprit(kind="gpu", id="node0/3"),)
    assert summary.bottleneck.gain_ratio == pytest.approx(1 - 1.2 / 1.98, rel=1e-3)


def test_the_power_cap_at_full_load_is_no_fault():
    summary = judge(metrics={"clocks_event_reasons_bits": [float(0x4)] * 8, "sm_clock_hz": [1.7e9] * 8})
    assert summary.bottleneck.kind is not Kind.THROTTLING


@pytest.mark.parametrize(("samples", "held"), [(4, False), (5, True)])
def test_a_power_cap_shows_in_five_samples_not_in_the_first_ones_of_a_load(samples, held):
    # The first step is not steady.
    steps = step_table([1.0] * (1 + samples))
    gpu = gpu_table(steps, {"clocks_event_reasons_bits": [4.0, 4.0], "sm_clock_hz": [1.2e9, 1.2e9]})
    found = summarise(
        job_data(steps, gpu=gpu, gpu_infos=infos(H100, 2)), AnalysisSettings(peaks=load_peaks())
    )
    assert (Kind.THROTTLING in {one.kind for one in found.findings}) is held


def test_counters_of_held_clocks_win_over_samples_of_the_mask():
    steps = step_table([1.0] * 20)
    gpu = gpu_table(
        steps,
        {
            "clocks_event_reasons_bits": [0.0, 0.0],
            "clocks_limited_hw_thermal_s": [0.0, 0.0],
            "sm_clock_hz": [1.98e9, 1.5e9],
        },
    )
    gpu.metrics["clocks_limited_hw_thermal_s"][:, 1] = (gpu.time_unix_s - gpu.time_unix_s[0]) * 0.5
    summary = summarise(
        job_data(steps, gpu=gpu, gpu_infos=infos(H100, 2)), AnalysisSettings(peaks=load_peaks())
    )
    assert summary.bottleneck.culprits == (Culprit(kind="gpu", id="node0/1"),)
    assert "50.0%" in summary.bottleneck.evidence[0]


def test_full_memory_is_said_beside_what_takes_the_time():
    summary = judge(
        {"forward-compute": (0.3, 0.3), "backward-compute": (0.6, 0.6)},
        metrics={"memory_used_bytes": [79e9] * 8},
        flops=0.45 * 989.4e12,
    )
    assert [finding.kind for finding in summary.findings] == [Kind.NONE, Kind.MEMORY_CAPACITY]


def pipeline_job(stages: int, micro_batches: int):
    return description(
        None, world_size=stages, pp=stages, micro_batch_size=1, global_batch_size=micro_batches
    )


def test_a_bubble_without_timers_is_expected_with_little_confidence():
    summary = judge(job=pipeline_job(8, 8))
    assert summary.bottleneck.kind is Kind.PIPELINE_BUBBLE
    assert summary.bottleneck.confidence == 0.4
    assert summary.bottleneck.gain_ratio == pytest.approx(7 / 15)


def test_unequal_stages_are_distinguished_from_a_bubble_and_the_slowest_is_named():
    summary = judge(
        by_rank={
            "forward-backward": [0.9] * 8,
            "forward-compute": [0.15] * 7 + [0.28],
            "backward-compute": [0.3] * 7 + [0.56],
        },
        job=pipeline_job(8, 64),
    )
    first = summary.bottleneck
    assert first.kind is Kind.PIPELINE_IMBALANCE
    assert first.culprits == (Culprit(kind="stage", id=7),)
    assert "Stage 7 is the last: it has the output layer and the loss besides its layers." in first.evidence
    assert "the model is split unevenly, and no rank is at fault" in first.advice
    # Even stages would compute 0.49 s of 1 s, not the last one's 0.84 s; the bubble stays.
    assert first.gain_ratio == pytest.approx(0.84 - (7 * 0.45 + 0.84) / 8)


def test_gpus_that_idle_before_the_first_step_are_no_finding():
    idle = gpu_table(step_table([1.0] * 20), {"graphics_active_ratio": [0.0] * 8, "busy_ratio": [0.0] * 8})
    starting = summarise(
        job_data(step_table([]), description=DP8, gpu=idle, gpu_infos=infos(H100, 8)), AnalysisSettings()
    )
    assert starting.bottleneck.kind is Kind.UNKNOWN


def test_before_the_first_step_nothing_is_said_of_steady_steps():
    idle = gpu_table(step_table([1.0] * 20), {"tensor_active_ratio": [0.0] * 8, "sm_active_ratio": [0.0] * 8})
    starting = summarise(
        job_data(step_table([]), description=DP8, gpu=idle, gpu_infos=infos(H100, 8)), AnalysisSettings()
    )
    assert starting.bottleneck.evidence == ["perfd saw no steady step of this job."]
    assert "perfd parse LOG" in starting.bottleneck.advice


def test_steps_without_times_are_not_reported_as_missing():
    untimed = job_data(step_table([float("nan")] * 16), description=DP8, step_source=StepSource.ARRIVAL)
    finding = summarise(untimed, AnalysisSettings()).bottleneck
    assert finding.kind is Kind.UNKNOWN
    assert finding.evidence[-1] == (
        "The log shows steps without times, and too few to time them by when their lines arrive."
    )
    assert "print the time of a step" in finding.advice


def test_timers_without_flops_are_not_said_to_be_missing_and_megatron_is_not_assumed():
    loop = description(None, world_size=8, dp=8)
    summary = judge(by_rank={"forward": [0.3] * 8, "backward": [0.6] * 8, "optimizer": [0.05] * 8}, job=loop)
    assert summary.bottleneck.kind is Kind.UNKNOWN
    assert summary.bottleneck.evidence[:-1] == [
        "Forward and backward take 90.0% of a step, waiting for other ranks included (timers).",
        "How well it computes is unknown: the model's FLOP/s are not known.",
    ]
    assert "Megatron" not in summary.bottleneck.advice
    assert "`perfd capture start JOB`" in summary.bottleneck.advice


def test_a_job_of_many_ranks_with_unmeasured_communication_is_shown_what_the_plugin_needs():
    timers = {"forward": (0.1, 0.1), "backward": (0.2, 0.2)}
    timed = judge(
        timers | {"all-grads-sync": (0.1, 0.1)}, job=description(None, world_size=8, dp=8)
    ).bottleneck
    untimed = judge(timers, job=description(None, world_size=8, dp=8)).bottleneck
    alone = judge(timers, job=description(None, world_size=1, dp=1)).bottleneck

    assert {one.kind for one in (timed, untimed, alone)} == {Kind.UNKNOWN}
    unseen = [
        any("perfd saw no NCCL operation" in said for said in one.evidence) for one in (timed, untimed, alone)
    ]
    assert unseen == [False, True, False]


@pytest.mark.parametrize(
    ("slow_s", "since", "lines"),
    [(3.0, 21, 12), (1.12, 21, 12), (1.11, None, 12), (1.12, 21, 8), (1.12, None, 7)],
)
def test_an_unknown_cause_of_longer_steps_is_said_to_be_one_with_its_step_and_cost(slow_s, since, lines):
    # After so many lines it has lasted for 8 s, or has not.
    steps = step_table([1.0] * 20 + [slow_s] * lines)
    first = steps.step[0]
    job = job_data(steps, description=description(None, world_size=2, dp=2))
    found = summarise(job, AnalysisSettings()).bottleneck

    assert (found.kind, found.confidence, found.culprits) == (Kind.UNKNOWN, 0.0, ())
    if since is None:
        assert (found.sentence, found.gain_ratio, found.since_step) == (Kind.UNKNOWN.sentence, None, None)
        return
    assert found.sentence == "Steps take longer than before, and perfd can't yet tell why"
    assert found.since_step == since + first - 1
    assert found.gain_ratio == pytest.approx(1 - 1 / slow_s)
    assert found.evidence[0] == f"Steps take {slow_s * 1000:.1f} ms since step {since}, 1000.0 ms before."


def test_a_job_on_cpus_is_shown_no_gpu_and_nothing_that_needs_one():
    steps = step_table([0.1] * 20, flops_per_s_per_gpu=1e10)
    on_cpus = summarise(
        job_data(steps, description=description(None, world_size=2, dp=2)), AnalysisSettings()
    ).bottleneck

    assert on_cpus.kind is Kind.UNKNOWN
    assert on_cpus.evidence == ["perfd saw neither timers of forward and backward nor a GPU of this job."]
    assert on_cpus.advice.endswith(
        "If the job has GPUs, `perfd doctor` on its nodes shows why perfd does not see them."
    )
    timed = summarise(
        job_data(
            steps,
            description=description(None, world_size=2, dp=2),
            phases=phase_table(steps, {"forward": (0.03, 0.03), "backward": (0.05, 0.05)}),
        ),
        AnalysisSettings(),
    ).bottleneck
    assert "capture" not in timed.advice
    assert timed.evidence[-1] == "How well it computes is unknown: perfd did not see a GPU of this job."


def test_of_two_ranks_that_wait_for_each_other_in_phases_it_is_said_and_nobody_is_named():
    def judged(**phases: list[float]):
        return judge(by_rank=phases, job=description(None, world_size=2, dp=2)).bottleneck

    waits = judged(forward=[0.2, 0.3], backward=[0.6, 0.5])

    assert (waits.kind, waits.culprits) == (Kind.UNKNOWN, ())
    assert (
        "Rank 1 takes 100.0 ms longer in forward and rank 0 as much longer in backward" in waits.evidence[1]
    )
    for others in (
        {"forward": [0.2, 0.3], "backward": [0.5, 0.6]},
        {"forward": [0.2, 0.21], "backward": [0.5, 0.49]},
    ):
        assert not any("waits for the other" in said for said in judged(**others).evidence)


def test_timers_that_hold_little_of_the_step_are_not_said_to_be_missing():
    summary = judge(
        {"forward": (0.1, 0.1), "backward": (0.2, 0.2)}, job=description(None, world_size=8, dp=8)
    )
    assert summary.bottleneck.kind is Kind.UNKNOWN
    assert summary.bottleneck.evidence[-2] == "No timer that perfd knows holds the rest of the step."
    assert "perfd.hook" in summary.bottleneck.advice


def few_steps(count: int, **metrics: list[float]) -> JobSummary:
    """Eight H100 whose log tells that one rank, of which it does not say which, loads 20% of a step."""
    steps = step_table([1.0] * (count + 1))
    extremes = {
        "batch-generator": (0.01, 0.2),
        "forward-compute": (0.2, 0.4),
        "backward-compute": (0.4, 0.4),
    }
    data = job_data(
        steps,
        description=DP8,
        phases=phase_table(steps, extremes),
        gpu=gpu_table(steps, metrics),
        gpu_infos=infos(H100, 8),
    )
    return summarise(data, AnalysisSettings(peaks=load_peaks()))


def test_what_a_slow_timer_of_input_means_is_open_until_gpus_have_been_seen_in_enough_steps():
    tensor, streaming = [0.3] * 8, [0.7] * 8
    tensor[2], streaming[2] = 0.45, 0.85
    busy = {"tensor_active_ratio": tensor, "sm_active_ratio": streaming}

    early = few_steps(4, **busy).bottleneck
    assert (early.kind, early.confidence, early.culprits) == (Kind.UNKNOWN, 0.0, ())
    assert "20.0% of a step" in early.evidence[0]
    assert "too few steps" in early.evidence[-1]
    assert early.gain_ratio == pytest.approx(0.2)

    enough = few_steps(5, **busy).bottleneck
    assert (enough.kind, enough.culprits) == (Kind.STRAGGLER, (Culprit(kind="rank", id=2),))

    alike = {"tensor_active_ratio": [0.3] * 8, "sm_active_ratio": [0.7] * 8}
    assert few_steps(4, **alike).bottleneck.kind is Kind.UNKNOWN
    assert few_steps(5, **alike).bottleneck.kind is Kind.DATA_LOADING
    # One that is never read leaves it open for good, and waiting for its samples would be in vain.
    unread = alike | {"tensor_active_ratio": [0.3] * 7 + [float("nan")]}
    assert "too few steps" in few_steps(4, **unread).bottleneck.evidence[-1]
    assert "meanwhile is unknown" in few_steps(5, **unread).bottleneck.evidence[-1]
    # So it would be where no GPU is.
    assert "meanwhile is unknown" in few_steps(4).bottleneck.evidence[-1]


@pytest.mark.parametrize(
    ("steady", "said"), [(1, "1 steady step is too few"), (2, "2 steady steps are too few"), (3, None)]
)
@pytest.mark.parametrize(("timer", "judged"), [("optimizer", Kind.OPTIMIZER), ("forward-compute", Kind.NONE)])
def test_of_one_or_two_steady_steps_nothing_is_said_of_where_the_time_goes(
    timer: str, judged: Kind, steady: int, said: str | None
):
    steps = step_table([1.0] * (steady + 1), flops_per_s_per_gpu=0.5 * 989.4e12)
    data = job_data(
        steps,
        description=description(None, world_size=8, dp=8),
        phases=phase_table(steps, {timer: (0.5, 0.5)}),
        gpu_infos=infos(H100, 8),
    )
    found = summarise(data, AnalysisSettings(peaks=load_peaks())).bottleneck
    if said is None:
        assert found.kind is judged
    else:
        assert (found.kind, found.confidence, found.gain_ratio) == (Kind.UNKNOWN, 0.0, None)
        assert found.evidence[-1] == f"{said} to judge where the time goes."


def test_after_two_steady_steps_full_memory_and_a_held_clock_are_said_all_the_same():
    steps = step_table([1.0] * 3)
    metrics = {
        "memory_used_bytes": [79e9] * 8,
        "clocks_event_reasons_bits": [float(0x40)] * 8,
        "sm_clock_hz": [1.2e9] * 8,
    }
    data = job_data(steps, description=DP8, gpu=gpu_table(steps, metrics), gpu_infos=infos(H100, 8))
    found = summarise(data, AnalysisSettings(peaks=load_peaks())).findings
    assert [finding.kind for finding in found] == [Kind.THROTTLING, Kind.MEMORY_CAPACITY]


def test_a_line_that_covers_many_steps_is_enough_to_judge():
    steps = step_table([1.0] * 2, steps_covered=np.array([10, 10]))
    phases = phase_table(steps, {"optimizer": (0.5, 0.5)})
    found = summarise(job_data(steps, description=DP8, phases=phases), AnalysisSettings()).bottleneck
    assert found.kind is Kind.OPTIMIZER


def test_a_job_whose_output_says_nothing_is_shown_what_perfd_understands():
    summary = summarise(job_data(step_table([]), description=DP8), AnalysisSettings())
    assert summary.bottleneck.kind is Kind.UNKNOWN
    assert "no steady step" in summary.bottleneck.evidence[-1]
    assert "perfd parse LOG" in summary.bottleneck.advice


@pytest.mark.parametrize(("ratio", "named"), [(1.3, [2, 5]), (1.12, [2])])
def test_two_ranks_that_compute_as_much_longer_are_named_together(ratio: float, named: list[int]):
    """Each hides what the other one costs; one that is slower by less is not named with it."""
    steps = step_table([1.0] * 20)
    tensor, streaming = [0.3] * 8, [0.7] * 8
    for rank, more in ((2, 1.3), (5, ratio)):
        tensor[rank], streaming[rank] = 0.3 * more, 0.7 * (1 + (more - 1) * 0.7)
    gpu = gpu_table(steps, {"tensor_active_ratio": tensor, "sm_active_ratio": streaming})
    found = summarise(
        job_data(steps, description=description(world_size=8, dp=8), gpu=gpu), AnalysisSettings()
    ).bottleneck

    assert found.kind is Kind.STRAGGLER
    assert [culprit.id for culprit in found.culprits] == named
    assert found.gain_ratio == pytest.approx(1 - 1 / 1.21, abs=0.02)
