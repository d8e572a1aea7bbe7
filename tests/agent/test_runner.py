from __future__ import annotations

import threading
import types
from collections.abc import Mapping, Sequence

import pytest
from agent.support import steps, task

from perfd.agent.collection.collector_runner import Runner
from perfd.clock import SystemClock, VirtualClock
from perfd.collector import OnUnavailable, Settings
from perfd.errors import Unavailable
from perfd.model import Record, TrainingStep


class Sink:
    """Keeps what it is given and lets a test wait for it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.bookmarks: dict[str, str] = {}
        self.changed = threading.Condition()

    def __call__(self, records: Sequence[Record], bookmarks: Mapping[str, str]) -> None:
        with self.changed:
            self.records.extend(records)
            self.bookmarks.update(bookmarks)
            self.changed.notify_all()

    def wait_for(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.records) >= count, 20.0)


def test_a_hanging_collector_holds_up_no_other() -> None:
    release = threading.Event()

    def hang() -> list[Record]:
        release.wait()
        return []

    sink = Sink()
    clock = SystemClock()
    hanging = task(hang, name="hanging", clock=clock, interval_s=0.1)
    lively = task(lambda: steps(1), name="lively", clock=clock, interval_s=0.1)
    runner = Runner([hanging, lively], sink, clock)
    runner.start()
    assert sink.wait_for(4)
    # On a busy machine the other one takes longer to end.
    while (left := runner.stop(0.2)) != ["hanging"]:
        assert left == ["hanging", "lively"]
    release.set()
    assert runner.stop(20.0) == []


def test_the_end_waits_for_a_first_reading_that_has_begun_and_for_what_came_during_it() -> None:
    entered, release, left = threading.Event(), threading.Event(), list[str]()
    lines = [1]

    def start_slowly() -> list[Record]:
        found, lines[:] = list(lines), []
        entered.set()
        release.wait()
        return [step for number in found for step in steps(number)]

    sink = Sink()
    clock = SystemClock()
    runner = Runner([task(start_slowly, clock=clock, interval_s=0.1)], sink, clock)
    runner.start()
    assert entered.wait(20.0)
    lines.append(2)
    end = threading.Thread(target=lambda: left.extend(runner.stop(0.0, first_within_s=60.0)))
    end.start()
    end.join(0.1)
    assert end.is_alive()
    release.set()
    end.join(20.0)
    assert left == []
    assert [record.step for record in sink.records if isinstance(record, TrainingStep)] == [1, 1, 2]


def test_a_first_reading_that_takes_too_long_and_a_later_one_hold_up_no_end() -> None:
    entered, release = threading.Event(), threading.Event()
    calls = list[int]()

    def hang(after: int) -> list[Record]:
        calls.append(1)
        if len(calls) > after:
            entered.set()
            release.wait()
        return []

    for after in (0, 1):
        calls.clear()
        entered.clear()
        clock = VirtualClock() if after == 0 else SystemClock()
        hanging = task(lambda after=after: hang(after), name="hanging", clock=clock, interval_s=0.1)
        runner = Runner([hanging], Sink(), clock)
        runner.start()
        assert entered.wait(20.0)
        if isinstance(clock, VirtualClock):
            clock.advance(60.0)
        assert runner.stop(0.0, first_within_s=60.0) == ["hanging"]
    release.set()


def test_a_collector_that_hangs_is_reported_every_few_seconds() -> None:
    entered, release = threading.Event(), threading.Event()

    def hang() -> list[Record]:
        entered.set()
        release.wait()
        return []

    clock = VirtualClock()
    runner = Runner([task(hang, clock=clock)], Sink(), clock)
    runner.start()
    assert entered.wait(20.0)
    reported = [now for now in range(40) if runner.hanging(float(now))]
    verdict = runner.hanging(100.0)[0]
    release.set()
    runner.stop(20.0)
    assert reported == [10, 20, 30]
    assert (verdict.success, verdict.duration_s) == (False, 100.0)
    assert "100 s" in verdict.message


def test_every_thread_closes_its_collector_at_the_end() -> None:
    sink = Sink()
    clock = SystemClock()
    one = task(lambda: steps(1), clock=clock, interval_s=0.1)
    runner = Runner([one], sink, clock)
    runner.start()
    assert sink.wait_for(1)
    assert runner.stop(20.0) == []


def test_a_missing_source_that_must_be_there_keeps_the_runner_from_starting() -> None:
    def create(_options: object, _settings: object) -> object:
        raise Unavailable("There is no such device; plug one in.")

    one = task(list, create=create, on_unavailable=OnUnavailable.ERROR)
    runner = Runner([one], Sink(), SystemClock())
    with pytest.raises(Unavailable, match="plug one in"):
        runner.start()
    assert runner.stop(20.0) == []


def test_a_driver_that_owns_the_time_runs_each_collector_at_its_interval() -> None:
    clock = VirtualClock()
    runs: dict[str, list[float]] = {"fast": [], "slow": []}

    def recorder(name: str) -> object:
        def collect() -> list[Record]:
            runs[name].append(clock.monotonic_s())
            return []

        return collect

    tasks = [
        task(recorder("fast"), name="fast", clock=clock, interval_s=0.5),  # type: ignore[arg-type]
        task(recorder("slow"), name="slow", clock=clock, interval_s=2.0),  # type: ignore[arg-type]
    ]
    runner = Runner(tasks, Sink(), clock)
    for _ in range(5):
        runner.run_due(clock.monotonic_s())
        clock.advance(1.0)
    assert runs == {"fast": [0.0, 1.0, 2.0, 3.0, 4.0], "slow": [0.0, 2.0, 4.0]}
    assert [one.state.missed_ticks for one in tasks] == [4, 0]


def test_two_collectors_of_one_name_both_run() -> None:
    clock = VirtualClock()
    sink = Sink()
    tasks = [task(lambda: steps(1), clock=clock), task(lambda: steps(1, first=2), clock=clock)]
    Runner(tasks, sink, clock).run_due(0.0)
    assert [record for record in sink.records if isinstance(record, TrainingStep)] == steps(2)


def test_a_stop_collects_once_more() -> None:
    clock = SystemClock()
    sink = Sink()
    words = iter([steps(1), steps(1, first=2)])
    runner = Runner([task(lambda: next(words), clock=clock, interval_s=3600.0)], sink, clock)
    runner.start()
    assert sink.wait_for(1)
    assert runner.stop(20.0) == []
    assert [record for record in sink.records if isinstance(record, TrainingStep)] == steps(2)


def test_the_last_call_is_announced() -> None:
    clock, sink, announced = SystemClock(), Sink(), []
    ending: list[threading.Event] = []

    def create(_options: object, settings: Settings) -> object:
        ending.append(settings.ending)
        return source

    def collect() -> list[Record]:
        announced.append(ending[0].is_set())
        return steps(1)

    source = types.SimpleNamespace(collect=collect, close=lambda: None)
    runner = Runner([task(list, create=create, clock=clock, interval_s=3600.0)], sink, clock)
    runner.start()
    assert sink.wait_for(1)
    assert runner.stop(20.0) == []
    assert announced == [False, True]


def test_how_far_a_collector_has_read_comes_with_its_records() -> None:
    clock, sink = VirtualClock(), Sink()
    one = task(lambda: steps(1), clock=clock)
    runner = Runner([one], sink, clock)
    runner.run_due(clock.monotonic_s())
    assert sink.bookmarks == {}
    one.bookmark.text = "line 7"
    clock.advance(1.0)
    runner.run_due(clock.monotonic_s())
    assert sink.bookmarks == {"scripted": "line 7"}
