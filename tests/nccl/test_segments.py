"""Shared memory is everybody's: what others put there neither stops the agent nor leads it elsewhere."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.nccl.operations import Operations, RingBuffers, SegmentReader
from perfd_collectors.nccl.segments.segment import MAGIC, Segment
from perfd_collectors.nccl.segments.segment_discovery import find_segments, remove_left_over

from perfd.errors import Unavailable
from tests.support.nccl_segments import HEADER, RECORD, RING_AT

RINGS_AT = 256
ENTRIES = 64
NOW_S = 1e10


def make(
    path: Path, *, entries: int = ENTRIES, written: int = 0, rings: int = 1, size: int | None = None
) -> Path:
    """A segment whose ring holds records up to `written`."""
    size = size or RING_AT + 64 + entries * RECORD.size
    content = bytearray(RING_AT + 64 + min(entries, ENTRIES) * RECORD.size)
    HEADER.pack_into(content, 0, MAGIC, 1, size, 7, entries, RECORD.size, 256, 0, 0, 1, 5, 1, 1)
    struct.pack_into("<I", content, RINGS_AT, rings)
    struct.pack_into("<Q", content, RING_AT, written)
    for position in range(max(0, written - ENTRIES), written):
        place = RING_AT + 64 + position % ENTRIES * RECORD.size
        RECORD.pack_into(content, place, position + 1, position, *[0] * 19)
    path.write_bytes(content)
    os.truncate(path, size)
    return path


def sequences(operations: Operations) -> list[int]:
    return [operation.operation_sequence for operation in operations.rows()]


def test_a_ring_is_read_once_over_its_end_and_what_was_overwritten_is_counted(tmp_path: Path) -> None:
    segment = Segment(make(tmp_path / "perfd-nccl-1", written=40))
    rings = RingBuffers(segment)
    assert sequences(rings.read().operations) == list(range(40))
    make(segment.path, written=100)
    reading = rings.read()
    assert (sequences(reading.operations), reading.lost) == (list(range(40, 100)), 0)
    make(segment.path, written=1000)
    reading = rings.read()
    # The oldest place may be under the writer's hands.
    assert (sequences(reading.operations), reading.lost) == (list(range(937, 1000)), 837)
    segment.close()


def test_between_reports_a_ring_is_left_until_an_eighth_is_unread(tmp_path: Path) -> None:
    path = make(tmp_path / "perfd-nccl-1")
    reader = SegmentReader(Segment(path), round(NOW_S * 1e9), None)
    left = {}
    for written in (8, 9, 17, 18):
        make(path, written=written)
        reader.read(only_filling=True)
        left[written] = written - reader.progress().positions.get(0, 0)
    assert left == {8: 8, 9: 0, 17: 8, 18: 0}
    # Most of a ring fits between two looks, and several rings' worth between two reports.
    for written in range(18, 400, 60):
        make(path, written=written)
        reader.read(only_filling=True)
    make(path, written=380)
    assert (len(reader.read().operations), reader.progress().lost) == (2, 0)
    reader.close()


def test_a_file_that_is_cut_while_it_is_read_costs_records_and_no_crash(tmp_path: Path) -> None:
    segment = Segment(make(tmp_path / "perfd-nccl-1", written=40))
    rings = RingBuffers(segment)
    os.truncate(segment.path, RING_AT + 64 + 10 * RECORD.size + 5)
    assert len(rings.read().operations) == 0
    make(segment.path, written=40)
    assert len(rings.read().operations) == 40
    os.truncate(segment.path, 0)
    assert len(rings.read().operations) == 0
    assert list(segment.communicators()) == []
    assert segment.counters().started == 0
    segment.close()


def test_of_a_ring_that_claims_to_be_endless_a_part_is_read_at_a_time(tmp_path: Path) -> None:
    path = make(tmp_path / "perfd-nccl-1", entries=1 << 22, written=1 << 21, rings=1 << 31)
    segment = Segment(path)
    reading = RingBuffers(segment).read()
    assert len(reading.operations) + reading.lost == 65_536
    segment.close()


@given(data=st.binary(max_size=400), at=st.sampled_from([0, RINGS_AT, RING_AT - 64, RING_AT]))
def test_any_content_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    path = make(tmp_path_factory.mktemp("shm") / "perfd-nccl-1", written=40)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    try:
        segment = Segment(path)
    except Unavailable:
        return
    assert len(RingBuffers(segment).read().operations) <= ENTRIES
    list(segment.communicators())
    segment.close()


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    secret = make(tmp_path / "secret")
    os.mkfifo(tmp_path / "perfd-nccl-fifo")
    (tmp_path / "perfd-nccl-folder").mkdir()
    (tmp_path / "perfd-nccl-link").symlink_to(secret)

    assert find_segments(tmp_path) == []
    assert remove_left_over(find_segments(tmp_path), NOW_S) == []
    for name in ("fifo", "folder", "link"):
        with pytest.raises(Unavailable):
            Segment(tmp_path / f"perfd-nccl-{name}")
    assert secret.exists()


def test_a_file_that_is_being_made_is_left_alone_until_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "perfd-nccl-1"
    path.touch()
    made_s = path.stat().st_mtime
    assert remove_left_over(find_segments(tmp_path), made_s + 1) == []
    assert remove_left_over(find_segments(tmp_path), made_s + 61) == [path]
