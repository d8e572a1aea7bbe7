"""The collector: logs in, records out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from perfd_collectors.training_log import SPEC, TrainingLogOptions
from perfd_collectors.training_log.collector import TrainingLogCollector
from perfd_collectors.training_log.log_sources import StdinSource
from training_log.logs import dump, iteration, records_of, timers

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.collector_loading import load_collector
from perfd.config import CollectorConfig
from perfd.errors import ConfigError
from perfd.model import Event, JobDescription, LogProgress, Record, StepPhases, TrainingStep
from perfd.printed_output import PrintedOutput
from perfd.testing.collector_contract import check_collector, check_spec, check_unavailable

NOW_NS = 1_746_093_600 * 10**9  # 2025-05-01 10:00:00 UTC


@pytest.fixture
def settings() -> Settings:
    return Settings(node="node0", job="job", clock=VirtualClock(NOW_NS))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_the_specification_is_sound_and_installed() -> None:
    check_spec(SPEC)
    assert load_collector("training_log") is SPEC
    assert CollectorConfig().options == {}


def test_a_log_is_collected_as_it_grows(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "train.log"
    steps = iter((10, 20, 30))
    append(log, dump())

    records = check_collector(
        SPEC,
        settings,
        options=TrainingLogOptions(paths=(str(log),)),
        collects=5,
        between=lambda: (
            append(log, iteration(step) + timers({"optimizer": (1, 2)}))
            if (step := next(steps, None))
            else None
        ),
    )

    assert [record.step for record in records if isinstance(record, TrainingStep)] == [10, 20, 30]
    assert [record.step for record in records if isinstance(record, StepPhases)] == [10, 20]
    (said,) = {record.parallel.world_size for record in records if isinstance(record, JobDescription)}
    assert said == 4
    progress = [record for record in records if isinstance(record, LogProgress)]
    assert progress[-1].read_bytes == log.stat().st_size
    assert progress[-1].stream == str(log)


def test_the_last_block_does_not_wait_for_a_next_line(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "train.log"
    append(log, iteration(10) + timers({"optimizer": (1, 2)}))

    records = check_collector(SPEC, settings, options=TrainingLogOptions(paths=(str(log),)), collects=4)

    assert [record.step for record in records if isinstance(record, StepPhases)] == [10]


def test_standard_input_is_finished_when_it_ends(settings: Settings) -> None:
    reading, writing = os.pipe()
    os.write(writing, (iteration(10) + timers({"optimizer": (1, 2)}) + iteration(20)[:-1]).encode())
    os.close(writing)
    collector = TrainingLogCollector([StdinSource(reading)], settings)

    records = collector.collect()

    collector.close()
    os.close(reading)
    assert [record.step for record in records if isinstance(record, TrainingStep)] == [10, 20]
    assert [record.step for record in records if isinstance(record, StepPhases)] == [10]


def test_a_silent_log_keeps_the_time_of_its_last_line(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "train.log"
    append(log, iteration(10))

    records = check_collector(SPEC, settings, options=TrainingLogOptions(paths=(str(log),)), collects=3)

    times = [record.last_line_unix_ns for record in records if isinstance(record, LogProgress)]
    assert times == [NOW_NS] * 3


def test_an_iteration_that_several_ranks_print_counts_once(tmp_path: Path, settings: Settings) -> None:
    for rank in range(4):
        append(tmp_path / f"rank{rank}.log", iteration(10) + iteration(20))

    records = check_collector(SPEC, settings, options=TrainingLogOptions(paths=(str(tmp_path / "*.log"),)))

    assert [record.step for record in records if isinstance(record, TrainingStep)] == [10, 20]


def test_what_one_ranks_log_says_serves_the_others(tmp_path: Path, settings: Settings) -> None:
    append(tmp_path / "rank0.log", dump())
    options = TrainingLogOptions(paths=(str(tmp_path / "*.log"),))

    records = check_collector(
        SPEC,
        settings,
        options=options,
        collects=2,
        between=lambda: append(tmp_path / "rank3.log", iteration(10, ms=1000.0)),
    )

    (step,) = {record.tokens_per_s for record in records if isinstance(record, TrainingStep)}
    assert step == 64 * 2048


def test_the_time_of_a_line_is_the_printed_one_when_it_is_fresh(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "train.log"
    append(log, iteration(10, stamp="2025-05-01 12:59:58"))
    os.utime(log, ns=(NOW_NS, NOW_NS))

    records = check_collector(SPEC, settings, options=TrainingLogOptions(paths=(str(log),)), collects=1)

    (step,) = (record for record in records if isinstance(record, TrainingStep))
    assert step.time_unix_ns == NOW_NS - 2 * 10**9, "the log's clock is three hours ahead of UTC"


def test_a_log_from_before_is_dated_by_the_files_own_time(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "train.log"
    append(log, iteration(10, stamp="2025-05-01 07:00:00") + iteration(20, stamp="2025-05-01 07:10:00"))
    written_ns = NOW_NS - (2 * 3600 + 50 * 60 - 1) * 10**9
    os.utime(log, ns=(written_ns, written_ns))

    records = check_collector(SPEC, settings, options=TrainingLogOptions(paths=(str(log),)), collects=1)

    times = [record.time_unix_ns for record in records if isinstance(record, TrainingStep)]
    assert times == [written_ns - 601 * 10**9, written_ns]


def test_a_line_that_may_be_old_has_the_time_of_reading(settings: Settings) -> None:
    reading, writing = os.pipe()
    os.write(writing, iteration(10, stamp="2025-05-01 09:54:30").encode())
    collector = TrainingLogCollector([StdinSource(reading)], settings)

    (step,) = (record for record in collector.collect() if isinstance(record, TrainingStep))

    os.close(reading)
    os.close(writing)
    assert step.time_unix_ns == NOW_NS


def loss(step: int) -> bytes:
    return b"step %d loss 2.5\n" % step


def captured(settings: Settings, *pieces: tuple[float, bytes], collects: int = 1) -> list[Record]:
    """What is collected of a job's output that was printed so many seconds before."""
    printed = PrintedOutput()
    for before_s, data in pieces:
        printed.add(data, NOW_NS - round(before_s * 1e9))
    return list(check_collector(SPEC, dataclasses.replace(settings, printed=printed), collects=collects))


def times_s(records: Sequence[Record]) -> list[float]:
    """When steps were, in seconds before now."""
    return [(NOW_NS - record.time_unix_ns) / 1e9 for record in records if isinstance(record, TrainingStep)]


def exact(records: Sequence[Record]) -> list[bool]:
    return [record.times_are_exact for record in records if isinstance(record, LogProgress)]


def test_lines_of_captured_output_have_the_time_at_which_they_were_printed(settings: Settings) -> None:
    records = captured(settings, (60.0, loss(10)), (0.4, loss(20) + loss(30)), (0.1, loss(40)))
    assert times_s(records) == pytest.approx([60.0, 0.4, 0.4, 0.1])
    assert exact(records) == [True]


def test_a_time_printed_without_a_fraction_is_completed_by_when_its_line_came(settings: Settings) -> None:
    printed_and_came_s = {  # before now
        (":58", 1.3): 1.3,
        (":58", 0.6): 1.0,  # The next second began before it came.
        (":58", 0.4): 2.0,  # It was held back, nobody knows for how long.
        (":59", 1.1): 1.0,  # Its clock is ahead.
        (":40.500", 0.1): 19.5,
    }
    lines = [
        (before_s, iteration(10 * at, stamp=f"2025-05-01 09:59{printed}").encode())
        for at, (printed, before_s) in enumerate(printed_and_came_s, 1)
    ]
    assert times_s(captured(settings, *lines)) == pytest.approx(list(printed_and_came_s.values()))


def test_a_line_of_a_file_has_the_files_time_where_its_clock_agrees(
    tmp_path: Path, settings: Settings
) -> None:
    log = tmp_path / "train.log"
    offsets_s = iter((-0.5, 0.5, -60.0))

    def write(step: int, offset_s: float) -> None:
        append(log, loss(step).decode())
        at_ns = settings.clock.unix_ns() + round(offset_s * 1e9)
        os.utime(log, ns=(at_ns, at_ns))

    write(1, -0.25)
    steps = iter((2, 3, 4))
    records = check_collector(
        SPEC,
        settings,
        options=TrainingLogOptions(paths=(str(log),)),
        collects=4,
        between=lambda: write(step, next(offsets_s)) if (step := next(steps, None)) else None,
    )
    read_s = [-SPEC.interval_s * at for at in range(4)]
    assert times_s(records) == pytest.approx([0.25, read_s[1] + 0.5, read_s[2], read_s[3]])
    assert exact(records) == [True, True, False, False]


def test_reading_can_begin_at_the_end(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "train.log"
    append(log, iteration(10))
    late, block = timers({"optimizer": (10, 10)}), timers({"optimizer": (20, 20)})
    pieces = iter((late, iteration(20), block + iteration(30)))

    records = check_collector(
        SPEC,
        settings,
        options=TrainingLogOptions(paths=(str(log),), from_start=False),
        collects=5,
        between=lambda: append(log, next(pieces, "")),
    )

    assert [record.step for record in records if isinstance(record, TrainingStep)] == [20, 30]
    blocks = [record for record in records if isinstance(record, StepPhases)]
    assert [(block.step, block.phases["optimizer"].max_s) for block in blocks] == [(20, 0.02)]


def test_the_line_that_is_being_written_when_reading_begins_is_left_out(
    tmp_path: Path, settings: Settings
) -> None:
    log = tmp_path / "train.log"
    append(log, iteration(10)[:50])
    pieces = iter((iteration(10)[50:] + iteration(20),))

    records = check_collector(
        SPEC,
        settings,
        options=TrainingLogOptions(paths=(str(log),), from_start=False),
        between=lambda: append(log, next(pieces, "")),
    )

    assert [record.step for record in records if isinstance(record, TrainingStep)] == [20]


def test_captured_output_is_collected_to_its_last_line(settings: Settings) -> None:
    printed = PrintedOutput()
    whole, cut = iteration(10).encode(), iteration(20).encode()
    printed.add(whole + cut[:100], NOW_NS)
    collector = SPEC.create(TrainingLogOptions(), dataclasses.replace(settings, printed=printed))
    records = [*collector.collect()]
    printed.add(cut[100:-1], NOW_NS)
    assert not printed.end(NOW_NS, 0.0)
    records += collector.collect()
    collector.close()

    assert [record.step for record in records if isinstance(record, TrainingStep)] == [10, 20]


def test_a_hint_limits_what_is_looked_for(tmp_path: Path, settings: Settings) -> None:
    log = tmp_path / "train.log"
    append(log, iteration(10))

    records = check_collector(
        SPEC, settings, options=TrainingLogOptions(paths=(str(log),), framework="torchtitan"), collects=1
    )

    assert [record for record in records if isinstance(record, TrainingStep)] == []


def test_a_torchrun_tree_is_followed(tmp_path: Path, settings: Settings) -> None:
    for rank in range(2):
        folder = tmp_path / "run_1" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(iteration(10) if rank else dump())

    records = check_collector(SPEC, settings, options=TrainingLogOptions(log_dir=str(tmp_path)))

    assert [record.step for record in records if isinstance(record, TrainingStep)] == [10]
    assert {record.stream for record in records if isinstance(record, LogProgress)} == {
        "0/stdout.log",
        "1/stdout.log",
    }


def test_without_a_log_it_says_how_to_name_one(settings: Settings) -> None:
    assert "paths" in check_unavailable(SPEC, settings)


def test_an_unknown_framework_is_refused_with_its_path(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"training_log\.options\.framework.*'jax'"):
        SPEC.create(TrainingLogOptions(stdin=True, framework="jax"), settings)


def test_thousands_of_failing_ranks_give_a_bounded_number_of_events() -> None:
    text = "".join(f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory.\n" for rank in range(5000))

    assert len(records_of(text, Event)) == 200
