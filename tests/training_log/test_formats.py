"""Each format, as a log and what is understood of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from perfd_collectors.training_log.log_parser import LogParser, new_job
from training_log.logs import records_of

from perfd.model import TrainingStep
from tests.support.read_logs import read_logs

FIXTURES = Path(__file__).parents[1] / "fixtures" / "training_log"
LOGS = sorted(FIXTURES.glob("*.log"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_log_is_understood_as_its_golden_file_says(log: Path, golden: Callable[[Path, str], None]) -> None:
    document = read_logs([log]).document()

    golden(log.with_suffix(".json"), json.dumps(document, indent=1) + "\n")


def test_every_golden_file_has_its_log() -> None:
    assert {path.stem for path in FIXTURES.glob("*.json")} == {log.stem for log in LOGS}


FOUND = [
    ("megatron-v2", "megatron-lm", [100, 200]),
    ("megatron-core-0.5-max", "megatron-lm", [10, 20]),
    ("megatron-core-0.8", "megatron-lm", [10, 20, 30]),
    ("megatron-core-0.12-moe-mla", "megatron-lm", [210, 220, 230]),
    ("megatron-core-0.13-energy", "megatron-lm", [10, 20]),
    ("megatron-core-0.16-first-iteration", "megatron-lm", [1, 10, 20]),
    ("megatron-core-main-all-ranks", "megatron-lm", [40, 41]),
    ("megatron-bridge", "megatron-bridge", [10, 20]),
    ("fork-bigscience", "megatron-deepspeed", [1000]),
    ("fork-argonne", "megatron-deepspeed", [2]),
    ("fork-swiss-ai", "megatron-lm", [51000]),
    ("fork-llm-jp", "megatron-lm", [20]),
    ("fork-primus", "primus", [20, 30]),
    ("fork-gpt-neox", "gpt-neox", [34]),
    ("deepspeed-2022", "deepspeed", [40, 50]),
    ("deepspeed-0.9", "deepspeed", [33]),
    ("deepspeed-pipeline", "deepspeed", [10, 20]),
    ("torchtitan", "torchtitan", [1, 10, 20]),
    ("torchtitan-2026", "torchtitan", [101, 110]),
    ("torchtitan-pipeline", "torchtitan", [1, 10]),
    ("nemo-1-progress-bar", "nemo", [793, 794]),
    ("nemo-2", "nemo", [0, 1, 2]),
    ("hf-trainer-4", "hf-trainer", [10, 20]),
    ("hf-trainer-5", "hf-trainer", []),
    ("hf-trainer-5-bars-at-the-end", "hf-trainer", list(range(5, 91, 5))),
    ("hf-trainer-5-tokens", "hf-trainer", list(range(5, 41, 5))),
    ("lightning-tqdm", "lightning", list(range(5, 81, 5))),
    ("lightning-rich", "lightning", [80]),
    ("lightning-rich-terminal", "lightning", list(range(1, 13))),
    ("maxtext", "maxtext", list(range(40))),
    ("composer", "composer", [1, 10, 20, 30, 40, 50, 60, 70, 80]),
    ("timm", "timm", [1, 51, 101, 120, 121, 171]),
    ("mmengine", "mmengine", [50, 100, 170, 220]),
    ("mmcv", "mmengine", [50, 100, 170, 220]),
    ("detectron2", "detectron2", [19, 39, 59, 79]),
    ("fairseq", "fairseq", [100, 200, 300, 400]),
    ("torchvision", "training-loop", [1, 51, 101, 121, 171]),
    ("imagenet-example", "training-loop", [1, 51, 101, 121, 171]),
    ("keras", "keras", list(range(20, 201, 20))),
    ("epoch-loop", "training-loop", list(range(100, 601, 100))),
    ("epoch-loop-from-zero", "training-loop", list(range(0, 900, 100))),
    ("ultralytics", "ultralytics", list(range(5, 61, 5))),
    ("ultralytics-tqdm", "ultralytics", list(range(5, 61, 5))),
    ("paddlenlp", "paddlenlp", [10, 20, 30, 40]),
    ("paddledetection", "training-loop", [1, 21, 41, 61, 81, 101]),
    ("paddleseg", "training-loop", list(range(10, 81, 10))),
    ("tensorflow-estimator", "training-loop", [0, 100, 200, 300, 400]),
    ("espnet", "espnet", list(range(100, 801, 100))),
    ("wenet", "wenet", list(range(100, 801, 100))),
    ("open-clip", "open-clip", [1, 11, 21, 31, 32, 33, 43, 53, 63, 64]),
    ("allennlp", "training-loop", list(range(20, 201, 20))),
    ("gluoncv", "training-loop", [49, 99, 149, 198, 248, 298]),
    ("mxnet", "training-loop", list(range(50, 301, 50))),
    ("dinov2", "training-loop", list(range(10, 51, 10))),
    ("keras-one-line-per-epoch", "keras", [64, 128, 192, 256]),
    ("keras-guide", "training-loop", list(range(0, 1001, 200))),
    ("bars-in-bars", "training-loop", list(range(20, 201, 20))),
    ("spacy", "spacy", list(range(0, 601, 100))),
    ("chainer", "chainer", [600, 1200, 1800, 2400]),
    ("clu", "clu", [100, 200, 300, 400]),
    ("t5x", "clu", [1000, 2000, 3000]),
    ("big-vision", "clu", [50, 100, 150, 200]),
    ("axlearn", "training-loop", list(range(100, 501, 100))),
    ("olmo", "olmo", [5, 10, 15, 20, 25]),
    ("opennmt", "training-loop", [100, 200, 300, 400]),
    ("llm-c", "llm.c", [1, 2, 3, 4, 5]),
    ("openrlhf-ppo", "openrlhf", [1, 2]),
    ("openrlhf-sft", "training-loop", list(range(5, 101, 5))),
    ("slime", "slime", [1, 3, 5, 7, 9]),
    ("stable-baselines3", "stable-baselines3", [1, 2, 3, 4, 5, 6]),
    ("stable-baselines3-dqn", "stable-baselines3", [9, 20, 30, 40, 49, 59, 69]),
    ("rllib", "rllib", [1, 2, 3, 4, 5]),
    ("nemo-rl", "nemo-rl", [1, 2, 3, 4, 5, 6]),
    ("areal", "areal", [1, 2, 3, 4, 5]),
    ("verl-numpy-2", "verl", [1, 2, 3, 4]),
    ("deepspeed-chat", "training-loop", list(range(8))),
    ("prime-rl", "prime-rl", list(range(6))),
    ("olmo-core", "olmo", [1, 2, 3, 4, 5]),
    ("llm-foundry", "composer", [1, 2, 3, 4, 5]),
    ("nemo-automodel", "nemo-automodel", [0, 1, 2, 3, 4]),
    ("xtuner", "xtuner", [1, 2, 3, 4, 5]),
    ("lingua", "lingua", [10, 20, 30, 40, 50]),
    ("internevo", "internevo", [0, 1, 2, 3, 4]),
    ("fms-fsdp", "training-loop", [100, 200, 300, 400, 500]),
    ("fairseq2", "training-loop", [100, 200, 300, 400, 500]),
    ("physicsnemo-sym", "training-loop", [100, 200, 300, 400, 500]),
    ("structlog", "training-loop", list(range(0, 26, 5))),
    ("json-logger", "training-loop", list(range(0, 26, 5))),
    ("absl-dict", "training-loop", list(range(0, 21, 5))),
    ("epoch-headings", "training-loop", list(range(10, 151, 10))),
    ("epoch-loop-chinese", "training-loop", list(range(1, 112, 10))),
    ("csv-lines", "training-loop", list(range(0, 26, 5))),
    ("openai-logger", "training-loop", [0, 10, 20]),
    ("fairseq-json", "training-loop", list(range(100, 501, 100))),
    ("thousands", "training-loop", list(range(9000, 12001, 250))),
    ("modded-nanogpt", "training-loop", list(range(7))),
    ("nanogpt", "nanogpt", [10, 20]),
    ("nanochat", "nanochat", [10, 11]),
    ("litgpt", "litgpt", [3, 4]),
    ("training-loop", "training-loop", [10, 20, 30, 40]),
    ("nanotron", "nanotron", [991, 992]),
    ("verl", "verl", [2, 3]),
    ("launcher-prefixes", "megatron-lm", [10, 20, 30, 40, 50, 60, 70]),
]
"""Log, framework, and steps."""


@pytest.mark.parametrize(("name", "framework", "steps"), FOUND, ids=[case[0] for case in FOUND])
def test_the_framework_and_the_steps_are_found(name: str, framework: str, steps: list[int]) -> None:
    understanding = read_logs([FIXTURES / f"{name}.log"])

    assert understanding.description is not None
    assert understanding.description.framework == framework
    assert [step.step for step in understanding.steps] == steps


@pytest.mark.parametrize(("line_of_the_schedule", "micro_batches"), [(True, 8), (False, None)])
def test_a_batch_of_torchtitan_is_cut_into_micro_batches_only_as_its_schedule_says(
    line_of_the_schedule: bool, micro_batches: int | None, tmp_path: Path
) -> None:
    lines = (FIXTURES / "torchtitan-pipeline.log").read_text().splitlines(keepends=True)
    log = tmp_path / "log"
    log.write_text("".join(line for line in lines if line_of_the_schedule or "schedule" not in line))

    description = read_logs([log]).description

    assert description is not None
    assert description.parallel.micro_batches == micro_batches


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [((0, 1, 2), [100, 200, 300]), ((1, 2), [100, 200]), ((4, 5), [400, 500])],
    ids=["from zero", "from one", "from a checkpoint"],
)
def test_batches_of_a_loop_are_numbered_over_its_epochs(epochs: tuple[int, ...], expected: list[int]) -> None:
    lines = "".join(f"Epoch: {epoch} | Batch: 100/100 | Loss: 2.3\n" for epoch in epochs)
    assert [step.step for step in records_of(lines, TrainingStep)] == expected


def test_a_step_of_nemo_rl_is_added_once_its_time_is_known() -> None:
    parser = LogParser(job := new_job("job"))
    parser.feed(b"===== Step 7/100 =====\n\xe2\x96\xb6 Preparing batch...\n")
    parser.flush()
    parser.feed(
        "  \u2022 Loss: 0.25\n  \u2022 Total step time: 63.50s\n  \u2022 generation: 22.50s (35%)\n".encode()
    )
    parser.flush()

    (step,) = [record for record in job.out.take(0) if isinstance(record, TrainingStep)]
    assert (step.step, step.step_time_s, step.losses) == (7, 63.5, {"Loss": 0.25})


@pytest.mark.parametrize(
    "text",
    [
        "step: 100\nnothing: here\n",
        "step: 100\nsomething else\nloss: 3.0\n",
        "===== Step 3/4 =====\nDownloading: 12.0s\n",
        "===== Step 3/4 =====\n    \u2022 Validation loss: 1.5\n",
        "Epoch 1/1 Step 3/4 Train step 3/4 done.\n",
    ],
)
def test_a_heading_without_a_value_of_training_below_it_is_no_step(text: str) -> None:
    assert records_of(text, TrainingStep) == []


def test_batches_of_another_loader_in_an_epoch_are_not_steps() -> None:
    lines = "".join(
        f"Epoch {epoch} | Step {batch}/{batches} | Loss 2.3\n"
        for epoch in (1, 2)
        for batch, batches in ((50, 100), (100, 100), (10, 20), (20, 20))
    )
    assert [step.step for step in records_of(lines, TrainingStep)] == [50, 100, 150, 200]


def test_batches_that_are_numbered_over_all_epochs_are_not_numbered_again() -> None:
    lines = "".join(f"Epoch {1 + n // 50} | Step {n}/100 | Loss 2.3\n" for n in range(0, 101, 10))
    assert [step.step for step in records_of(lines, TrainingStep)] == list(range(0, 101, 10))


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([(1, 100), (1, 200), (2, 100), (2, 200)], [100, 200, 300, 400]),
        ([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], [0, 1, 2, 3, 4]),
        ([(0, 100), (0, 200), (1, 300), (1, 400)], [100, 200, 300, 400]),
        ([(1, 100), (1, 200), (2, 100), (1, 200), (2, 100), (2, 200)], [100, 200, 300, 400]),
        ([(1, 100), (1, 200), (2, 100), (1, 150), (1, 200), (2, 100)], [100, 200, 300, 150, 200, 300]),
        ([(1, 100), (1, 200), (2, 100), (2, 50)], [100, 200, 300, 250]),
    ],
    ids=["per epoch", "from zero", "over all epochs", "a rank behind", "restart", "restart in its epoch"],
)
def test_batches_of_epochs_without_a_total_count_on(
    batches: list[tuple[int, int]], expected: list[int]
) -> None:
    lines = "".join(f"[Epoch {epoch}] step={batch} loss=2.3\n" for epoch, batch in batches)
    assert [step.step for step in records_of(lines, TrainingStep)] == expected


@pytest.mark.parametrize(
    "line",
    [
        "dev epoch 1 step 10/100 loss 2.3",
        "[inference] Epoch: 1 | Batch: 10 | Loss: 2.3",
        "Epoch: 1 | Batch: 10k | Loss: 2.3",
        "Epoch: 1 | Batch: 10/9.5 | Loss: 2.3",
        "Epoch: 1 | Step: 101/100 | Loss: 2.3",
        "Epoch: 1 | Batch: 101/100 | Loss: 2.3",
        "Epoch: 1 | Batch: 10/100",
        "Epoch: 1 | Batch: 1.5/100 | Loss: 2.3",
        "Best epoch: 1, batch 10/100, loss 2.3",
        "Epoch: 1 | Val batch: 10/100 | Loss: 2.3",
        "Epoch: 1 | Batch: 10/100 | val_loss: 2.3",
        "10/100 ━━━━━━━━━━ 2s 5ms/step - loss: 0.61",
    ],
)
def test_lines_that_show_no_batch_of_training_are_not_steps(line: str) -> None:
    assert records_of(line + "\n", TrainingStep) == []


def test_a_line_that_names_a_step_itself_is_no_row_of_the_block_around_it() -> None:
    log = Path(__file__).parents[1] / "fixtures" / "training_log" / "areal.log"
    lines = log.read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("\u2502"))
    lines.insert(at, "Training loss (for one batch) at step 200: 1.0000")
    (first, *_) = records_of("\n".join(lines) + "\n", TrainingStep)

    assert first.losses == {"grpo_actor/update/actor_loss/avg": -0.0011}


_METRIC = "I1120 10:00:00.000000 140000000000000 logging_writer.py:48] [7] collection=train "


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("Result for PPO_x:\n  training_iteration: 7\n  episode_reward_mean: 1.0", "  learner/a{}_loss: {}"),
        ("| time/ | |\n| iterations | 7 |\n| total_timesteps | 9 |", "| a{}_loss | {} |"),
        ("[step=7/1000,epoch=0]", "    train/a{} loss={}"),
        (f"{_METRIC}loss=1.0", _METRIC + "a{}_loss={}"),
    ],
)
def test_a_block_that_does_not_end_is_not_kept_in_memory(head: str, row: str) -> None:
    text = "\n".join([head, *(row.format(number, number) for number in range(5000)), "end", ""])
    (step, *_) = records_of(text, TrainingStep)

    assert step.step == 7
    assert 0 < len(step.losses) <= 2000
