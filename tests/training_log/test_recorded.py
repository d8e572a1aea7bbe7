"""The recordings that ship: what is understood of their logs, and how they are played."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from perfd_collectors.training_log import SPEC
from perfd_collectors.training_log.replay import RecordedLog
from training_log.logs import iteration, timers

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import RecordingError
from perfd.model import EventKind, JobDescription, LogProgress, Record, StepPhases, TrainingStep
from perfd.recording import bundled
from perfd.testing.collector_contract import check_replay
from tests.support.read_logs import read_logs

SECOND_NS = 10**9
START_UNIX_S = 1_746_093_600  # 2025-05-01 10:00:00 UTC


def log_of(name: str) -> Path:
    return bundled(name) / "node0" / "stdout.log"


@pytest.mark.parametrize(
    ("name", "layout", "flops", "phases"),
    [
        ("dp4", (1, 4), 198.7e12, 10),
        ("dp4_slow2", (1, 4), 173.6e12, 10),
        ("pp2dp2", (2, 2), 181.6e12, 16),
        ("pp4_few", (4, 1), 113.2e12, 16),
    ],
)
def test_a_recording_is_understood(name: str, layout: tuple[int, int], flops: float, phases: int) -> None:
    understanding = read_logs([log_of(name)])
    said = understanding.description

    assert [step.step for step in understanding.steps] == list(range(1, 19))
    assert [step.warmup for step in understanding.steps] == [True, True] + [False] * 16
    assert understanding.steps[-1].flops_per_s_per_gpu == flops
    assert [len(understanding.phases[position].phases) for position in range(18)] == [phases] * 18
    assert [event.step for event in understanding.events if event.kind is EventKind.PROFILE] == [8, 9, 10]
    assert said is not None
    assert (said.parallel.pp, said.parallel.dp) == layout
    assert (said.framework, said.framework_version) == ("megatron-lm", "0.20.0")
    assert said.model is not None
    assert said.model.vocab_size == 32000
    assert understanding.examples == []


def test_the_first_timers_of_a_recording_are_per_step() -> None:
    understanding = read_logs([log_of("dp4")])

    for position in range(18):
        step, block = understanding.steps[position], understanding.phases[position]
        window_s, time_s = block.phases["forward-backward"].max_s, step.step_time_s
        assert window_s is not None
        assert time_s is not None
        assert 0.7 * time_s < window_s < time_s or step.step in {8, 9, 10, 11}


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Write a recording with one log; returns the log's path."""

    def write(text: str, *, start_unix_s: float | None = START_UNIX_S, times: str | None = None) -> Path:
        folder = tmp_path / "node0"
        folder.mkdir(exist_ok=True)
        path = folder / "stdout.log"
        path.write_text(text)
        if start_unix_s is not None:
            (tmp_path / "recording.json").write_text(json.dumps({"format": 1, "start_unix_s": start_unix_s}))
        if times is not None:
            path.with_name("stdout.log.times").write_text(times)
        return path

    return write


def opened(path: Path) -> tuple[RecordedLog, VirtualClock]:
    clock = VirtualClock()
    return RecordedLog(path, Settings(node="node0", job="job", clock=clock)), clock


def at(log: RecordedLog, clock: VirtualClock, unix_s: float) -> list[Record]:
    clock.advance_to_unix_ns(round(unix_s * SECOND_NS))
    return list(log.collect())


def steps_of(records: list[Record]) -> list[int]:
    return [record.step for record in records if isinstance(record, TrainingStep)]


@pytest.mark.parametrize("name", ["dp4", "dp4_slow2", "pp2dp2", "pp4_few"])
def test_a_recording_is_played_whole_and_in_time(name: str) -> None:
    path = log_of(name)
    clock = VirtualClock()

    records = check_replay(SPEC, "training-log", path, Settings(node="node0", job=name, clock=clock))

    played = [record for record in records if isinstance(record, TrainingStep)]
    assert [step.step for step in played] == list(range(1, 19))
    assert len([record for record in records if isinstance(record, StepPhases)]) == 18
    start_unix_s = json.loads((bundled(name) / "recording.json").read_text())["start_unix_s"]
    times_s = [(step.time_unix_ns or 0) / SECOND_NS - start_unix_s for step in played]
    assert times_s == sorted(times_s)
    assert 0 < times_s[0] < times_s[-1] < 120
    assert [record.job for record in records if isinstance(record, JobDescription)][-1] == name


def test_no_line_is_played_before_its_time(record: Callable[..., Path]) -> None:
    text = "start\n" + "".join(
        iteration(step, stamp=f"2025-05-01 10:00:{step:02d}") + timers({"optimizer": (step, step)})
        for step in (10, 20, 30)
    )
    log, clock = opened(record(text))

    assert log.span_unix_ns() == ((START_UNIX_S + 10) * SECOND_NS, (START_UNIX_S + 30) * SECOND_NS)
    assert at(log, clock, START_UNIX_S + 9.9) == []
    assert steps_of(at(log, clock, START_UNIX_S + 10)) == [10]
    # The block of step 10 has no time of its own: it is due at the next time that the log prints.
    assert at(log, clock, START_UNIX_S + 19) == []
    later = at(log, clock, START_UNIX_S + 40)
    assert steps_of(later) == [20, 30]
    assert [block.step for block in later if isinstance(block, StepPhases)] == [10, 20, 30]
    assert log.collect() == ()


@pytest.mark.parametrize("offset_s", [0, 9 * 3600, -(3 * 3600 + 1800), 5 * 3600 + 2700])
def test_the_zone_of_a_log_is_found_from_the_recordings_start(
    record: Callable[..., Path], offset_s: int
) -> None:
    log, clock = opened(
        record(iteration(10, stamp="2025-05-01 10:00:07"), start_unix_s=START_UNIX_S + offset_s)
    )

    (step,) = (
        entry for entry in at(log, clock, START_UNIX_S + offset_s + 60) if isinstance(entry, TrainingStep)
    )

    assert step.time_unix_ns == (START_UNIX_S + offset_s + 7) * SECOND_NS


def test_a_line_from_before_does_not_turn_time_back(record: Callable[..., Path]) -> None:
    text = (
        "[after setup] datetime: 2025-05-01 10:00:20.500000 \n"
        "[before setup] datetime: 2025-05-01 10:00:05\n" + iteration(10, stamp="2025-05-01 10:00:30")
    )
    log, clock = opened(record(text))

    assert log.span_unix_ns() == (round((START_UNIX_S + 20.5) * SECOND_NS), (START_UNIX_S + 30) * SECOND_NS)
    assert steps_of(at(log, clock, START_UNIX_S + 30)) == [10]


def test_a_date_that_is_no_clocks_is_ignored(record: Callable[..., Path]) -> None:
    text = iteration(10, stamp="2025-05-01 10:00:10") + "[2031-01-01 00:00:00] licence ends\n" + iteration(20)
    log, _ = opened(record(text))

    assert log.span_unix_ns() == ((START_UNIX_S + 10) * SECOND_NS, (START_UNIX_S + 10) * SECOND_NS)


@pytest.mark.parametrize("form", ['{{"unix_s": {0}, "offset": {1}}}\n', "{0:.6f} {1}\n"])
def test_times_beside_the_log_win(record: Callable[..., Path], form: str) -> None:
    first, second = iteration(10), iteration(20, stamp="2025-05-01 10:00:01")
    times = form.format(START_UNIX_S + 100, len(first)) + form.format(START_UNIX_S + 200, len(first + second))
    log, clock = opened(record(first + second, times=times))

    assert log.span_unix_ns() == ((START_UNIX_S + 100) * SECOND_NS, (START_UNIX_S + 200) * SECOND_NS)
    assert steps_of(at(log, clock, START_UNIX_S + 199)) == [10]
    assert steps_of(at(log, clock, START_UNIX_S + 200)) == [20]


def test_bytes_that_a_killed_recorder_left_without_a_time_come_last(
    record: Callable[..., Path],
) -> None:
    first, second = iteration(10), iteration(20)
    log, clock = opened(record(first + second, times=f"{START_UNIX_S + 1} {len(first)}\ngarbage\n"))

    assert steps_of(at(log, clock, START_UNIX_S + 2)) == [10, 20]


def test_a_log_without_any_time_is_played_at_the_start(record: Callable[..., Path]) -> None:
    log, clock = opened(record("training ...\n"))

    assert log.span_unix_ns() == (START_UNIX_S * SECOND_NS, START_UNIX_S * SECOND_NS)
    (progress,) = at(log, clock, START_UNIX_S)
    assert isinstance(progress, LogProgress)
    assert (progress.lines, progress.unrecognized_lines) == (1, 1)


def test_an_empty_log_shows_no_time(record: Callable[..., Path]) -> None:
    log, clock = opened(record("", start_unix_s=None))

    assert log.span_unix_ns() is None
    assert at(log, clock, START_UNIX_S) == []


def test_an_unfinished_last_line_is_played_without_its_last_field(record: Callable[..., Path]) -> None:
    log, clock = opened(record(iteration(10) + iteration(20)[:150]))

    records = at(log, clock, START_UNIX_S + 60)

    assert steps_of(records) == [10, 20]
    (_, cut) = (entry for entry in records if isinstance(entry, TrainingStep))
    assert (cut.step_time_s, cut.flops_per_s_per_gpu) == (2.0, None)


def test_a_missing_log_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"cannot be read"):
        opened(tmp_path / "stdout.log")


def test_a_log_can_be_closed_at_any_time(tmp_path: Path) -> None:
    shutil.copy(log_of("dp4"), tmp_path / "stdout.log")
    log, _ = opened(tmp_path / "stdout.log")

    log.close()
    log.close()

    assert log.collect() == ()
