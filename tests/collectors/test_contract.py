from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from perfd_collectors import host, nvml, nvml_events, ranks

from perfd.clock import Clock, VirtualClock
from perfd.collector import Collector, CollectorSpec, Column, ColumnKind, Options, Settings
from perfd.collector_loading import load_collector
from perfd.errors import Unavailable
from perfd.model import Record, SampleTable, Scope
from perfd.testing.collector_contract import check_collector, check_replay, check_spec, check_unavailable

SPECS = [host.SPEC, nvml.SPEC, nvml_events.SPEC, ranks.SPEC]
COLUMN = Column(
    scope=Scope.NODE,
    name="fans_s",
    help="Time that the fans ran.",
    source="a fan",
    absent="There is no fan.",
    kind=ColumnKind.COUNTER,
)


def table(**changes: object) -> SampleTable:
    made = SampleTable(scope=Scope.NODE, times_unix_ns=[5], entities=[""], columns={"fans_s": [1.0]})
    return replace(made, **changes)  # type: ignore[arg-type]


class Scripted:
    """Returns what it is told to."""

    def __init__(self, collects: Callable[[], Sequence[Record]]) -> None:
        self.collect = collects
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def spec_of(collects: Callable[[], Sequence[Record]], **changes: object) -> CollectorSpec:
    def create(_options: Options, _settings: Settings) -> Collector:
        return Scripted(collects)

    made = CollectorSpec(name="fans", options=Options, create=create, columns=[COLUMN])
    return replace(made, **changes)  # type: ignore[arg-type]


def settings() -> Settings:
    return Settings(node="node0", job="job", clock=VirtualClock(10))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_what_ships_is_specified_well_and_found_by_entry_point(spec: CollectorSpec) -> None:
    check_spec(spec)
    assert load_collector(spec.name) is spec


def test_a_good_collector_passes_and_its_records_come_back() -> None:
    assert check_collector(spec_of(lambda: [table()]), settings(), collects=2) == [table(), table()]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([table(columns={"fan_s": [1.0]})], r"'fan_s' of node is not in `spec\.columns`"),
        ([table(columns={"fans_s": [1.0, 2.0]})], "one value for each row"),
        ([table(columns={"fans_s": [math.inf]})], "infinity"),
        ([table(columns={"fans_s": ["1"]})], "holds '1'"),
        ([table(entities=[])], "one entity for each row"),
        ([table(entities=["x"])], "is not an entity of node"),
        ([table(times_unix_ns=[5.5])], "nanoseconds"),
        ([table(times_unix_ns=[], entities=[], columns={})], "without rows"),
        (
            [table(times_unix_ns=[5, 5], entities=["", ""], columns={"fans_s": [1.0, 1.0]})],
            "same entity at the same instant",
        ),
        ([table(), table(columns={"fans_s": [0.5]})], "went back"),
        (["a record"], "is not a record"),
        (None, "must return a sequence"),
    ],
)
def test_records_that_break_the_contract_are_named(records: Sequence[Record], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_collector(spec_of(lambda: records), settings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Fans"}, "snake case"),
        ({"interval_s": 0.0}, "positive"),
        ({"columns": [COLUMN, COLUMN]}, "listed twice"),
        ({"columns": [replace(COLUMN, name="fans_ms")]}, "SI base unit"),
        ({"columns": [replace(COLUMN, name="fans_total")]}, "_total"),
        ({"columns": [replace(COLUMN, help="fans")]}, "sentences"),
        ({"columns": [replace(COLUMN, source="")]}, "source"),
    ],
)
def test_a_specification_that_breaks_the_contract_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_spec(spec_of(list, **changes))


def test_a_collector_that_sleeps_is_found() -> None:
    clock = VirtualClock(10)

    def sleeping() -> Sequence[Record]:
        clock.sleep(1.0)
        return []

    with pytest.raises(AssertionError, match="must not sleep"):
        check_collector(spec_of(sleeping), Settings(node="node0", job="job", clock=clock))


def refuse(sentence: str) -> Callable[[object, object], Collector]:
    def create(_options: object, _settings: object) -> Collector:
        raise Unavailable(sentence)

    return create


def test_unavailability_has_to_teach() -> None:
    taught = "There are no fans here: put the node in a colder place."
    assert check_unavailable(spec_of(list, create=refuse(taught)), settings()) == taught
    with pytest.raises(AssertionError, match="what to do"):
        check_unavailable(spec_of(list, create=refuse("No fans.")), settings())
    with pytest.raises(AssertionError, match="was created"):
        check_unavailable(spec_of(list), settings())


class Played(Scripted):
    """Says all of its rows at once, whatever the time is."""

    def __init__(self, _path: Path, settings: Settings) -> None:
        self.clock: Clock = settings.clock
        super().__init__(self._all)

    def _all(self) -> Sequence[Record]:
        return [table(times_unix_ns=[10**9])] if self.clock.unix_ns() < 10**9 else []

    def span_unix_ns(self) -> tuple[int, int] | None:
        return 100, 10**9


def test_a_replay_that_is_early_is_found() -> None:
    with pytest.raises(AssertionError, match="before its time"):
        check_replay(spec_of(list, replay={"fans": Played}), "fans", Path("fans"), settings())
