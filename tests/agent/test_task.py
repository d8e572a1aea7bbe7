from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from agent.support import Scripted, gpu_table, steps, task

from perfd.agent.collection.collector_task import HEALTH_INTERVAL_S, CollectorTask
from perfd.clock import VirtualClock
from perfd.collector import OnUnavailable
from perfd.errors import ConfigError, NothingHere, Unavailable
from perfd.model import CollectorHealth, Record, SampleTable, Scope, TrainingStep


def health(records: Sequence[Record]) -> list[CollectorHealth]:
    return [record for record in records if isinstance(record, CollectorHealth)]


def broken() -> list[Record]:
    raise ZeroDivisionError("it broke")


def test_a_run_returns_the_records_and_the_health() -> None:
    (step,) = steps(1)
    found = task(lambda: [step]).run_once(0.0)
    assert found[0] == step
    assert [(one.collector, one.success) for one in health(found)] == [("scripted", True)]


def test_the_duration_is_measured_on_the_monotonic_clock() -> None:
    clock = VirtualClock(start_unix_ns=5)

    def slow() -> list[Record]:
        clock.advance(0.25)
        return []

    one = task(slow, clock=clock)
    assert health(one.run_once(0.0))[0].duration_s == 0.25
    assert one.state.duration_s == 0.25
    assert one.state.last_success_unix_ns == 250_000_005


def test_health_that_stays_the_same_is_said_every_few_seconds_only() -> None:
    one = task(list)
    said = [now for now in range(31) if health(one.run_once(float(now)))]
    assert said == [0, 10, 20, 30]
    assert HEALTH_INTERVAL_S == 10.0


def test_health_that_changes_is_said_at_once() -> None:
    results = iter([[], broken, [], []])

    def collect() -> Sequence[Record]:
        result = next(results)
        return result() if callable(result) else result

    one = task(collect)
    said = [[(h.success, h.message) for h in health(one.run_once(float(now)))] for now in range(4)]
    assert said == [[(True, "")], [(False, "it broke")], [(True, "")], []]


def test_whatever_a_collector_raises_stays_inside_and_it_runs_again() -> None:
    one = task(broken)
    assert one.run_once(0.0)
    assert one.state.success is False
    assert one.run_once(10.0)


def test_a_failure_is_logged_once_with_where_it_was_raised(caplog: pytest.LogCaptureFixture) -> None:
    one = task(broken)
    with caplog.at_level(logging.INFO, logger="perfd"):
        for now in range(50):
            one.run_once(float(now))
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info


def test_a_record_that_cannot_be_sent_is_left_out_and_named() -> None:
    short = SampleTable(scope=Scope.GPU, times_unix_ns=[1], entities=["0"], columns={"power_w": []})
    one = task(lambda: [gpu_table(300.0), short])
    records = one.run_once(0.0)
    assert [type(record) for record in records] == [SampleTable, CollectorHealth]
    assert "'power_w'" in one.state.message
    assert one.state.success is False


class Source:
    """A device that is there or not; remembers when it was asked for."""

    def __init__(self) -> None:
        self.present = False
        self.asked_s: list[float] = []
        self.now_s = 0.0
        self.opened: list[Scripted] = []

    def create(self, _options: object, _settings: object) -> Scripted:
        self.asked_s.append(self.now_s)
        if not self.present:
            raise Unavailable("There is no such device; plug one in.")
        self.opened.append(Scripted(self.collect))
        return self.opened[-1]

    def collect(self) -> list[Record]:
        if not self.present:
            raise Unavailable("The device was unplugged.")
        return steps(1)

    def run(self, one: CollectorTask, *, until_s: float) -> list[Record]:
        records: list[Record] = []
        while self.now_s < until_s:
            records.extend(one.run_once(self.now_s))
            self.now_s += 1.0
        return records


def test_a_missing_source_is_tried_again_with_backoff() -> None:
    source = Source()
    one = task(broken, create=source.create)
    source.run(one, until_s=200.0)
    assert source.asked_s == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]
    source.present = True
    records = source.run(one, until_s=260.0)
    assert any(isinstance(record, TrainingStep) for record in records)


def test_a_source_that_goes_away_is_closed_and_opened_again() -> None:
    source = Source()
    source.present = True
    one = task(broken, create=source.create)
    source.run(one, until_s=3.0)
    source.present = False
    source.run(one, until_s=5.0)
    source.present = True
    source.run(one, until_s=20.0)
    first, second = source.opened
    assert first.closed.is_set()
    assert not second.closed.is_set()
    assert one.state.success is True


def test_a_missing_source_may_be_ignored_and_is_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    one = task(broken, create=source.create, on_unavailable=OnUnavailable.IGNORE)
    with caplog.at_level(logging.INFO, logger="perfd"):
        assert source.run(one, until_s=100.0) == []
    assert source.asked_s == [0.0]
    assert one.state.finished
    assert one.state.success is None
    assert [record.levelname for record in caplog.records] == ["INFO"]


class Gpuless(Source):
    """A device that such a node never has, unless somebody builds one in."""

    def create(self, options: object, settings: object) -> Scripted:
        try:
            return super().create(options, settings)
        except Unavailable as error:
            raise NothingHere("This node has no such device.") from error


def test_what_a_node_lacks_by_nature_is_no_failure_and_is_looked_for_again() -> None:
    source = Gpuless()
    one = task(broken, create=source.create)
    assert source.run(one, until_s=50.0) == []
    assert one.state.success is None
    assert one.state.message == "This node has no such device."
    source.present = True
    records = source.run(one, until_s=120.0)
    assert [found.success for found in health(records)][:1] == [True]


def test_what_several_collectors_lack_by_nature_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    lacks: dict[str, str] = {}
    with caplog.at_level(logging.INFO, logger="perfd"):
        for name in ("nvml", "nvml_events", "ranks"):
            source = Gpuless()
            source.run(task(broken, name=name, create=source.create, lacks=lacks), until_s=200.0)
    assert [(record.levelname, record.__dict__["reason"]) for record in caplog.records] == [
        ("WARNING", "This node has no such device.")
    ]


def test_what_worked_before_fails_when_the_node_lacks_it_all_at_once() -> None:
    source = Gpuless()
    source.present = True
    one = task(broken, create=source.create)
    source.run(one, until_s=3.0)
    source.present = False
    records = source.run(one, until_s=60.0)
    assert {found.success for found in health(records)} == {False}
    assert one.state.success is False


def test_a_source_that_must_be_there_refuses_to_open_with_a_sentence() -> None:
    one = task(broken, create=Source().create, on_unavailable=OnUnavailable.ERROR)
    with pytest.raises(Unavailable, match=r"'scripted' cannot run here: There is no such device.*ignore"):
        one.open()


def test_the_operator_chooses_the_policy() -> None:
    one = task(broken, create=Source().create, on_unavailable=OnUnavailable.ERROR)
    assert one.on_unavailable is OnUnavailable.ERROR
    other = task(broken, on_unavailable=OnUnavailable.RETRY)
    assert other.on_unavailable is OnUnavailable.RETRY


def test_an_unknown_option_is_named_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"collectors\.scripted\.options.*dept"):
        task(broken, options={"dept": 3})


def test_an_interval_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"collectors\.scripted\.interval_s is 0\.01; the shortest is 0\.1"):
        task(broken, interval_s=0.01)


def test_a_collector_that_cannot_be_closed_is_closed_all_the_same() -> None:
    class Sticky(Scripted):
        def close(self) -> None:
            raise OSError("stuck")

    one = task(broken, create=lambda _options, _settings: Sticky(list))
    one.run_once(0.0)
    one.close()
    one.close()


def test_a_record_that_fails_in_an_unforeseen_way_leaves_the_collector_running() -> None:
    odd = SampleTable(scope="moon", times_unix_ns=[], entities=[], columns={})  # type: ignore[arg-type]
    results = iter([[odd], steps(1)])
    one = task(lambda: next(results))
    one.run_once(0.0)
    assert one.state.success is False
    assert steps(1)[0] in one.run_once(1.0)
