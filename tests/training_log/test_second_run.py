"""Two training runs in one process tree, whose output is one log, and ranks that only look like two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.step_order.second_run import RepeatedLines

from perfd.model import Event, EventKind, Record, TrainingStep


def read(lines: Iterable[tuple[float, int | str]], *, live: bool = True) -> list[Record]:
    """The records of steps that were printed at these times; `7/60` says how many there are."""
    job = new_job("default")
    parser = LogParser(job)
    records: list[Record] = []
    for time_s, step in lines:
        job.steps.now_s = time_s if live else None
        parser.feed(f"step {step} | loss 3.5 | 100.0 ms/step\n".encode())
        records += job.out.take(int(time_s * 1e9))
    parser.finish()
    return records + list(job.out.take(0))


def steps(records: list[Record]) -> list[int]:
    return [record.step for record in records if isinstance(record, TrainingStep)]


def events(records: list[Record]) -> list[tuple[EventKind, str]]:
    return [(record.kind, record.message) for record in records if isinstance(record, Event)]


def run(count: int, *, start_s: float = 0.0, step_s: float = 1.0) -> list[tuple[float, int]]:
    return [(start_s + step_s * n, n) for n in range(1, count + 1)]


@pytest.mark.parametrize("step_s", [0.1, 1.0, 30.0])
def test_a_run_after_another_one_begins_again(step_s: float) -> None:
    first = run(50, step_s=step_s)
    second = run(60, start_s=first[-1][0] + 20, step_s=step_s)

    records = read(first + second)

    assert steps(records) == [*range(1, 51), *range(1, 61)]
    assert events(records) == [
        (EventKind.RESTARTED, "Steps restarted at 1, after 50: a restart, or another run.")
    ]


def of_total(lines: list[tuple[float, int]], total: int) -> list[tuple[float, str]]:
    return [(time_s, f"{step}/{total}") for time_s, step in lines]


@pytest.mark.parametrize(("total", "every"), [(50, 1), (52, 10)])
def test_a_run_with_fewer_steps_begins_after_one_that_made_all_of_its_own(total: int, every: int) -> None:
    first = run(50)[every - 1 :: every]
    second = run(20, start_s=70)

    records = read([*of_total(first, total), *of_total(second, 20)])

    assert steps(records) == [*(step for _, step in first), *range(1, 21)]


def test_steps_of_a_loader_with_fewer_steps_are_none_of_the_run() -> None:
    lines = [*of_total(run(50), 60), *of_total(run(20, start_s=70), 20)]

    assert steps(read(lines)) == list(range(1, 51))


def test_it_is_not_known_of_a_file_that_was_read_at_once() -> None:
    records = read(run(50) + run(60, start_s=70), live=False)

    assert steps(records) == list(range(1, 61))
    assert events(records) == []


def test_lines_of_a_rank_that_come_all_at_once_are_no_run() -> None:
    buffered = [(60.0, step) for step in range(1, 51)]

    records = read(run(50) + buffered)

    assert (steps(records), events(records)) == (list(range(1, 51)), [])


def test_pieces_of_a_rank_s_lines_are_no_run() -> None:
    """A rank whose output is buffered prints 40 lines at a time."""
    lines = [*run(200), *((40.0 * (piece + 1), 40 * piece + n) for piece in range(5) for n in range(1, 41))]

    records = read(sorted(lines, key=lambda line: line[0]))

    assert (steps(records), events(records)) == (list(range(1, 201)), [])


def test_ranks_that_print_side_by_side_are_no_run() -> None:
    lines = sorted(line for rank in range(4) for line in run(200, start_s=0.1 * rank))

    records = read(lines)

    assert (steps(records), events(records)) == (list(range(1, 201)), [])


def test_of_two_runs_side_by_side_only_one_counts_and_a_sentence_says_so() -> None:
    lines = sorted(run(200, step_s=0.1) + run(60, step_s=0.25, start_s=0.05))

    records = read(lines)

    assert steps(records) == list(range(1, 201))
    ((kind, message),) = events(records)
    assert kind is EventKind.LOG_ERROR
    assert message.startswith("Two training runs print steps to one output")


def test_two_runs_side_by_side_with_steps_of_their_own_are_distinguished() -> None:
    resumed = [(time_s, step + 1000) for time_s, step in run(60, step_s=0.25, start_s=0.05)]

    records = read(sorted(run(200, step_s=0.1) + resumed))

    assert [kind for kind, _ in events(records)] == [EventKind.LOG_ERROR]
    # Two returns are needed to see it; then one run's steps alone count.
    assert steps(records)[20:] == list(range(steps(records)[20], 1061))


def test_a_slower_run_that_goes_on_after_the_first_has_not_begun_again() -> None:
    """Two trainings of a search over settings, each on its own GPU; few lines until the faster one ends."""
    lines = sorted(run(45, step_s=0.4) + run(45, step_s=0.9, start_s=0.05))

    records = read(lines)

    assert steps(records) == list(range(1, 46))
    ((kind, message),) = events(records)
    assert kind is EventKind.LOG_ERROR
    assert message.startswith("Two training runs print steps to one output")


def test_a_restart_from_a_checkpoint_is_no_second_run() -> None:
    log = run(50) + [(time_s + 60, step + 40) for time_s, step in run(60)]

    records = read(log)

    assert [kind for kind, _ in events(records)] in ([], [EventKind.RESTARTED])
    assert steps(records)[-1] == 100


def after_steps(interval_s: float) -> RepeatedLines[int]:
    """Eight steps were printed, the last one at 100 s."""
    repeated: RepeatedLines[int] = RepeatedLines()
    for back in range(7, -1, -1):
        repeated.new_step(100.0 - back * interval_s)
    return repeated


@pytest.mark.parametrize(("interval_s", "quiet_s"), [(0.1, 5.0), (1.0, 5.0), (4.0, 20.0)])
def test_a_run_has_begun_again_with_the_third_line_after_five_quiet_steps_and_seconds(
    interval_s: float, quiet_s: float
) -> None:
    for since_s, begun in ((quiet_s - 0.1, []), (quiet_s, [1, 2, 3])):
        repeated = after_steps(interval_s)
        times_s = (100.0 + since_s - 0.02, 100.0 + since_s - 0.01, 100.0 + since_s)
        found = [
            repeated.begin_again(step, step, now_s, behind=8) for step, now_s in enumerate(times_s, start=1)
        ]
        assert found == [[], [], begun]


@pytest.mark.parametrize(("newest", "diverge"), [(9, False), (10, True)])
def test_two_runs_print_at_once_if_repeated_steps_fall_ten_lines_behind(newest: int, diverge: bool) -> None:
    repeated = after_steps(1.0)
    for behind in [3] * 19 + [newest]:
        repeated.new_step(None)
        repeated.begin_again(1, 1, None, behind=behind)
    assert repeated.diverge is diverge


@pytest.mark.parametrize(("lines", "two_runs"), [(20, True), (21, False)])
def test_steps_that_return_twice_within_20_lines_are_of_two_runs(lines: int, two_runs: bool) -> None:
    numbers: list[int] = []
    for high, low in ((1000, 100), (1010, 200)):
        numbers += [high, *range(low, low + lines), high + 1]
    found = events(read(enumerate(numbers), live=False))
    assert any(kind is EventKind.LOG_ERROR for kind, _ in found) is two_runs


def bar(step: int) -> str:
    return f"\r 50%|#####     | {step}/4000 [00:{min(59, step // 10):02}<00:09,  9.84it/s]"


def loop(step: int) -> str:
    return f"iter {step}: loss 3.2000, time 100.00ms, mfu 31.20%\n"


def plain(step: int) -> str:
    return f"step {step} loss 2.5\n"


def read_lines(lines: Iterable[tuple[float, str]]) -> list[Record]:
    """The records of lines that were printed at these times."""
    job = new_job("default")
    parser = LogParser(job)
    records: list[Record] = []
    for time_s, line in sorted(lines):
        job.steps.now_s = time_s
        parser.feed(line.encode())
        records += job.out.take(int(time_s * 1e9))
    parser.finish()
    return records + list(job.out.take(0))


Printed = Callable[[int], str]


@pytest.mark.parametrize(
    ("counted", "other"),
    [(loop, bar), (loop, plain), (bar, plain)],
    ids=["loop-bar", "loop-plain", "bar-plain"],
)
@pytest.mark.parametrize("other_s", [0.03, 0.17, 0.25])
def test_two_runs_with_lines_of_different_formats_are_distinguished_by_their_pace(
    counted: Printed, other: Printed, other_s: float
) -> None:
    lines = [(0.1 * n, counted(n)) for n in range(1, 300)]
    records = read_lines(lines + [(other_s * n + 0.011, other(n)) for n in range(1, int(29 / other_s))])

    # The newest bar may go on.
    assert steps(records)[-1] in {298, 299}
    ((kind, message),) = events(records)
    assert kind is EventKind.LOG_ERROR
    assert message.startswith("Two training runs print steps to one output")


@pytest.mark.parametrize(
    ("counted", "other"),
    [
        ([(n, loop(n)) for n in range(1, 400)], [(n, bar(n)) for n in range(1, 400)]),
        ([(10 * n, loop(10 * n)) for n in range(1, 40)], [(n, bar(n)) for n in range(1, 400)]),
        ([(n, loop(n)) for n in range(1, 400)], [(n / 8, bar(n)) for n in range(1, 3192)]),
        ([(n, loop(n)) for n in range(1, 400)], [(n, bar(n % 37)) for n in range(1, 400)]),
        ([(n, loop(n)) for n in range(1, 400)], [(10 * n, plain(10 * n)) for n in range(1, 40)]),
        ([(n, loop(n)) for n in range(1, 400)], [(100 + n / 90, bar(n)) for n in range(1, 80)]),
    ],
    ids=["the same steps", "each tenth", "batches", "epochs", "losses", "an evaluation"],
)
def test_two_sources_of_one_run_are_one_run(
    counted: list[tuple[float, str]], other: list[tuple[float, str]]
) -> None:
    records = read_lines(counted + [(time_s + 0.01, line) for time_s, line in other])

    assert events(records) == []
    assert steps(records)
