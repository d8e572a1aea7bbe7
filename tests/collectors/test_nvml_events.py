from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from perfd_collectors.nvml_events import (
    SPEC,
    Cause,
    NvmlEventsCollector,
    NvmlEventsOptions,
    describe,
    load_xids,
)
from perfd_collectors.nvml_events.collector import MAX_EVENTS_PER_COLLECT

from perfd.clock import VirtualClock
from perfd.collector import CollectorSpec, Settings
from perfd.errors import Unavailable
from perfd.model import Event, EventKind, Record
from perfd.testing.collector_contract import check_collector, check_unavailable
from tests.support.fake_node import FakeNode
from tests.support.fake_nvml import FakeGpu, FakeNvml

NOW_NS = 1_700_000_000 * 10**9


def settings() -> Settings:
    return Settings(node="node0", job="job", clock=VirtualClock(NOW_NS))


def collector_of(fake: FakeNvml) -> NvmlEventsCollector:
    return NvmlEventsCollector(fake, NvmlEventsOptions(), settings())


def spec_of(fake: FakeNvml) -> CollectorSpec:
    return replace(SPEC, create=lambda options, settings: NvmlEventsCollector(fake, options, settings))


def only_event(records: list[Record]) -> Event:
    (event,) = records
    assert isinstance(event, Event)
    return event


def test_the_collector_keeps_the_contract() -> None:
    fake = FakeNvml([FakeGpu(), FakeGpu()])
    records = check_collector(spec_of(fake), settings(), between=lambda: fake.emit(1, 79))
    assert [event.code for event in records if isinstance(event, Event)] == [79, 79]
    assert fake.initialised == 0
    assert fake.calls["nvmlEventSetFree"] == 1


def test_nothing_that_happens_is_no_event() -> None:
    assert list(collector_of(FakeNvml([FakeGpu()])).collect()) == []


def test_an_xid_becomes_an_event_of_its_gpu() -> None:
    fake = FakeNvml([FakeGpu(), FakeGpu(), FakeGpu()])
    collector = collector_of(fake)
    fake.emit(2, 79)
    event = only_event(list(collector.collect()))
    assert event.kind is EventKind.HARDWARE_ERROR
    assert (event.gpu, event.code, event.time_unix_ns) == (2, 79, NOW_NS)
    assert "fell off the bus" in event.message
    assert event.values == {"application_error": 0.0}


def test_all_events_that_wait_come_at_once_and_in_order_up_to_a_bound() -> None:
    fake = FakeNvml([FakeGpu()])
    collector = collector_of(fake)
    for _ in range(MAX_EVENTS_PER_COLLECT + 5):
        fake.emit(0, 31)
    assert len(collector.collect()) == MAX_EVENTS_PER_COLLECT
    assert len(collector.collect()) == 5


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_errors_of_the_application_are_marked_as_such(xid: int) -> None:
    fake = FakeNvml([FakeGpu()])
    collector = collector_of(fake)
    fake.emit(0, xid)
    assert only_event(list(collector.collect())).values == {"application_error": 1.0}


@pytest.mark.parametrize("xid", [48, 62, 63, 64, 74, 79, 92, 94, 95, 140])
def test_errors_of_the_hardware_are_not_the_applications(xid: int) -> None:
    assert load_xids()[xid].cause is Cause.HARDWARE


@pytest.mark.parametrize(("xid", "words"), [(999, "without a number"), (12345, "XID 12345: see https://")])
def test_an_unknown_xid_is_reported_as_it_is(xid: int, words: str) -> None:
    fake = FakeNvml([FakeGpu()])
    collector = collector_of(fake)
    fake.emit(0, xid)
    event = only_event(list(collector.collect()))
    assert words in event.message
    assert event.code == xid
    assert event.values == {}


def test_every_xid_of_the_table_makes_a_sentence() -> None:
    table = load_xids()
    assert len(table) > 40
    for number in table:
        sentence = describe(number, table)
        assert sentence.startswith(f"XID {number}: ")
        assert sentence.endswith(".")


def test_a_double_bit_error_is_an_event_without_an_xid() -> None:
    fake = FakeNvml([FakeGpu()])
    collector = collector_of(fake)
    fake.emit(0, 0, kind=pynvml.nvmlEventTypeDoubleBitEccError)
    event = only_event(list(collector.collect()))
    assert event.code is None
    assert "Double-bit" in event.message


def test_single_bit_errors_and_changes_of_clocks_are_not_asked_for() -> None:
    fake = FakeNvml([FakeGpu()])
    collector = collector_of(fake)
    fake.emit(0, 0, kind=pynvml.nvmlEventTypeSingleBitEccError)
    fake.emit(0, 0, kind=pynvml.nvmlEventTypeClock)
    assert list(collector.collect()) == []


def test_a_gpu_that_supports_only_xids_is_watched_for_them() -> None:
    fake = FakeNvml([FakeGpu(supported_events=0x8)])
    collector = collector_of(fake)
    fake.emit(0, 79)
    assert len(collector.collect()) == 1


def test_a_lost_gpu_ends_the_source_after_what_came_before() -> None:
    fake = FakeNvml([FakeGpu(), FakeGpu()])
    collector = collector_of(fake)
    fake.emit(0, 79)
    fake.gpus[0].lost = True
    assert only_event(list(collector.collect())).code == 79
    with pytest.raises(Unavailable, match="A GPU was lost"):
        collector.collect()
    collector.close()
    collector.close()
    assert fake.initialised == 0


def test_after_a_lost_gpu_the_others_can_be_watched_again() -> None:
    fake = FakeNvml([FakeGpu(lost=True), FakeGpu()])
    collector = collector_of(fake)
    fake.emit(1, 48)
    assert only_event(list(collector.collect())).gpu == 1


def test_a_gpu_that_this_user_may_not_watch_leaves_the_others() -> None:
    denied = FakeGpu(errors={"nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NO_PERMISSION})
    fake = FakeNvml([denied, FakeGpu()])
    collector = collector_of(fake)
    fake.emit(1, 48)
    assert len(collector.collect()) == 1


def test_when_no_gpu_may_be_watched_it_says_what_it_needs() -> None:
    denied = FakeGpu(errors={"nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NO_PERMISSION})
    fake = FakeNvml([denied])
    assert "MIG" in check_unavailable(spec_of(fake), settings())
    assert fake.initialised == 0


def test_a_gpu_that_has_no_events_is_unavailable() -> None:
    assert "kernel log" in check_unavailable(spec_of(FakeNvml([FakeGpu(supported_events=0)])), settings())


def test_a_missing_driver_is_unavailable(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.put_in_gpu()
    fake = FakeNvml(init_code=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert "libnvidia-ml.so.1" in check_unavailable(spec_of(fake), replace(settings(), sys=node.sys))
