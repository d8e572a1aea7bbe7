from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import RecordingError
from perfd.model import (
    Event,
    EventKind,
    GpuInfo,
    JobDescription,
    ParallelLayout,
    RankPlacement,
    SampleTable,
    Scope,
)
from perfd.protobuf_encoding import varint
from perfd.recording import open_recording
from perfd.recording.recording_writer import RecordingWriter
from perfd.recording.records_stream import RecordsStream, encode_item

SECOND = 1_000_000_000


def gpu_table(unix_ns: int, power_w: float) -> SampleTable:
    return SampleTable(
        scope=Scope.GPU,
        times_unix_ns=array("q", [unix_ns]),
        entities=("0",),
        columns={"power_w": array("d", [power_w])},
    )


def an_event(unix_ns: int) -> Event:
    return Event(kind=EventKind.HARDWARE_ERROR, time_unix_ns=unix_ns, message="XID 79", gpu=0, code=79)


def play(path: Path, start_unix_ns: int, seconds: int) -> list[list[object]]:
    clock = VirtualClock(start_unix_ns)
    stream = RecordsStream(path, Settings(node="n", job="j", clock=clock))
    played = []
    for _ in range(seconds):
        played.append(list(stream.collect()))
        clock.advance(1.0)
    stream.close()
    stream.close()
    return played


@given(st.lists(st.integers(1, 5), min_size=1), st.data())
def test_a_file_cut_anywhere_gives_a_beginning_of_its_items(tmp_path_factory, sizes, data):
    items = [[an_event(number)] * size for number, size in enumerate(sizes, 1)]
    content = b"".join(encode_item(item, number, number) for number, item in enumerate(items, 1))
    path = tmp_path_factory.mktemp("cut") / "records.bin"
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    read = play(path, 0, len(items) + 1)[1]
    everything = [event for item in items for event in item]
    assert read == everything[: len(read)]
    assert cut < len(content) or read == everything


@given(st.binary(max_size=400))
def test_garbage_is_read_as_something_or_refused_but_never_crashes(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("garbage") / "records.bin"
    path.write_bytes(content)
    try:
        stream = RecordsStream(path, Settings(node="n", job="j", clock=VirtualClock(2**62)))
        stream.span_unix_ns()
        stream.collect()
    except RecordingError:
        pass


def test_an_item_that_is_no_batch_is_refused_unless_it_may_have_been_cut(tmp_path):
    path, whole = tmp_path / "records.bin", encode_item([an_event(1)], SECOND, 1)
    path.write_bytes(b"\x04junk" + whole)
    with pytest.raises(RecordingError, match="not a batch"):
        RecordsStream(path, Settings(node="n", job="j"))
    path.write_bytes(whole + b"\x04junk")
    assert play(path, SECOND, 2) == [[an_event(1)], []]


def test_what_comes_before_a_damaged_item_is_played_and_the_rest_is_said_to_be_lost(tmp_path):
    path = tmp_path / "records.bin"
    whole = [encode_item([an_event(at)], at * SECOND, at) for at in (1, 2, 3)]
    path.write_bytes(whole[0] + whole[1] + b"\x04junk" + whole[2])
    stream = RecordsStream(path, Settings(node="n", job="j", clock=VirtualClock(2**62)))
    assert stream.span_unix_ns() == (SECOND, 2 * SECOND)
    assert stream.collect() == [an_event(1), an_event(2)]
    assert stream.damage is not None
    assert stream.damage.startswith("records.bin holds an item that is not a batch of records: ")
    assert stream.damage.endswith("It is replayed up to there, 2 batches.")


@pytest.mark.parametrize("length", [2**34, 2**62, 2**64 - 1])
def test_a_length_beyond_the_file_reserves_no_memory(tmp_path, length):
    path = tmp_path / "records.bin"
    path.write_bytes(varint(length) + b"x" * 100)
    try:
        assert play(path, SECOND, 1) == [[]]
    except RecordingError:
        assert length > 2**62


def test_records_come_back_when_they_are_due_and_only_once(tmp_path):
    path = tmp_path / "records.bin"
    path.write_bytes(
        encode_item([gpu_table(10 * SECOND, 1.0)], 10 * SECOND, 1)
        + encode_item([gpu_table(11 * SECOND, 2.0), an_event(11 * SECOND)], 11 * SECOND, 2)
    )
    assert play(path, 9 * SECOND, 4) == [
        [],
        [gpu_table(10 * SECOND, 1.0)],
        [gpu_table(11 * SECOND, 2.0), an_event(11 * SECOND)],
        [],
    ]


def test_the_span_of_records_reaches_from_the_first_to_the_last(tmp_path):
    path = tmp_path / "records.bin"
    path.write_bytes(b"".join(encode_item([an_event(t)], t * SECOND, t) for t in (3, 5, 8)))
    stream = RecordsStream(path, Settings(node="n", job="j"))
    assert stream.span_unix_ns() == (3 * SECOND, 8 * SECOND)
    empty = tmp_path / "empty.bin"
    empty.write_bytes(b"")
    assert RecordsStream(empty, Settings(node="n", job="j")).span_unix_ns() is None


def written(directory: Path) -> dict[str, object]:
    content = json.loads((directory / "recording.json").read_bytes())
    assert isinstance(content, dict)
    return content


def test_a_recording_says_what_was_seen_of_nodes_ranks_and_framework(tmp_path):
    writer = RecordingWriter(tmp_path / "rec", name="train", start_unix_ns=5 * SECOND)
    gpus = [GpuInfo(index=i, name="NVIDIA H200") for i in (1, 0)]
    ranks = [RankPlacement(job="train", rank=r, local_rank=r, gpu=r, world_size=2, pid=77) for r in (0, 1)]
    writer.add_records("a", [*gpus, *ranks], 5 * SECOND)
    layout = ParallelLayout(world_size=2)
    writer.describe("a", [JobDescription(job="train", framework="megatron-lm", parallel=layout)])
    writer.close()
    assert written(tmp_path / "rec") == {
        "format": 1,
        "name": "train",
        "start_unix_s": 5.0,
        "world_size": 2,
        "framework": {"name": "megatron-lm"},
        "software": {},
        "nodes": [
            {
                "name": "a",
                "gpus": [{"index": 0, "name": "NVIDIA H200"}, {"index": 1, "name": "NVIDIA H200"}],
                "ranks": [{"rank": r, "local_rank": r, "gpu": r} for r in (0, 1)],
            }
        ],
        "streams": [{"node": "a", "kind": "records", "path": "a/records.bin"}],
    }


def test_a_recording_whose_writer_was_killed_can_be_opened(tmp_path):
    writer = RecordingWriter(tmp_path / "rec", name="train", start_unix_ns=0)
    writer.add_log("a", b"hello\n", 1 * SECOND)
    writer.add_records("a", [an_event(2 * SECOND)], 2 * SECOND)
    # No close: what is on disk now is what a SIGKILL leaves.
    recording = open_recording(tmp_path / "rec")
    assert [stream.kind for stream in recording.manifest.streams] == ["training-log", "records"]
    assert (tmp_path / "rec/a/stdout.log").read_bytes() == b"hello\n"
    assert play(tmp_path / "rec/a/records.bin", 2 * SECOND, 1) == [[an_event(2 * SECOND)]]
    assert not list((tmp_path / "rec").glob("*.tmp"))
    writer.close()


def test_a_recording_that_is_removed_while_it_is_written_is_missed_at_its_end(tmp_path):
    writer = RecordingWriter(tmp_path / "rec", name="train", start_unix_ns=0)
    writer.add_log("a", b"hello\n", 1 * SECOND)
    shutil.rmtree(tmp_path / "rec")
    writer.add_log("a", b"more\n", 2 * SECOND)
    with pytest.raises(RecordingError, match="was removed while it was written"):
        writer.close()


def test_the_times_of_a_log_say_how_much_had_been_printed_when(tmp_path):
    writer = RecordingWriter(tmp_path / "rec", name="train", start_unix_ns=0)
    writer.add_log("a", b"12345", 1 * SECOND)
    writer.add_log("a", b"678\n", 3 * SECOND + 250_000_000)
    writer.add_log("a", b"9", 3 * SECOND + 251_000_000)
    writer.close()
    assert (tmp_path / "rec/a/stdout.log").read_bytes() == b"12345678\n9"
    assert (tmp_path / "rec/a/stdout.log.times").read_text() == "1.000000 5\n3.250000 10\n"


def test_a_letter_at_a_time_does_not_make_a_line_of_times_for_each(tmp_path):
    writer = RecordingWriter(tmp_path / "rec", name="train", start_unix_ns=0)
    for i in range(1000):
        writer.add_log("a", b"x", SECOND + i * 1_000_000)
    writer.close()
    lines = (tmp_path / "rec/a/stdout.log.times").read_text().splitlines()
    assert len(lines) <= 100
    assert lines[-1].endswith(" 1000")


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path):
    (tmp_path / "precious").write_text("")
    with pytest.raises(RecordingError, match="is not empty: a recording needs a new folder"):
        RecordingWriter(tmp_path, name="train", start_unix_ns=0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match=r"file/rec cannot be written"):
        RecordingWriter(tmp_path / "file/rec", name="train", start_unix_ns=0)


def test_nodes_with_hostile_names_stay_inside_the_recording_and_apart(tmp_path):
    writer = RecordingWriter(tmp_path / "rec", name="train", start_unix_ns=0)
    for node in ("../up", "_.up", "a/b", "..", ""):
        writer.add_log(node, node.encode() + b"\n", SECOND)
    writer.close()
    recording = open_recording(tmp_path / "rec")
    contents = {s.node: recording.path_of(s).read_bytes() for s in recording.manifest.streams}
    assert contents == {node: node.encode() + b"\n" for node in ("../up", "_.up", "a/b", "..", "")}
