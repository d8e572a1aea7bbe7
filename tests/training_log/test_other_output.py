"""Output of other programs, and of other parts of a job, that looks like steps: none of it is one."""

from __future__ import annotations

import pytest

from perfd.model import TrainingStep
from tests.training_log.logs import records_of


def bar(about: str, *, total: int, per_s: float = 2.0, postfix: str = "") -> list[str]:
    """A bar of tqdm, drawn a few times."""
    return [
        f"{about}{100 * n // total:3d}%|{'█' * (10 * n // total):10}| {n}/{total} "
        f"[{int(n / per_s) // 60:02d}:{int(n / per_s) % 60:02d}<00:09, {per_s:.2f}it/s{postfix}]"
        for n in range(total // 5, total + 1, total // 5)
    ]


OUTPUT = {
    "downloads": [
        *bar("Downloading shards: ", total=5, per_s=0.1),
        *bar("Fetching 10 files: ", total=10, per_s=0.5),
        "model-00001-of-00004.safetensors:  50%|█████     | 2.49G/4.98G [00:30<00:30, 81.2MB/s]",
    ],
    "tokenization": [
        *bar("Tokenizing: ", total=300),
        *bar("Grouping texts in chunks of 1024: ", total=300),
        *bar("Packing: ", total=300),
        "Map:  50%|█████     | 5000/10000 [00:10<00:10, 500.00 examples/s]",
    ],
    "loading": [
        *bar("Loading checkpoint shards: ", total=30, per_s=0.5),
        *bar("Capturing CUDA graph shapes: ", total=35, per_s=0.5),
    ],
    "evaluation": [
        *bar("Evaluating: ", total=100),
        *bar("Validation: ", total=100, postfix=", loss=1.2"),
        *bar("Running loglikelihood requests: ", total=1000, per_s=20),
        *bar("Predicting DataLoader 0: ", total=100),
        "2026-06-01 10:09:00,123 DEBUG CV | steps/sec 9.125| Batch 0/100 loss 3.2 loss_att 2.1 acc 0.8 ",
        "2026-06-01 10:10:00,123 INFO Epoch 0 Step 400 CV info lr 1.2e-04 cv_loss 3.1 rank 0 acc 0.8",
    ],
    "epochs": bar("Epoch: ", total=5, per_s=0.01),
    "pytest": [
        "tests/test_step.py::test_step_10_loss PASSED [ 50%]",
        "E       AssertionError: step 10: loss 2.3 != 2.4",
        "1 failed, 119 passed in 12.34s",
    ],
    "make": [
        "[ 30%] Building CXX object src/CMakeFiles/step3.dir/iter.cc.o",
        "[3/100] Compiling step 3 of train.cu",
        "[3/100] /usr/bin/nvcc -c iter_3.cu -o iter3.o",
    ],
    "docker": ["Step 3/12 : RUN pip install torch==2.3", "#3 [3/12] RUN pip install torch  3.2s"],
    "a search": [
        "[I 2026-06-01 10:00:00,123] Trial 3 finished with value: 0.93, parameters {'step': 10}.",
        *bar("Best trial: 3. Best value: 0.93: ", total=20, per_s=0.03),
    ],
    "serving": [
        "INFO 06-01 10:00:01 [loggers.py:127] Avg prompt throughput: 120.1 tokens/s, Running: 3 reqs",
        *bar("Processed prompts: ", total=100),
    ],
    "boosting": ["[10]\ttrain-rmse:0.1\teval-rmse:0.2", "[20]\ttraining's binary_logloss: 0.58"],
    "words": [
        "step 1: clone the repository, step 2: train",
        "Epoch 10 of the campaign started, loss of 3 players",
        "Saving checkpoint at step 100, loss 2.3",
        "Warmup step 3/10: 130.1 ms",
        "Autotuning step 3/20: 12.1 ms",
        "Diffusion sampling step 10/50, time 0.2 s",
        "[rank0]: step 5 tensor shape (3, 4) loss.py:33",
    ],
    "updates of one round": [
        line.replace("Train epoch", "(PolicyModelActor pid=4102) Train epoch")
        for line in bar("Train epoch [1/1]: ", total=10, postfix=", act_loss=0.1, kl=0.01")
    ],
    "environment steps": ["global_step=2038, episodic_return=[21.]", "SPS: 2100"],
    "a trial of another search": [
        "Result for train_fn_1a2b3_00000:",
        "  loss: 0.4",
        "  time_this_iter_s: 3.1",
        "  training_iteration: 1",
        "",
    ],
}


@pytest.mark.parametrize("lines", OUTPUT.values(), ids=OUTPUT)
@pytest.mark.parametrize("ending", ["\n", "\r"], ids=["lines", "drawn over"])
def test_it_shows_no_step(lines: list[str], ending: str) -> None:
    assert records_of(ending.join(lines) + ending, TrainingStep) == []


def test_bars_of_validation_that_look_like_those_of_training_are_not_steps() -> None:
    log = [
        line
        for _ in range(2)
        for total in (100, 20)
        for line in bar("accuracy: 0.51, batch_loss: 0.62, loss: 0.70 ||: ", total=total)
    ]

    steps = [step.step for step in records_of("\n".join(log) + "\n", TrainingStep)]

    assert steps == [*range(20, 101, 20), *range(120, 201, 20)]


def test_the_first_of_several_trials_counts() -> None:
    log = "".join(
        f"Result for PPO_{trial}:\n  episode_reward_mean: 20.5\n  time_this_iter_s: 3.5\n"
        f"  training_iteration: {n}\n\n"
        for n in range(1, 4)
        for trial in ("a", "b")
    )

    steps = records_of(log, TrainingStep)

    assert [(step.step, step.step_time_s) for step in steps] == [(1, 3.5), (2, 3.5), (3, 3.5)]


def test_times_of_a_round_are_of_all_its_updates_only_if_all_were_read() -> None:
    def round_of(*updates: int) -> str:
        lines = "".join(f"model.py:9 - step {n}: {{'train/loss': 0.5, 'train/step': {n}}}\n" for n in updates)
        return lines + "metrics.py:9 - perf 9: {'perf/train_time': 6.0, 'perf/step_time': 8.0}\n"

    log = round_of(7) + round_of(8, 9) + round_of(10, 11)

    assert [(step.step, step.step_time_s) for step in records_of(log, TrainingStep)] == [
        (7, None),
        (9, 4.0),
        (11, 4.0),
    ]
