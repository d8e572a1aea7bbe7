"""NCCL's Inspector: what a line tells, files cut anywhere, and the files of a recording and of a live job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.nccl import SPEC
from perfd_collectors.nccl.inspector.inspector_files import InspectorDirectory
from perfd_collectors.nccl.inspector.inspector_lines import InspectorLines, parse_line, reduce_inspected
from perfd_collectors.nccl.segments.plugin_records import UNTIMED_KERNEL_NS

from perfd.analysis.findings import Kind
from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import RecordingError
from perfd.model import CollectiveTimes, TimingSource
from perfd.recording import bundled
from perfd.session.replay_session import ReplayOptions, replay
from perfd.testing.collector_contract import check_replay


def line(sequence: int = 0, *, us: float = 450, rank: int = 1, at_us: int = 1_000_000, **fields) -> bytes:
    header = {"id": "0xe5ccb016b8db7e", "comm_name": "unknown", "rank": rank, "n_ranks": 2, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": at_us,
        "hostname": "n",
        "pid": 77,
    }
    performance = {
        "coll": "AllReduce",
        "coll_sn": sequence,
        "coll_msg_size_bytes": 4096,
        "coll_exec_time_us": us,
        "coll_timing_source": "kernel_gpu",
        "event_trace_sn": {"kernel_events": [{"channel_id": 0}]},
    }
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": performance | fields}).encode()


LINES = b"".join(line(sequence, us=400 + sequence) + b"\n" for sequence in range(5))
WHOLE = [(sequence, (400 + sequence) * 1000) for sequence in range(5)]


def fed(*pieces: bytes) -> list[tuple[int, int]]:
    lines = InspectorLines()
    return [(one.sequence, one.duration_ns) for piece in pieces for one in lines.feed(piece)]


def test_a_line_is_one_collective_of_one_rank():
    operation = parse_line(line(7))

    assert operation is not None
    assert (operation.communicator, operation.communicator_rank, operation.communicator_size) == (
        "e5ccb016b8db7e",
        1,
        2,
    )
    assert (operation.operation, operation.sequence, operation.duration_ns) == ("AllReduce", 7, 450_000)
    assert (operation.timing, operation.written_unix_ns, operation.pid) == (TimingSource.GPU, 10**9, 77)
    assert operation.communicator_name == ""


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"garbage",
        b"{}",
        line()[:-5],
        line(us=0),
        line(us=-4),
        line(coll_exec_time_us=1e308),
        line(coll_exec_time_us=-1e308),
        line(rank=2),
        line(coll_sn=-1),
        line(coll_sn=1 << 63),
        line(coll_exec_time_us="many"),
        line(coll_timing_source="collective_cpu"),
        line().replace(b"0xe5ccb016b8db7e", b"0x\xff"),
        line().replace(b"0xe5ccb016b8db7e", b"0x" + b"f" * 40),
        line().replace(b"0xe5ccb016b8db7e", b"-5"),
    ],
)
def test_a_line_that_shows_no_duration_is_none(bad: bytes):
    assert parse_line(bad) is None


@given(st.integers(0, len(LINES)), st.integers(0, len(LINES)))
def test_a_stream_that_comes_in_pieces_is_read_whole(first: int, second: int):
    low, high = sorted((first, second))

    assert fed(LINES[:low], LINES[low:high], LINES[high:]) == WHOLE


@given(st.integers(0, len(LINES)), st.binary(max_size=40))
def test_a_cut_file_never_invents_an_operation(cut: int, garbage: bytes):
    assert all(found in WHOLE for found in fed(LINES[:cut] + garbage + b"\n" + LINES))
    assert fed(LINES[:cut]) == WHOLE[: LINES[:cut].count(b"\n")]


def test_a_line_without_end_is_dropped_and_the_next_is_read():
    assert fed(b"x" * (1 << 20), b"x" * 100, b"\n" + line(3) + b"\n") == [(3, 450_000)]


def test_operations_of_one_communicator_are_one_record_and_their_source_is_named():
    operations = list(InspectorLines().feed(LINES))

    (record,) = reduce_inspected(operations, job="j", rank=3, start_unix_ns=1, end_unix_ns=2)

    assert (record.rank, record.count, record.source) == (3, 5, "inspector")
    assert (record.min_s, record.max_s, record.total_bytes) == pytest.approx((403.5e-6, 407.5e-6, 5 * 4096))
    with_edges = [(sequence, duration_ns + UNTIMED_KERNEL_NS) for sequence, duration_ns in WHOLE]
    assert list(zip(record.sequences, record.durations_ns, strict=True)) == with_edges


def recording(folder: Path, *, rank: int | None = 2) -> Path:
    (folder / "n").mkdir()
    path = folder / "n" / "inspector.jsonl"
    stamped = [line(sequence, at_us=(10 + sequence) * 1_000_000) for sequence in range(5)]
    path.write_bytes(b"\n".join(stamped))
    stream = {"node": "n", "kind": "nccl-inspector", "path": "n/inspector.jsonl.gz", "rank": rank}
    (folder / "recording.json").write_text(json.dumps({"format": 1, "streams": [stream]}))
    return path


def test_a_recorded_file_is_played_by_its_own_times(tmp_path: Path):
    settings = Settings(node="n", job="j", clock=VirtualClock())

    records = check_replay(SPEC, "nccl-inspector", recording(tmp_path), settings, step_s=2.0)

    assert [(r.rank, r.count) for r in records] == [(2, 1), (2, 2), (2, 2)]
    assert (records[1].start_unix_ns, records[1].end_unix_ns) == (10 * 10**9, 12 * 10**9)


def test_a_recording_that_does_not_say_the_rank_is_refused_with_what_to_do(tmp_path: Path):
    path = recording(tmp_path, rank=None)

    with pytest.raises(RecordingError, match="add `rank` to its stream"):
        SPEC.replay["nccl-inspector"](path, Settings(node="n", job="j", clock=VirtualClock()))


def test_files_of_a_live_job_are_followed_and_the_rank_is_that_of_the_process(tmp_path: Path):
    clock = VirtualClock(5 * 10**9)
    directory = InspectorDirectory(tmp_path, Settings(node="n", job="j", clock=clock), rank_of={77: 4}.get)
    (tmp_path / "n-pid77.log").write_bytes(line(0) + b"\n" + line(1)[:50])
    (tmp_path / "notes.txt").write_bytes(line(9) + b"\n")
    assert directory.collect() == []  # What was there before the agent is not of now.
    with (tmp_path / "n-pid77.log").open("ab") as file:
        file.write(line(1)[50:] + b"\n" + line(2) + b"\n")
    clock.advance(1)

    (record,) = directory.collect()

    assert (record.rank, list(record.sequences)) == (4, [2])
    assert (record.start_unix_ns, record.end_unix_ns) == (5 * 10**9, 6 * 10**9)
    directory.close()


def test_the_environment_of_a_process_shows_its_rank(tmp_path: Path):
    (tmp_path / "proc" / "77").mkdir(parents=True)
    (tmp_path / "proc" / "77" / "environ").write_bytes(b"RANK=6\0WORLD_SIZE=8\0SECRET=x\0")
    settings = Settings(node="n", job="j", clock=VirtualClock(), proc=tmp_path / "proc")
    directory = InspectorDirectory(tmp_path, settings)
    directory.collect()
    (tmp_path / "n-pid77.log").write_bytes(line(0) + b"\n")

    (record,) = directory.collect()

    assert isinstance(record, CollectiveTimes)
    assert record.rank == 6
    directory.close()


def test_a_replay_shows_transfer_and_waiting_of_what_the_inspector_saw_and_no_share_of_time():
    (summary,) = replay(ReplayOptions(recording=bundled("pp2dp2"))).summaries

    kernels = summary.nccl
    data = next(kind for kind in kernels.kinds if kind.group == "dp")
    assert (data.operation, data.communicators) == ("AllReduce", 2)
    assert data.transfer_s == pytest.approx(7.9e-3, rel=0.02)
    assert 300e9 < data.bus_bytes_per_s < 400e9
    assert data.wait_ratio < 0.02
    assert {group.source for group in kernels.groups} == {"inspector"}
    # It recorded a part of the operations only, so nothing follows for the whole.
    assert (kernels.source, kernels.share_ratio, kernels.wait_ratio) == ("inspector", None, None)
    assert summary.communication.source.startswith("timers")
    assert summary.bottleneck.kind is Kind.COMPUTE_BOUND
    assert all(not finding.culprits for finding in summary.findings)
