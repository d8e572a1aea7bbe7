"""Lines of a loop's own that say their step, as text and as JSON."""

from __future__ import annotations

import pytest

from perfd.model import Event, EventKind, TrainingStep
from tests.training_log.logs import iteration, records_of


@pytest.mark.parametrize(
    ("line", "step", "time_s"),
    [
        ("iter 10: loss 3.2000, time 120.11ms, mfu 45.10%", 10, 0.12011),
        ("step 00010/21400 (0.05%) | loss: 10.8 | lrm: 1.00 | dt: 2540.00ms | tok/sec: 206,396", 10, 2.54),
        ("Epoch 1 | iter 12 step 3 | loss train: 10.9, val: n/a | iter time: 380.00 ms (step)", 3, 1.52),
        ("step 10 loss 3.2 182.6 ms/step 1,234 tok/s", 10, 0.1826),
        ("[08:32:55] train INFO: global_step=10 loss=3.2 step_time=0.5", 10, 0.5),
        ("Step: 10/100, Loss: 3.2, 2.5 it/s", 10, 0.4),
        ("INFO:tensorflow:Step 10 per-step time 0.450s loss=3.2", 10, 0.45),
        ("epoch: [1/5], global_step: 10, loss: 3.2, avg_reader_cost: 0.1 s, avg_batch_cost: 0.5 s", 10, 0.5),
        ('{"step": 10, "loss": 3.2, "step_time_s": 0.5}', 10, 0.5),
        ("[0010]: iter 123.45 ms, fps 1036.86", 10, 0.12345),
        ("Step 10 | Time: 0.60s | Loss: 3.2 | Grad. Norm: 2.1 | Peak Mem.: 5.2/23.7 GiB (22.1%)", 10, 0.6),
        ("[10:00:05] - [step:         10] loss:  3.2e+00, time/iteration:  4.21e+01 ms", 10, 0.0421),
        ("2024 INFO -- tflops=188.3 step=10 loss=3.2 batch_time=3.8", 10, 3.8),
        ("step 10 loss tensor(3.2, device='cuda:0', grad_fn=<MeanBackward0>) 450 ms/step", 10, 0.45),
        ("Step 9,250/20,000 | loss 3.2 | 412.3 ms/step", 9250, 0.4123),
        ("iteration 1,234,567: loss = 3.2, 0.5 s/iter", 1234567, 0.5),
        ("loss=3.2 lr=0.1 step=10 step_time=0.5", 10, 0.5),
        ("GlobalStep: 10  TrainLoss: 3.2  StepTime: 0.5", 10, 0.5),
        ("it 10: train loss 3.2, 0.105 s/it", 10, 0.105),
        ("update 10 | loss 3.2 | 105.0 ms/update", 10, 0.105),
        ("Step... (10/1000 | Loss: 3.2, 2.5 it/s)", 10, 0.4),
        ("[00:03:05] Iter 10 | Loss: 3.2 | Time per iter: 0:01:00.412", 10, 60.412),
        ("Schritt 10/60 - Verlust: 3,25 - Schrittzeit: 0,105 s", 10, 0.105),
        ("第 10 步，损失：3.2，单步耗时：0.105秒", 10, 0.105),  # noqa: RUF001
        ("【训练】步数：10，损失：3.2，速度：2.5步/秒", 10, 0.4),  # noqa: RUF001
        ("ステップ 10/60 損失=3.2 ステップ時間=105ミリ秒", 10, 0.105),
        ('{"event": "train", "metrics": {"step": 10, "loss": 3.2, "step_time_s": 0.5}}', 10, 0.5),
        ('2026 | INFO | train_inner | {"loss": "3.2", "ups": "2", "num_updates": "10"}', 10, 0.5),
        ("2026 - mmengine - INFO - Epoch(train)    [1][  10/7330]  lr: 1e-3  time: 0.5  loss: 3.2", 10, 0.5),
        ('{"it": 10, "dt": 0.5}', 10, 0.5),
        ('{"iter_num": 10, "tok_per_sec": 1000, "dt": 0.5}', 10, 0.5),
        ("{'loss': 3.2, 'it': 10, 'dt': 0.5}", 10, 0.5),
        ('{"msg": "train step done", "it": 10, "dt": 0.5}', 10, 0.5),
        ('{"message": "training", "step": 10, "loss": 3.2, "step_time_s": 0.5}', 10, 0.5),
        ('{"text": "x", "record": {"message": "step 10: loss 3.2, 0.5 s/step", "time": {}}}', 10, 0.5),
        ("{'step': 10, 'loss': '3.2', 'time': {'forward': 0.2}, 'step_time': '0.5'}", 10, 0.5),
        ("[Speed] step 10 | loss 3.2 | train_time: 9000ms | step time: 450 ms", 10, 0.45),
    ],
)
def test_a_line_with_a_step_and_a_time_is_a_step(line: str, step: int, time_s: float) -> None:
    (found,) = records_of(f"{line}\n", TrainingStep)

    assert (found.step, found.step_time_s) == (step, pytest.approx(time_s))


@pytest.mark.parametrize(
    ("line", "tokens_per_s"),
    [
        ("[rank 0] Step: 10 | Loss: 3.2 | Tokens/s: 212.34K | Tokens/s/GPU: 26.5K | MFU: 38.1%", 212_340.0),
        ("step 10 | loss 3.2 | tok/sec: 1.5M", 1_500_000.0),
        ("step 10 | loss 3.2 | tok/sec: 950", 950.0),
    ],
)
def test_a_rate_that_is_printed_short_has_its_thousands(line: str, tokens_per_s: float) -> None:
    (found,) = records_of(f"{line}\n", TrainingStep)

    assert found.tokens_per_s == tokens_per_s


def test_a_batch_size_that_is_printed_short_may_be_tokens_and_is_left_out() -> None:
    (found,) = records_of("Step: 10 | Loss: 3.2 | Global batch size: 131.07K\n", TrainingStep)

    assert found.global_batch_size is None


@pytest.mark.parametrize(
    "line",
    [
        "Saving checkpoint at step 20, loss 3.1",
        "Resuming from step 20 with loss 3.1",
        "warmup step 3 loss 3.1",
        "max steps 1000, loss scale 65536",
        "step 20 begins",
        "loss 3.1 after 20 steps",
        "Step 7: reading shard, retry time 0.5 s",
        "Lowest loss 3.1 at step 20",
        "Step 8: uploading loss_curve.png 1.5 s",
        "New loss: 3.1, seen at step 20",
        "Overflow, new loss scale: 65536.0, step 20",
        "footstep 12 loss 3.1",
        "step 1.5 loss 3.1",
        '{"step": true, "loss": 3.1}',
        '{"epoch": 2, "loss": 3.1}',
        '{"it": 20}',
        '{"it": 20, "msg": "next file"}',
        '{"it": "a", "dt": 0.5}',
        '{"step": 20, "message": "loss 3.1"}',
        "iteration 20: lossless 4.5 GB",
        "[0010]: iter 12 of 20 took 3.0 ms",
        "Step 20 | Time: 0.60s | Reward: 0.3 | Throughput: 4515.5 tokens/s | Async Level: 1",
        "step: 20\tloss 3.1\t0.5 s/step",
        "Processing step 20 of the pipeline: loss of precision 3.1 possible",
        "In step 20, loss weights: 3.1, 0.5",
        "step 1.000.000 loss 3.1",
        "step 20,5 loss 3.1",
        "评估 步数: 20, 损失: 3.1",
        "Validierung: Schritt 20, Verlust: 3,1",
        '{"val": {"loss": 3.1}, "step": 20}',
    ],
)
def test_a_line_that_only_looks_like_a_step_is_none(line: str) -> None:
    found = records_of(f"{line}\n", TrainingStep)

    assert not any(step.step_time_s or "loss" in "".join(step.losses) for step in found), found


@pytest.mark.parametrize(
    "loss", ["np.float64(3.25)", "tensor(3.25)", "tensor([3.25])", "array(3.25, dtype=float32)"]
)
def test_a_loss_printed_as_an_object_is_read(loss: str) -> None:
    for line in (f"step 10 loss {loss} 450 ms/step", f"{{'step': 10, 'loss': {loss}}}"):
        (step,) = records_of(f"{line}\n", TrainingStep)
        assert step.losses == {"loss": 3.25}, line


def test_frames_per_second_of_a_loop_timed_by_hand_are_samples() -> None:
    (found,) = records_of(
        "[0010]: iter 123.45 ms, fps 1036.86\nAverage: iter 1.00 ms, fps 2.00\n", TrainingStep
    )

    assert (found.step, found.samples_per_s) == (10, 1036.86)


def test_an_evaluation_is_an_event() -> None:
    log = "step 250: train loss 3.1, val loss 3.2\n"

    assert records_of(log, TrainingStep) == []
    assert [(event.kind, event.step) for event in records_of(log, Event)] == [(EventKind.EVALUATION, 250)]


def test_what_is_not_a_number_gives_its_name_to_no_other() -> None:
    (step,) = records_of("step 10 loss nan time 120.0ms\n", TrainingStep)

    assert (step.losses, step.step_time_s) == ({}, 0.12)


def test_lines_with_a_time_count_before_those_without() -> None:
    log = "".join(f"step {n} loss 3.5\nstep {n} | loss 3.5 | 100.0 ms/step\n" for n in (10, 20, 30))

    steps = records_of(log, TrainingStep)

    assert [step.step for step in steps] == [10, 20, 30]
    assert [step.step_time_s for step in steps][1:] == [0.1, 0.1]


def test_lines_beside_those_of_a_known_trainer_do_not_count() -> None:
    log = iteration(10) + "step 11 loss 3.5 100.0 ms/step\n" + iteration(20)

    assert [step.step for step in records_of(log, TrainingStep)] == [10, 20]


def test_llama_factory_times_its_steps_in_whole_seconds() -> None:
    log = "".join(
        f'{{"current_steps": {step}, "total_steps": 99, "loss": 1.5, "elapsed_time": "0:{clock}"}}\n'
        for step, clock in ((10, "00:10"), (20, "00:20"), (30, "00:31"), (40, "00:41"), (50, "00:52"))
    )

    times = {step.step: step.step_time_s for step in records_of(log, TrainingStep)}

    # From step 10 to 30 in 21 s, and on to 50 in 21 s: less would tell the time of no step.
    assert {step: time_s for step, time_s in times.items() if time_s} == {30: 1.05, 50: 1.05}


def test_maxtext_shows_rates_of_a_device_and_tokens_of_all() -> None:
    log = (
        "Num_devices: 4, shape (1, 4)\ncompleted step: 7, seconds: 0.250, TFLOP/s/device: 204.5, "
        "Tokens/s/device: 32768.000, total_weights: 32768, loss: 10.625\n"
    )

    (step,) = records_of(log, TrainingStep)

    assert (step.step, step.step_time_s, step.flops_per_s_per_gpu) == (7, 0.25, 204.5e12)
    assert (step.tokens_per_s, step.losses) == (131072.0, {"loss": 10.625})


@pytest.mark.parametrize(
    "line",
    [
        "{'step': 10, 'loss': 3.25, 'lr': 0.001}",
        "{'loss': 3.25, 'grad_norm': 1.0, 'global_step': 10}",
        '{"loss": 3.25, "iteration": 10}',
    ],
)
def test_a_dict_with_its_own_step_is_a_step(line: str) -> None:
    (step,) = records_of(f"{line}\n", TrainingStep)
    assert (step.step, step.losses["loss"]) == (10, 3.25)


@pytest.mark.parametrize(
    "line",
    ["{'step': 10.5, 'loss': 3.0}", "{'step': -1, 'loss': 3.0}", "{'step': 10}", "{'stepx': 1, 'loss': 3.0}"],
)
def test_a_dict_without_a_whole_step_or_a_loss_is_none(line: str) -> None:
    assert records_of(f"{line}\n", TrainingStep) == []


def test_a_number_with_a_decimal_comma_is_no_thousand() -> None:
    (step,) = records_of("Schritt 10: Verlust 2,345\n", TrainingStep)

    assert step.losses == {"loss": 2.345}


@pytest.mark.parametrize(
    "heading", ["Epoch {}", "===== Epoch {}/3 =====", "2026-01-01 INFO - Starting epoch {}..."]
)
@pytest.mark.parametrize("line", ["batch {} loss 3.2", "step {}/30 loss 3.2", "  iter {}: loss 3.2"])
def test_steps_that_begin_anew_below_each_heading_of_an_epoch_count_on(heading: str, line: str) -> None:
    log = "".join(
        "\n".join([heading.format(epoch), *(line.format(step) for step in (10, 20, 30)), ""])
        for epoch in (1, 2, 3)
    )

    assert [step.step for step in records_of(log, TrainingStep)] == list(range(10, 91, 10))


def test_steps_that_count_on_below_headings_keep_their_numbers() -> None:
    log = "".join(
        f"Epoch {epoch}\n" + "".join(f"step {20 * epoch + step} loss 3.2\n" for step in (10, 20))
        for epoch in range(3)
    )

    assert [step.step for step in records_of(log, TrainingStep)] == [10, 20, 30, 40, 50, 60]


def test_the_last_line_of_another_rank_after_a_heading_is_none_of_the_next_epoch() -> None:
    lines = [
        "Epoch 1",
        "step 10 loss 3.2",
        "step 20 loss 3.2",
        "Epoch 2",
        "step 20 loss 3.2",
        "step 10 loss 3.2",
    ]

    assert [step.step for step in records_of("\n".join([*lines, ""]), TrainingStep)] == [10, 20, 30]


def test_headings_of_ranks_with_a_prefix_are_their_own() -> None:
    ranks = [
        [f"[default{rank}]:{line}" for line in ("Epoch 1", "step 10 loss 3.2", "Epoch 2", "step 10 loss 3.2")]
        for rank in range(2)
    ]
    late = [ranks[0][0], ranks[0][1], ranks[0][2], ranks[1][0], ranks[1][1], *ranks[0][3:], *ranks[1][2:]]

    assert [step.step for step in records_of("\n".join([*late, ""]), TrainingStep)] == [10]


def test_lines_of_a_shorter_loop_between_the_steps_are_none() -> None:
    log = (
        "step 20 loss 3.2\n"
        + "".join(f"  step {step}/5 loss 3.2\n" for step in range(1, 6))
        + "step 40 loss 3\n"
    )

    assert [step.step for step in records_of(log, TrainingStep)] == [20, 40]


def of_open_clip(samples: int, epoch: int = 0, of: int = 65536) -> str:
    return (
        f"12:00:00 | INFO | Train Epoch: {epoch} [{samples:>5}/{of} (0%)] Data (t): 0.042"
        " Batch (t): 0.927, 2209.28/s, 276.160/s/gpu LR: 0.000011 Logit Scale: 14.286 Loss: 7.4 (7.4)\n"
    )


def test_samples_of_open_clip_are_steps_of_as_many_as_the_first_line_of_an_epoch_says():
    lines = of_open_clip(2048) + of_open_clip(22528) + of_open_clip(2048, epoch=1)

    steps = records_of(lines, TrainingStep)

    assert [(one.step, one.step_time_s, one.global_batch_size) for one in steps] == [
        (1, 0.927, 2048),
        (11, 0.927, 2048),
        (33, 0.927, 2048),
    ]


@pytest.mark.parametrize("samples", [2049, 67584])
def test_samples_of_open_clip_that_are_no_whole_steps_or_too_many_are_no_step(samples: int):
    steps = records_of(of_open_clip(2048) + of_open_clip(samples), TrainingStep)

    assert [one.step for one in steps] == [1]
