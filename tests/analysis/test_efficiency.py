"""Throughput, MFU and HFU, and the check of the log's own figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import LLAMA3_8B, description, gpu_table, infos, job_data, step_table

from perfd.analysis.data.job_data import OperationPace, StepTable
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.flops.flops_conventions import FlopsConvention
from perfd.analysis.flops.mfu_tier import attainable_mfu
from perfd.analysis.steps import Efficiency, MfuTier
from perfd.gpu_peaks import load_peaks
from perfd.model import (
    GpuInfo,
    JobDescription,
    ModelSource,
    ParallelLayout,
    RankPlacement,
    Recompute,
    StepDoubt,
    StepSource,
)
from perfd.session.text.summary_numbers import numbers_in_words

H100 = "NVIDIA H100 80GB HBM3"
PER_TOKEN = 5.1470e10
"""Of llama3-8B at 8192 tokens, by Megatron-LM core 0.12's own function."""
DESCRIBED = description(LLAMA3_8B, world_size=8, dp=8, micro_batch_size=1, global_batch_size=64)


def efficiency_of(*args, **fields) -> Efficiency:
    return summary_of(*args, **fields).efficiency


def summary_of(
    steps: StepTable, convention: FlopsConvention = FlopsConvention.MEGATRON, **fields
) -> JobSummary:
    defaults = {"description": DESCRIBED, "gpu_infos": infos(H100, 8)}
    return summarise(
        job_data(steps, **(defaults | fields)), AnalysisSettings(convention=convention, peaks=load_peaks())
    )


def test_mfu_is_the_models_operations_by_time_and_dense_peak():
    speed = efficiency_of(step_table([2.0] * 8, global_batch_size=64.0))
    tokens_per_s = 64 * 8192 / 2
    assert speed.tokens_per_s == pytest.approx(tokens_per_s)
    assert speed.tokens_per_s_per_gpu == pytest.approx(tokens_per_s / 8)
    assert speed.samples_per_s == pytest.approx(32)
    assert speed.samples_per_s_per_gpu == pytest.approx(4)
    assert speed.model_flops_per_s_per_gpu == pytest.approx(PER_TOKEN * tokens_per_s / 8, rel=1e-4)
    assert speed.mfu_ratio == pytest.approx(PER_TOKEN * tokens_per_s / 8 / 989.4e12, rel=1e-4)
    assert (speed.mfu_source, speed.flops_convention) == ("shape", "megatron")
    assert (speed.peak_flops_per_s, speed.peak_precision) == (pytest.approx(989.4e12), "bf16")


@pytest.mark.parametrize(
    ("gpu", "unverified"), [(H100, False), ("NVIDIA A30", True), ("NVIDIA Z9000", False)]
)
def test_an_mfu_by_a_peak_that_no_source_confirms_says_so(gpu: str, unverified: bool):
    summary = summary_of(step_table([2.0] * 8), gpu_infos=infos(gpu, 8))
    assert summary.efficiency.peak_unverified is unverified
    text = "\n".join(numbers_in_words(summary))
    assert ("(unverified peak)" in text) is unverified


def test_the_batch_of_each_line_counts_and_not_the_one_that_the_job_began_with():
    speed = efficiency_of(step_table([2.0] * 8, global_batch_size=32.0))
    assert speed.samples_per_s == pytest.approx(16)


def test_the_convention_is_a_choice_and_a_label():
    steps = step_table([2.0] * 8)
    palm = efficiency_of(steps, FlopsConvention.PALM)
    assert palm.flops_convention == "palm"
    assert palm.mfu_ratio == pytest.approx(efficiency_of(steps).mfu_ratio * 1.1252, rel=1e-3)


def test_full_recomputation_makes_hfu_four_thirds_of_mfu_the_head_aside():
    job = replace(DESCRIBED, recompute=Recompute.FULL)
    speed = efficiency_of(step_table([2.0] * 8), description=job)
    head = 4096 * 128256 * 6 / PER_TOKEN
    assert speed.hfu_ratio / speed.mfu_ratio == pytest.approx(4 / 3 - head / 3, rel=1e-4)


def test_hfu_is_unknown_when_the_job_does_not_say_what_it_recomputes():
    speed = efficiency_of(step_table([2.0] * 8), description=replace(DESCRIBED, recompute=None))
    assert speed.mfu_ratio is not None
    assert speed.hfu_ratio is None


def test_without_a_shape_the_logs_figure_counts_under_its_own_label():
    job = replace(DESCRIBED, model=None, logged_flops_convention="bigscience")
    speed = efficiency_of(step_table([2.0] * 8, flops_per_s_per_gpu=400e12), description=job)
    assert speed.mfu_ratio == pytest.approx(400 / 989.4)
    assert (speed.mfu_source, speed.flops_convention) == ("log", "bigscience")


def test_without_a_log_tensor_activity_is_an_upper_estimate_and_no_mfu():
    steps = step_table([])
    gpu = replace(
        gpu_table(step_table([1.0] * 8), {"tensor_active_ratio": [0.3] * 8, "sm_clock_hz": [1.83e9] * 8})
    )
    speed = efficiency_of(steps, description=None, gpu=gpu)
    assert speed.mfu_ratio is None
    assert speed.mfu_upper_ratio == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "tensor", "bounded"),
    [
        (None, 0.0542, True),
        (None, 0.0541, False),
        (None, 0.0, False),
        ("bf16", 0.01, True),
        ("fp32", 0.3, False),
    ],
)
def test_products_that_may_run_without_tensor_cores_have_no_bound_by_these(
    precision: str | None, tensor: float, bounded: bool
):
    # SMs that are active 80% of the time could do 80% of 67 TFLOP/s in FP32: tensor cores do that in 5.42%.
    active = {"tensor_active_ratio": tensor, "sm_active_ratio": 0.8, "sm_clock_hz": 1.83e9}
    gpu = gpu_table(step_table([1.0] * 8), {name: [value] * 8 for name, value in active.items()})
    job = replace(DESCRIBED, model=None, precision=precision)
    upper = efficiency_of(step_table([]), description=job, gpu=gpu).mfu_upper_ratio
    assert upper == (pytest.approx(tensor, rel=1e-5) if bounded else None)


def test_the_upper_estimate_allows_for_a_clock_above_that_of_the_peak():
    steps = step_table([1.0] * 8)
    gpu = gpu_table(steps, {"tensor_active_ratio": [0.3] * 8, "sm_clock_hz": [1.98e9] * 8})
    speed = efficiency_of(steps, gpu=gpu)
    assert speed.mfu_upper_ratio == pytest.approx(0.3 * 1.98 / 1.83, rel=1e-5)
    assert speed.clock_adjusted_mfu_ratio == pytest.approx(speed.mfu_ratio * 1.83 / 1.98, rel=1e-5)


@pytest.mark.parametrize(
    "gpu_infos",
    [
        infos("NVIDIA Z9000", 8),
        {},
        {"node0": [GpuInfo(index=0, name=H100, mig=True)]},
        {"node0": [GpuInfo(index=0, name=H100), GpuInfo(index=1, name="NVIDIA Z9000")]},
    ],
    ids=["unknown", "none", "slice", "one unknown"],
)
def test_without_a_peak_there_are_operations_but_no_mfu(gpu_infos):
    speed = efficiency_of(step_table([2.0] * 8), gpu_infos=gpu_infos)
    assert speed.model_flops_per_s_per_gpu is not None
    assert speed.peak_flops_per_s is None
    assert speed.mfu_ratio is None


def test_a_log_that_agrees_is_said_to():
    steps = step_table([2.0] * 8, flops_per_s_per_gpu=PER_TOKEN * 64 * 8192 / 2 / 8 * 1.001)
    check = efficiency_of(
        steps, description=replace(DESCRIBED, logged_flops_convention="megatron-causal")
    ).flops_check
    assert check is not None
    assert check.agrees
    assert check.finding is None


@pytest.mark.parametrize(
    ("factor", "recompute", "words"),
    [
        (1.1252, Recompute.NONE, "agree with the convention megatron-full"),
        (4 / 3 - 4096 * 128256 * 2 / PER_TOKEN, Recompute.FULL, "megatron plus recomputation"),
        (0.7, Recompute.NONE, "no convention that perfd knows"),
    ],
)
def test_a_log_that_differs_is_explained_where_it_can_be(factor: float, recompute: Recompute, words: str):
    job = replace(DESCRIBED, logged_flops_convention="megatron-causal", recompute=recompute)
    steps = step_table([2.0] * 8, flops_per_s_per_gpu=PER_TOKEN * 64 * 8192 / 2 / 8 * factor)
    check = efficiency_of(steps, description=job).flops_check
    assert check is not None
    assert not check.agrees
    assert words in (check.finding or "")


def test_tokens_of_the_log_serve_when_the_batch_is_unknown():
    job = replace(DESCRIBED, parallel=replace(DESCRIBED.parallel, global_batch_size=None))
    speed = efficiency_of(step_table([2.0] * 8, tokens_per_s=1e6), description=job)
    assert speed.tokens_per_s == pytest.approx(1e6)
    assert speed.model_flops_per_s_per_gpu == pytest.approx(PER_TOKEN * 1e6 / 8, rel=1e-4)


@pytest.mark.parametrize("model_source", ["config", "arguments"])
def test_a_config_json_counts_like_the_logs_shape_and_the_logs_tokens_before_its_own(model_source):
    job = replace(DESCRIBED, model_source=ModelSource(model_source))
    speed = efficiency_of(step_table([2.0] * 8), description=job)
    assert speed.model_flops_per_s_per_gpu == pytest.approx(PER_TOKEN * 64 * 8192 / 2 / 8, rel=1e-4)
    assert (speed.mfu_source, speed.flops_convention) == (model_source, "megatron")
    # Sequences may be padded.
    assert efficiency_of(step_table([2.0] * 8, tokens_per_s=1e5), description=job).tokens_per_s == 1e5


def test_the_operators_tokens_and_flops_of_a_step_come_before_all_others():
    steps = step_table([2.0] * 8, tokens_per_s=1e6, flops_per_s_per_gpu=1e12)
    speed = efficiency_of(steps, description=replace(DESCRIBED, tokens_per_step=8e6))
    assert speed.tokens_per_s == pytest.approx(4e6)
    assert speed.mfu_source == "shape"
    speed = efficiency_of(steps, description=replace(DESCRIBED, flops_per_step=8e15))
    assert speed.model_flops_per_s_per_gpu == pytest.approx(8e15 / 2 / 8)
    assert (speed.mfu_source, speed.flops_convention) == ("flops_per_step", "as configured")
    assert speed.hfu_ratio is None or speed.hfu_ratio == speed.mfu_ratio


def test_flops_of_a_dumped_module_serve_when_nothing_else_is_known():
    dumped = replace(DESCRIBED, model=None, hlo_flops_per_step=8e15)
    speed = efficiency_of(step_table([2.0] * 8), description=dumped)
    assert speed.model_flops_per_s_per_gpu == pytest.approx(8e15 / 2 / 8)
    assert (speed.mfu_source, speed.flops_convention) == ("hlo", "with recomputation")
    steps = step_table([2.0] * 8, flops_per_s_per_gpu=1e12)
    assert efficiency_of(steps, description=dumped).mfu_source == "log"
    assert (
        efficiency_of(steps, description=replace(dumped, flops_per_step=1e15)).mfu_source == "flops_per_step"
    )


@pytest.mark.parametrize(
    ("gpu", "counted", "peak_precision", "words"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", "bf16", "products of bf16 in the dumped HLO"),
        ("NVIDIA H100 80GB HBM3", "tf32", "tf32", "which XLA computes as TF32 by default"),
        ("NVIDIA H100 80GB HBM3", "fp32", "fp32", "products of fp32 in the dumped HLO"),
        pytest.param("Tesla V100-SXM2-32GB", "tf32", "fp32", "products of fp32", id="before Ampere"),
        pytest.param("Tesla V100-SXM2-32GB", "tf32_x3", "fp32", "products of fp32", id="3, before Ampere"),
        pytest.param("AMD Instinct MI300X", "tf32", "fp32", "products of fp32", id="not NVIDIA"),
    ],
)
def test_the_precision_of_a_dumped_module_selects_the_peak_if_nothing_else_says_it(
    gpu: str, counted: str, peak_precision: str, words: str
):
    dumped = replace(DESCRIBED, precision=None, hlo_precision=counted)
    speed = efficiency_of(step_table([2.0] * 8), description=dumped, gpu_infos=infos(gpu, 8))
    assert (speed.peak_precision, speed.peak_precision_source) == (peak_precision, "hlo")
    assert speed.mfu_ratio is not None
    assert words in (speed.precision_by_hlo or "")
    said = efficiency_of(step_table([2.0] * 8), description=replace(dumped, precision="bf16"))
    assert (said.peak_precision, said.peak_precision_source, said.precision_by_hlo) == ("bf16", "job", None)


@pytest.mark.parametrize(("counted", "products"), [("bf16_x3", 3), ("bf16_x6", 6), ("bf16_x9", 9)])
def test_a_product_of_f32_by_several_products_has_its_part_of_their_peak(counted: str, products: int):
    def of(precision: str):
        dumped = replace(DESCRIBED, precision=None, hlo_precision=precision)
        return efficiency_of(
            step_table([2.0] * 8), description=dumped, gpu_infos=infos("NVIDIA H100 80GB HBM3", 8)
        )

    one, several = of("bf16"), of(counted)
    assert one.mfu_ratio is not None
    assert several.mfu_ratio == pytest.approx(products * one.mfu_ratio)
    assert several.precision_by_hlo == (
        f"products of f32 in the dumped HLO, each of {products} products of bf16"
    )


@pytest.mark.parametrize(
    ("job", "columns", "fields", "words"),
    [
        (DESCRIBED, {}, {"gpu_infos": {}}, "No GPU is known"),
        (
            replace(DESCRIBED, parallel=ParallelLayout(global_batch_size=64)),
            {},
            {"gpu_infos": {}},
            "No GPU is known",
        ),
        (
            DESCRIBED,
            {},
            {"gpu_infos": infos("NVIDIA Imaginary", 8)},
            "No peak is known for bf16 on",
        ),
        (replace(DESCRIBED, precision=None), {}, {}, "--precision"),
        (replace(DESCRIBED, model=None), {}, {}, "--model-config"),
        (
            replace(DESCRIBED, parallel=replace(DESCRIBED.parallel, global_batch_size=None)),
            {},
            {},
            "--tokens-per-step",
        ),
        (DESCRIBED, {}, {}, None),
    ],
)
def test_an_unknown_mfu_says_what_it_lacks(job, columns, fields, words):
    speed = efficiency_of(step_table([2.0] * 8, **columns), description=job, **fields)
    assert (speed.mfu_ratio is None) == (words is not None)
    assert speed.mfu_missing is None if words is None else words in speed.mfu_missing


@pytest.mark.parametrize(
    ("counted", "known"),
    [
        ({"hlo_flops_per_step": 2.7e9}, "A step has 2.7 GFLOP by the dumped HLO."),
        ({"flops_per_step": 8e12}, "A step has 8.0 TFLOP as configured."),
        ({"flops_per_step": 8e12, "hlo_flops_per_step": 2.7e9}, "A step has 8.0 TFLOP as configured."),
        ({"model": LLAMA3_8B, "hlo_flops_per_step": 2.7e9}, "A step has 2.7 GFLOP by the dumped HLO."),
    ],
    ids=["HLO", "configured", "both", "HLO beside a shape without tokens"],
)
def test_flops_of_a_step_are_said_when_only_the_gpus_that_share_them_are_unknown(counted, known):
    job = JobDescription(job="job", framework="", **counted)
    summary = summary_of(step_table([2.0] * 8), description=job, gpu_infos={})
    assert summary.efficiency.mfu_missing == f"No GPU is known. {known}"
    assert f"unknown. No GPU is known. {known}" in "\n".join(numbers_in_words(summary))
    speed = efficiency_of(step_table([2.0] * 8), description=replace(job, precision="bf16"))
    assert speed.mfu_missing == (
        f"How many GPUs share the job's work is unknown: no rank is seen on a GPU. {known}"
    )
    sharing = replace(job, parallel=ParallelLayout(world_size=8))
    speed = efficiency_of(step_table([2.0] * 8), description=sharing, gpu_infos={})
    assert speed.model_flops_per_s_per_gpu is not None
    assert speed.mfu_missing == "No GPU is known."


def test_a_shape_on_gpus_of_which_no_number_is_known_does_not_blame_the_peak():
    job = replace(DESCRIBED, parallel=ParallelLayout(global_batch_size=64))
    speed = efficiency_of(step_table([2.0] * 8), description=job)
    assert "How many GPUs" in (speed.mfu_missing or "")


def test_gpus_are_counted_when_the_job_does_not_say_its_world_size():
    steps = step_table([2.0] * 8)
    gpu = gpu_table(steps, {"power_w": [500.0] * 8})
    job = replace(DESCRIBED, parallel=replace(DESCRIBED.parallel, world_size=None))
    assert summary_of(steps, description=job, gpu=gpu).parallel.world_size == 8
    assert np.isclose(
        efficiency_of(steps, description=job, gpu=gpu).mfu_ratio, efficiency_of(steps).mfu_ratio
    )


def test_of_a_node_whose_ranks_have_gpus_the_others_are_not_of_the_job():
    steps = step_table([2.0] * 8)
    gpu = gpu_table(steps, {"power_w": [500.0] * 8})
    ending = replace(
        gpu, gpus=[replace(key, rank=None if at in {0, 7} else at) for at, key in enumerate(gpu.gpus)]
    )
    job = replace(DESCRIBED, parallel=replace(DESCRIBED.parallel, world_size=None))
    launched = {"n": [RankPlacement(job="llm", rank=rank, world_size=7) for rank in range(7)]}
    assert summary_of(steps, description=job, gpu=ending, placements=launched).parallel.world_size == 7


def test_a_slice_of_a_gpu_has_no_peak_although_its_parent_has():
    steps = step_table([2.0] * 8)
    gpu = gpu_table(steps, {"power_w": [100.0] * 8})
    slices = replace(gpu, gpus=[replace(key, gpu=f"{key.gpu}/1") for key in gpu.gpus])
    assert efficiency_of(steps, gpu=gpu).mfu_ratio is not None
    assert efficiency_of(steps, gpu=slices).mfu_ratio is None


@pytest.mark.parametrize(
    ("mfu_ratio", "tier"),
    [(0.299, "trouble"), (0.3, "communication_bound"), (0.399, "communication_bound"), (0.4, "good"),
     (0.5, "good"), (0.501, "excellent")],
)  # fmt: skip
def test_the_tier_of_an_mfu_has_the_edges_of_the_table(mfu_ratio, tier):
    assert MfuTier.of(mfu_ratio) == tier


@pytest.mark.parametrize(
    ("mfu_ratio", "lost_ratio", "best"),
    [
        (0.4, 0.2, 0.5),
        (0.425, 0.5, 0.85),
        (0.426, 0.5, None),
        (0.4, 0.0, None),
        (0.4, 1.0, None),
        (0.4, None, None),
        (None, 0.2, None),
    ],
)
def test_an_mfu_that_no_job_reaches_is_not_called_attainable(mfu_ratio, lost_ratio, best):
    assert attainable_mfu(mfu_ratio, lost_ratio) == (None if best is None else pytest.approx(best))


def test_the_tier_is_that_of_the_mfu_and_unknown_with_it():
    assert efficiency_of(step_table([8.0] * 8, global_batch_size=64.0)).mfu_tier == "good"
    assert efficiency_of(step_table([16.0] * 8, global_batch_size=64.0)).mfu_tier == "trouble"
    assert efficiency_of(step_table([8.0] * 8), gpu_infos={}).mfu_tier is None


def by_operations(doubt: StepDoubt | None, tensor_active_ratio: float, count: int = 8) -> JobSummary:
    """One whose MFU rests on 4e15 FLOPs a step, by steps of NCCL operations: 50.5% of the peak."""
    steps = step_table([1.0] * count)
    pace = OperationPace(
        communicator="ab", operation="AllReduce", per_step=5, row_end_sequence=100, doubt=doubt
    )
    gpus = gpu_table(
        steps, {"tensor_active_ratio": [tensor_active_ratio] * count, "sm_clock_hz": [1.83e9] * count}
    )
    return summary_of(
        steps,
        description=replace(DESCRIBED, flops_per_step=4e15),
        gpu=gpus,
        operation_pace=pace,
        step_source=StepSource.NCCL,
    )


@pytest.mark.parametrize(
    ("doubt", "counted", "condition"),
    [
        (None, "steps 1 to 8", ""),
        (StepDoubt.MICRO_BATCHES, "steps or micro-batches 1 to 8", "if each step or micro-batch is a step"),
        (StepDoubt.ROUNDS, "steps or rounds of steps 1 to 8", "if each step or round of steps is a step"),
    ],
)
def test_numbers_that_rest_on_steps_in_doubt_say_so(doubt: StepDoubt | None, counted: str, condition: str):
    text = "\n".join(numbers_in_words(by_operations(doubt, 0.6)))
    assert counted in text
    assert "50.5%" in text
    assert condition in text
    assert ("if each" in text) is (doubt is not None)
    assert ("Step times in the log, or perfd.hook, say which" in text) is (doubt is not None)


def test_an_mfu_above_what_tensor_cores_allow_shows_that_steps_have_parts():
    speed = by_operations(StepDoubt.MICRO_BATCHES, 0.2).efficiency
    assert (speed.mfu_ratio, speed.mfu_tier, speed.model_flops_per_s_per_gpu) == (None, None, None)
    assert "only a part of a step" in (speed.mfu_missing or "")
    assert by_operations(None, 0.2).efficiency.mfu_ratio == pytest.approx(0.505, rel=1e-2)


@pytest.mark.parametrize(
    ("doubt", "jitter"), [(None, 0.0), (StepDoubt.MICRO_BATCHES, None), (StepDoubt.ROUNDS, None)]
)
def test_what_may_be_no_steps_has_no_jitter(doubt: StepDoubt | None, jitter: float | None):
    assert by_operations(doubt, 0.6, 12).step_time_s.jitter_ratio == jitter
