"""Real lines that users posted; they stay outside of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from perfd_collectors.training_log.log_document import LogDocument

from perfd.model import EventKind
from tests.support.read_logs import read_logs

_SHARED = os.environ.get("PERFD_SHARED")
pytestmark = pytest.mark.skipif(_SHARED is None, reason="PERFD_SHARED does not name the shared directory")


def sample(pattern: str) -> LogDocument:
    (path,) = (Path(_SHARED or "") / "samples").glob(pattern)
    return read_logs([path])


def test_argonne() -> None:
    (step,) = sample("argonne-*").steps

    assert (step.step, step.step_time_s, step.samples_per_s) == (2, 8.4572, 90.81)
    assert step.flops_per_s_per_gpu == 70.98e12
    assert step.losses == {"lm loss": 11.164009}
    assert step.extras["[DS]TFLOPs"] == 91.53


def test_bigscience_in_both_units_of_time() -> None:
    first, second, third = sample("bigscience-*").steps

    assert (first.step, first.step_time_s, first.flops_per_s_per_gpu) == (12695, 105.22, 149.02e12)
    assert (second.step_time_s, second.loss_scale) == (23.69, 16384.0)
    assert (third.step, third.step_time_s, third.extras["actual seq length"]) == (2, 5.35, 2048)


def test_deepspeed() -> None:
    understanding = sample("deepspeed_*")
    first, second, neox = understanding.steps

    assert (first.step, first.samples_per_s, first.learning_rate) == (40, 83.48609168106144, 5e-05)
    assert (second.step, second.samples_per_s) == (34, 8.00912418308922)
    assert (neox.step, neox.samples_per_s, neox.flops_per_s_per_gpu) == (34, 7.799, 112.9e12)
    assert understanding.phases[1].phases["forward"].max_s == 0.65241
    assert understanding.phases[2].phases["optimizer"].max_s == 1.17251
    assert understanding.unrecognized_lines == 0


def test_hugging_face() -> None:
    understanding = sample("hf-trainer*")

    # Neither line says its step, and there is no progress bar.
    assert understanding.steps == []
    assert understanding.events[-1].values["train_samples_per_second"] == 12.3


def test_a_checkpoint_of_bridge() -> None:
    (event,) = sample("megatron-bridge_*").events

    assert (event.kind, event.step, event.duration_s) == (EventKind.CHECKPOINT, 50, 24.89513)


@pytest.mark.parametrize("pattern", ["megatron-core_main_README*", "megatron-core_r0.12.straggler*"])
def test_straggler_reports(pattern: str) -> None:
    report, lowest, highest = sample(pattern).events

    assert report.values["power_max_w"] == 683.801
    assert report.values["sm_clock_min_hz"] == 1950e6
    assert lowest.values["throughput_rank_0_flops_per_s"] == 296.02e12
    assert highest.values["throughput_rank_8_flops_per_s"] == 297.32e12


@pytest.mark.parametrize(
    ("pattern", "window_s"),
    [
        ("megatron-core_r0.12.timers-minmax*", (0.35041, 0.35196)),
        ("megatron-core_r0.16.timers-minmax.SIMULATED-1F1B-pp4-m8.log", (0.35608, 0.35723)),
        ("megatron-core_r0.16.timers-minmax*laststage*", (0.42801, 0.42869)),
        ("torchrun-tee3-default-prefix*", (0.34893, 0.34932)),
    ],
)
def test_timers_by_their_extremes(pattern: str, window_s: tuple[float, float]) -> None:
    understanding = sample(pattern)
    phases = understanding.phases[0].phases

    assert (phases["forward-backward"].min_s, phases["forward-backward"].max_s) == window_s
    assert len(phases) == 11
    assert understanding.unrecognized_lines == 0


def test_timers_of_all_ranks() -> None:
    phases = sample("megatron-core_r0.16.timers-all*laststage*").phases[0].phases

    assert phases["forward-compute"].by_rank == {0: 0.08092, 1: 0.08222, 2: 0.08155, 3: 0.10513}
    assert set(phases["forward-recv"].by_rank) == {1, 2, 3}


def test_mixtral_of_core_0_6() -> None:
    understanding = sample("*issue-756.log")

    assert [step.step for step in understanding.steps] == [71, 72, 73]
    assert understanding.steps[0].step_time_s == 5.3616
    assert understanding.steps[0].flops_per_s_per_gpu == 243.6e12
    assert understanding.steps[0].losses == {"lm loss": 1.818812, "load_balancing_loss": 1.013377}


def test_the_arguments_of_core_0_12() -> None:
    said = sample("*arguments-dump-subset*").description

    assert said is not None
    assert said.model is not None
    assert (said.model.layers, said.model.kv_heads, said.model.vocab_size) == (12, 12, 50304)
    assert (said.precision, said.parameters, said.log_interval_steps) == ("fp16", 124082688, 10)
    assert said.logged_flops_convention == "megatron-causal"
    assert said.parallel.world_size == 1


def test_memory_at_the_start_of_a_large_job() -> None:
    understanding = sample("*startup-and-memory*")

    assert [report.rank for report in understanding.memory] == [2, 5, 9, 8]
    assert understanding.memory[0].max_allocated_bytes == 47104.31 * 2**20
    assert understanding.description is not None
    assert understanding.description.parameters == 64.69e9


def test_bert_of_version_2() -> None:
    understanding = sample("megatron-lm_v2.x-bert*")
    (step,) = understanding.steps

    assert (step.losses["sop loss"], step.skipped_steps) == (0.6911852, 1)
    assert understanding.phases[0].phases["optimizer"].max_s == 0.0575
    assert understanding.memory[0].allocated_bytes == 6245.033203125 * 2**20


def test_nemo_and_nanotron() -> None:
    nemo_2, nemo_1, nanotron = sample("nemo2*").steps

    assert (nemo_2.step, nemo_2.step_time_s, nemo_2.losses["val_loss"]) == (120, 0.03146, 4.106)
    assert (nemo_1.step, nemo_1.step_time_s) == (794, 41.36)
    assert (nanotron.step, nanotron.tokens_per_s, nanotron.step_time_s) == (991, 14200, 0.045)


def test_torchtitan() -> None:
    understanding = sample("torchtitan*")

    assert [step.step for step in understanding.steps] == [200, 4, 14]
    assert [step.mfu_ratio for step in understanding.steps] == [0.3429, 0.1399, 0.0017]
    assert understanding.steps[0].flops_per_s_per_gpu == 339.16e12


def test_verl() -> None:
    (step,) = (understanding := sample("verl*")).steps

    assert (step.step, step.step_time_s, step.mfu_ratio) == (2, 96.551, 1.018)
    assert understanding.phases[0].phases["gen"].max_s == 74.02


@pytest.mark.parametrize("pattern", ["sglang-0.4.6*", "vllm_*", "mini-sglang*"])
def test_logs_of_inference_say_nothing_about_training(pattern: str) -> None:
    understanding = sample(pattern)

    assert (understanding.steps, understanding.description) == ([], None)
