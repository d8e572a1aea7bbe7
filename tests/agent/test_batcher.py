from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from agent.support import steps

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool.spool import Spool
from perfd.errors import RecordingError
from perfd.model import Batch, Record, SampleTable, Scope, TrainingStep
from perfd.wire import agent_messages


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, max_bytes=1 << 30)
    yield spool
    spool.close()


def batches(spool: Spool) -> list[Batch]:
    found = [
        agent_messages.decode_agent_message(stored.payload) for stored in spool.read_after(0, limit=1000)
    ]
    assert all(isinstance(batch, Batch) for batch in found)
    return found  # type: ignore[return-value]


def test_a_flush_makes_one_numbered_batch_of_what_was_added(spool: Spool) -> None:
    batcher = Batcher(spool)
    batcher.add(steps(2))
    batcher.add(steps(1, first=3))
    assert batcher.flush(77) == 1
    (batch,) = batches(spool)
    assert (batch.sequence, batch.sent_unix_ns) == (1, 77)
    assert batch.records == steps(3)


def test_a_flush_of_nothing_makes_no_batch(spool: Spool) -> None:
    assert Batcher(spool).flush(1) is None
    assert batches(spool) == []


def test_tables_of_one_sweep_travel_as_one(spool: Spool) -> None:
    batcher = Batcher(spool)
    for tick in range(3):
        for rank in range(2):
            one = {"times_unix_ns": [tick], "entities": [f"j/{rank}"], "columns": {"lag_s": [float(rank)]}}
            batcher.add([SampleTable(scope=Scope.RANK, **one)])
    batcher.flush(1)
    tables = batches(spool)[0].records
    assert [list(one.entities) for one in tables if isinstance(one, SampleTable)] == [["j/0", "j/1"]] * 3


def test_a_full_queue_drops_the_oldest_and_says_how_many(spool: Spool) -> None:
    batcher = Batcher(spool, max_pending=10)
    batcher.add(steps(14))
    batcher.flush(1)
    (batch,) = batches(spool)
    assert batch.records == steps(10, first=5)
    assert batch.dropped_records == 4
    assert batcher.dropped_records == 4


def test_what_the_spool_gave_up_is_counted_in_the_next_batch(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=200)
    batcher = Batcher(spool)
    for tick in range(20):
        batcher.add(steps(2))
        batcher.flush(tick)
    newest = batches(spool)[-1]
    assert newest.dropped_records > 0
    assert newest.dropped_records % 2 == 0
    assert batcher.dropped_records >= newest.dropped_records
    spool.close()


def test_a_batch_that_would_be_too_long_becomes_several(spool: Spool) -> None:
    long = [TrainingStep(job="x" * 1000, step=step) for step in range(5000)]
    batcher = Batcher(spool)
    batcher.add(long)
    last = batcher.flush(1)
    found = batches(spool)
    assert len(found) > 4
    assert last == found[-1].sequence
    assert [record for batch in found for record in batch.records] == long


def test_a_record_that_is_longer_than_any_message_is_dropped_and_counted(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    huge = TrainingStep(job="x" * (17 << 20), step=1)
    batcher = Batcher(spool)
    batcher.add([*steps(1), huge, *steps(1, first=2)])
    with caplog.at_level(logging.WARNING, logger="perfd"):
        batcher.flush(1)
    assert [record for batch in batches(spool) for record in batch.records] == steps(2)
    assert batcher.dropped_records == 1
    assert "TrainingStep" in str(vars(caplog.records[0]))


def test_every_tap_sees_every_record(spool: Spool) -> None:
    seen: list[Record] = []
    batcher = Batcher(spool, taps=[seen.extend, seen.extend])
    batcher.add(steps(2))
    batcher.flush(1)
    assert seen == steps(2) * 2


def test_a_tap_that_fails_is_left_out_and_the_others_go_on(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0
    seen: list[Record] = []

    def fail(_records: Sequence[Record]) -> None:
        nonlocal calls
        calls += 1
        raise RecordingError("The disk is full; make room.")

    batcher = Batcher(spool, taps=[fail, seen.extend])
    with caplog.at_level(logging.ERROR, logger="perfd"):
        for _ in range(2):
            batcher.add(steps(1))
            batcher.flush(1)
    assert calls == 1
    assert seen == steps(1) * 2
    assert len(batches(spool)) == 2
    assert len(caplog.records) == 1


def test_a_bookmark_is_stored_with_the_records_before_it_and_not_with_a_part_of_them(spool: Spool) -> None:
    batcher = Batcher(spool)
    seen: list[tuple[int, str | None]] = []

    def append(encode: Callable[[int], bytes], *, records: int, bookmarks: Mapping[str, str]) -> int:
        sequence = Spool.append(spool, encode, records=records, bookmarks=bookmarks)
        seen.append((records, spool.bookmarks().get("log")))
        return sequence

    spool.append = append  # type: ignore[method-assign]  # what is on disk after each of several batches
    long = [TrainingStep(job="x" * 1000, step=step) for step in range(2000)]
    batcher.add(long, {"log": "line 2000"})
    batcher.flush(1)
    assert len(seen) > 1
    assert [text for _, text in seen[:-1]] == [None] * (len(seen) - 1)
    assert seen[-1][1] == "line 2000"


def test_a_bookmark_of_records_that_cannot_be_sent_is_kept(spool: Spool) -> None:
    batcher = Batcher(spool)
    batcher.add([TrainingStep(job="x" * (17 << 20), step=1)], {"log": "line 1"})
    assert batcher.flush(1) is None
    batcher.add(steps(1))
    batcher.flush(2)
    assert spool.bookmarks() == {"log": "line 1"}


def test_a_record_that_cannot_be_sent_is_left_out_and_the_first_reason_is_returned(spool: Spool) -> None:
    batcher = Batcher(spool)
    bad = [TrainingStep(job="a", step=-1), TrainingStep(job="\udcff", step=1)]
    refused = batcher.add([*steps(1), *bad, *steps(1, first=2)])
    batcher.flush(1)
    assert "-1" in str(refused)
    assert batches(spool)[0].records == steps(2)
    assert batcher.add(steps(1)) is None
