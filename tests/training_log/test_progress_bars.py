"""Steps by progress bars, and lines whose step only the bar beside them tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.timestamps import TimeZoneGuess

from perfd.model import TrainingStep
from tests.training_log.logs import records_of

BLANK = "\r" + " " * 60 + "\r"


def bar(step: int, total: int = 90, *, about: str = "", rate: str = "2.00s/it", more: str = "") -> str:
    clock = f"{step * 2 // 60:02d}:{step * 2 % 60:02d}"
    return f"\r{about} {100 * step // total:3d}%|##   | {step}/{total} [{clock}<01:00,  {rate}{more}]"


def line(loss: float, epoch: float) -> str:
    return f"{{'loss': '{loss}', 'epoch': '{epoch}'}}\n"


def steps_of(*logs: str) -> list[TrainingStep]:
    """The steps of the logs of one job, each read whole, in this order."""
    job = new_job("default", TimeZoneGuess(0))
    parsers = []
    for log in logs:
        parser = LogParser(job)
        parser.feed(log.encode())
        parsers.append(parser)
    for parser in parsers:
        parser.finish()
    return [record for record in job.out.take(0) if isinstance(record, TrainingStep)]


ERRORS = "".join(bar(step) + (BLANK + bar(step) if step % 5 == 0 else "") for step in range(1, 21))
OUTPUT = "".join(line(10 - step / 10, step / 100) for step in range(5, 21, 5))


@pytest.mark.parametrize("logs", [(OUTPUT, ERRORS + "\n"), (ERRORS + "\n", OUTPUT)], ids=["first", "last"])
def test_a_line_in_another_file_than_the_bar_has_the_step_at_which_the_bar_was_cleared(
    logs: tuple[str, str],
) -> None:
    losses = {step.step: step.losses["loss"] for step in steps_of(*logs) if step.losses}

    # The first lines come while the bar still counts as the steps.
    assert losses.items() <= {5: 9.5, 10: 9.0, 15: 8.5, 20: 8.0}.items()
    assert len(losses) >= 3


def test_a_line_without_a_step_is_none() -> None:
    assert steps_of(OUTPUT) == []


def test_lines_that_are_far_apart_leave_the_steps_to_the_bar() -> None:
    log = ""
    for step in range(1, 91):
        log += bar(step)
        if step % 45 == 0:
            log += BLANK + line(step / 10, step / 100) + bar(step)

    steps = steps_of(log + "\n")

    assert {step.step for step in steps} == set(range(3, 91))
    assert {step.step: step.losses["loss"] for step in steps if step.losses} == {45: 4.5, 90: 9.0}
    assert all(step.step_time_s == 2.0 for step in steps if not step.losses)


@pytest.mark.parametrize(
    "about",
    ["Downloading shards:", "Map (num_proc=8):", "Tokenizing:", "Loading checkpoint shards:", "Evaluating:"],
)
def test_a_bar_of_other_work_shows_no_step(about: str) -> None:
    assert steps_of("".join(bar(step, about=about) for step in range(1, 60)) + "\n") == []


def test_a_bar_without_a_word_counts_where_it_is_slow_and_long() -> None:
    slow = "".join(bar(step) for step in range(1, 30)) + "\n"
    fast = "".join(bar(step, rate="812.31it/s") for step in range(1, 30)) + "\n"

    assert [step.step for step in steps_of(slow)][-1] == 29
    assert steps_of(fast) == []


def test_of_bars_in_bars_without_a_word_the_inner_one_counts() -> None:
    log = bar(0, 3, rate="?it/s")
    for epoch in range(3):
        log += "".join(bar(step, 40, rate="10.00it/s") for step in range(0, 41, 4))
        log += bar(epoch + 1, 3, rate="4.00s/it")

    steps = [step.step for step in steps_of(log + "\n")]

    assert steps[-1] == 120
    assert all(step % 4 == 0 for step in steps)


def test_a_bar_of_what_comes_before_training_leaves_the_steps_to_the_training_s() -> None:
    log = "".join(bar(step, 900, rate="912.00it/s") for step in range(0, 901, 100))
    log += "".join(bar(step, 60) for step in range(61))

    assert [step.step for step in steps_of(log + "\n")][-1] == 60


def test_a_bar_without_an_end_says_its_step() -> None:
    log = "".join(f"\rtrain: {step}it [00:0{step}, 2.00it/s, loss=2.5]" for step in range(1, 9)) + "\n"

    steps = steps_of(log)

    assert [step.step for step in steps] == list(range(1, 9))
    assert {(step.step_time_s, step.losses["loss"]) for step in steps} == {(0.5, 2.5)}


def test_a_bar_of_a_download_without_an_end_is_none() -> None:
    assert steps_of("".join(f"\r{n}it [00:0{n}, 2.00it/s]" for n in range(1, 5)) + "\n") == []


def test_a_loss_in_front_of_a_bar_makes_it_the_training_s() -> None:
    (step,) = steps_of(bar(7, about="loss 2.125:", rate="4.00it/s") + "\n")

    assert (step.step, step.losses) == (7, {"loss": 2.125})


def test_a_bar_of_rich_with_a_column_of_counts_says_its_step() -> None:
    log = "".join(f"Training \u2501\u2501\u2501\u2578\u2501\u2501 {n:2}/40 0:00:0{n}\n" for n in range(1, 9))
    other = log.replace("Training", "Downloading")

    assert [step.step for step in steps_of(log)] == list(range(1, 9))
    assert steps_of(other) == []


def test_a_bar_of_another_unit_is_none_of_steps() -> None:
    assert steps_of("".join(bar(step, about="train", rate="1.20MB/s") for step in range(1, 9)) + "\n") == []


def test_a_rate_below_one_and_above_are_the_same_time() -> None:
    (one,) = steps_of(bar(7, about="Training", rate="4.00it/s") + "\n")
    (other,) = steps_of(bar(7, about="Training", rate="0.25s/it") + "\n")

    assert one.step_time_s == other.step_time_s == 0.25


@pytest.mark.parametrize("first", [0, 1])
def test_a_bar_per_epoch_counts_on(first: int) -> None:
    log = "".join(
        bar(step, 10, about=f"Epoch {first + epoch}:") for epoch in range(3) for step in range(1, 11)
    )

    assert [step.step for step in steps_of(log + "\n")] == list(range(1, 31))


def test_a_bar_per_epoch_without_a_name_counts_on() -> None:
    log = "".join(bar(step, 10, more=", loss=2.5") for _ in range(3) for step in range(11))

    steps = steps_of(log + "\n")

    assert [step.step for step in steps] == list(range(1, 31))
    assert steps[0].losses == {"loss": 2.5}


def test_torchtune_says_its_step_beside_the_bar() -> None:
    log = bar(10, 40, about="1|50|Loss: 1.25:") + "\n"

    (step,) = steps_of(log)

    assert (step.step, step.losses) == (50, {"loss": 1.25})


def test_tokens_follow_from_those_seen() -> None:
    log = ""
    for step in (5, 10):
        log += bar(step) + BLANK
        log += (
            f"{{'loss': '2.5', 'num_input_tokens_seen': {step * 4096}, 'train_runtime': '{step * 2}.00'}}\n"
        )
        log += bar(step)

    last = records_of(log + "\n", TrainingStep)[-1]

    assert (last.step, last.step_time_s, last.tokens_per_s) == (10, 2.0, 2048.0)
    assert last.consumed_tokens == 40960


def test_ms_swift_says_its_step_and_a_mean_speed() -> None:
    log = "".join(
        f"{{'loss': 2.5, 'global_step/max_steps': '{step}/90', 'train_speed(iter/s)': {speed}}}\n"
        for step, speed in ((10, 0.5), (20, 0.8))
    )

    first, second = records_of(log, TrainingStep)

    assert (first.step, second.step) == (10, 20)
    # 20 s for the first ten steps, 25 s for all.
    assert second.step_time_s == pytest.approx(0.5)


def test_the_epoch_is_the_step_where_the_sizes_are_known() -> None:
    log = (
        "***** Running training *****\n  Num Epochs = 2\n  Total optimization steps = 200\n"
        "{'loss': 2.5, 'epoch': 0.1}\n{'loss': 2.4, 'epoch': 0.2}\n"
    )

    assert [step.step for step in records_of(log, TrainingStep)] == [10, 20]


RECORDING = Path(__file__).parents[1] / "fixtures/training_log/hf-trainer-5-bars-at-the-end.log"


def test_a_recorded_job_of_transformers_5_has_steps_times_and_tokens() -> None:
    steps = records_of(RECORDING.read_bytes(), TrainingStep)[1:]

    assert all(0.25 < (step.step_time_s or 0) < 0.27 for step in steps)
    assert all(2.4e5 < (step.tokens_per_s or 0) < 2.6e5 for step in steps)


def test_what_is_printed_behind_a_bar_is_read():
    """A bar leaves the cursor at its end, and so `print` continues its line."""
    job = new_job("default")
    parser = LogParser(job)
    for step in range(1, 60):
        bar = f"\rTraining: {step}%|###       | {step}/400 [00:{step:02}<05:00,  1.00it/s]"
        printed = f"iter {step}: loss 3.2000, time 1000.00ms, mfu 31.20%\n" if step % 5 == 0 else ""
        parser.feed(f"{bar}{printed}".encode())
    parser.feed(b"\n")
    parser.finish()
    lines = [one for one in job.out.take(0) if isinstance(one, TrainingStep)]
    # The first one repeats a step of the bar.
    assert [one.step for one in lines if one.mfu_ratio is not None] == list(range(10, 60, 5))
    assert parser.unrecognized_lines == 0
