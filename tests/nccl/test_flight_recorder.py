"""Dumps of PyTorch's flight recorder: untrusted files that tell who did not come."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.nccl import SPEC
from perfd_collectors.nccl.collector import NcclOptions
from perfd_collectors.nccl.flight_recorder.dump import FlightRecorderError, read_dump
from perfd_collectors.nccl.flight_recorder.dump_files import DumpDirectory

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import CollectiveProgress, EventKind
from perfd.safe_pickle import UnsafePickleError, loads
from perfd.testing.collector_contract import check_replay

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=20,
)


def dump(enqueued: int = 5, completed: int = 4, *, members: object = "[0, 1, 2, 3]", **fields) -> dict:
    def entry(sequence: int, state: str) -> dict:
        return {
            "record_id": sequence,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": sequence,
            "is_p2p": False,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1000 + sequence,
            "time_discovered_completed_ns": None,
            "state": state,
            "frames": [{"name": "f", "filename": "t.py", "line": 1}],
        }

    states = [entry(n, "completed") for n in range(1, completed + 1)]
    states += [
        entry(n, "started" if n == completed + 1 else "scheduled") for n in range(completed + 1, enqueued + 1)
    ]
    return {
        "version": "2.10",
        "entries": states,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": enqueued,
                "last_started_collective": completed + 1,
                "last_completed_collective": completed,
            },
            "1": {
                "last_enqueued_collective": -1,
                "last_started_collective": -1,
                "last_completed_collective": -1,
            },
        },
    } | fields


def read(content: object, rank: int = 2) -> list[CollectiveProgress]:
    return read_dump(pickle.dumps(content), job="j", rank=rank, read_unix_ns=9)


class Evil:
    """Runs a command when it is unpickled by anything that runs pickles."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_anything_is_refused_and_nothing_runs(tmp_path: Path, protocol: int):
    with pytest.raises(UnsafePickleError, match="not plain data"):
        loads(pickle.dumps({"entries": [Evil(tmp_path / "ran")]}, protocol=protocol))

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"Pid\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",
        b"I" + b"9" * 5000 + b"\n.",
        b"]" * 10,
        b"",
        b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",
        b"\x80\x04})\x85" + b"\x942\x86\x94h\x01" * 200 + b"Ns.",
        pytest.param(b"\x80\x04" + b"]" * 4_100_000 + b".", marks=pytest.mark.slow),
    ],
    ids=[
        "global",
        "inst",
        "extension",
        "persistent",
        "stack_global",
        "memo",
        "length",
        "digits",
        "open",
        "empty",
        "deep key",
        "deep key by memo",
        "endless",
    ],
)
def test_hand_made_pickles_are_refused_with_a_reason(data: bytes):
    with pytest.raises(UnsafePickleError):
        loads(data)


@pytest.mark.filterwarnings("error")
def test_an_invalid_escape_in_a_pickle_warns_nobody():
    assert loads(b"S'\\e'\n.") == "\\e"


@given(PLAIN, st.integers(0, 5))
def test_plain_data_comes_back_as_it_was(value: object, protocol: int):
    try:
        found = loads(pickle.dumps(value, protocol=protocol))
    except UnsafePickleError:
        # Old protocols write bytes as a call.
        assert protocol < 3
    else:
        assert found == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes):
    with contextlib.suppress(FlightRecorderError):
        read_dump(data, job="j", rank=0, read_unix_ns=1)


@given(st.integers(0, len(pickle.dumps(dump()))))
def test_a_cut_dump_is_refused(cut: int):
    data = pickle.dumps(dump())
    if cut < len(data):
        with pytest.raises(FlightRecorderError):
            read_dump(data[:cut], job="j", rank=0, read_unix_ns=1)


@pytest.mark.parametrize("encode", [pickle.dumps, lambda content: json.dumps(content).encode()])
def test_a_dump_shows_how_far_a_rank_is_on_each_group(encode):
    (progress,) = read_dump(encode(dump()), job="j", rank=2, read_unix_ns=9)

    assert (progress.rank, progress.communicator, progress.communicator_name) == (2, "0", "default_pg")
    assert (progress.enqueued, progress.started, progress.completed) == (5, 5, 4)
    assert (progress.operation, progress.members) == ("all_reduce", (0, 1, 2, 3))
    assert (progress.time_unix_ns, progress.source) == (1005, "flight_recorder")


def test_a_dump_without_the_state_of_groups_is_reported_by_its_entries():
    content = dump(enqueued=7, completed=3)
    del content["pg_status"]

    (progress,) = read(content)

    assert (progress.enqueued, progress.started, progress.completed) == (7, 4, 3)


def test_a_number_of_thousands_of_digits_names_no_group():
    assert read({"entries": [], "pg_status": {1 << 100_000: {"last_enqueued_collective": 5}}}) == []


def test_values_of_wrong_types_are_left_out():
    content = dump(members={"0": 1})
    content["pg_status"]["0"] = {"last_enqueued_collective": "5", "last_completed_collective": True}
    content["entries"] = [None, 5, {"collective_seq_id": 1}, *content["entries"]]

    (progress,) = read(content)

    assert (progress.enqueued, progress.completed, progress.members) == (5, 4, ())
    with pytest.raises(FlightRecorderError, match="neither entries"):
        read({"what": 1})


def test_new_dumps_are_read_and_old_ones_and_links_are_not(tmp_path: Path):
    prefix = str(tmp_path / "nccl_trace_rank_")
    old, new = Path(f"{prefix}0"), Path(f"{prefix}1")
    old.write_bytes(pickle.dumps(dump()))
    (tmp_path / "elsewhere").write_bytes(pickle.dumps(dump()))
    directory = DumpDirectory(prefix, Settings(node="n", job="j", clock=VirtualClock()))
    assert directory.collect() == []

    new.write_bytes(pickle.dumps(dump()))
    Path(f"{prefix}2").symlink_to(tmp_path / "elsewhere")
    Path(f"{prefix}3").write_bytes(b"garbage")
    Path(f"{prefix}x").write_bytes(pickle.dumps(dump()))

    assert [progress.rank for progress in directory.collect()] == [1]
    (unreadable,) = directory.collect()
    assert (unreadable.kind, unreadable.rank) == (EventKind.DUMP_UNREADABLE, 3)
    assert "dump of rank 3 cannot be read" in unreadable.message
    assert directory.collect() == []
    new.write_bytes(pickle.dumps(dump(enqueued=6)))
    assert [progress.enqueued for progress in directory.collect()] == [6]


def test_a_dump_that_is_still_being_written_is_no_complaint(tmp_path: Path):
    whole, path = pickle.dumps(dump()), tmp_path / "rank_3"
    directory = DumpDirectory(str(tmp_path / "rank_"), Settings(node="n", job="j", clock=VirtualClock()))
    path.write_bytes(whole[:-9])
    assert directory.collect() == []
    path.write_bytes(whole)
    assert [progress.rank for progress in directory.collect()] == [3]


def test_a_dump_that_was_cut_when_the_job_ended_is_reported_at_once(tmp_path: Path):
    settings = Settings(node="n", job="j", clock=VirtualClock())
    directory = DumpDirectory(str(tmp_path / "rank_"), settings)
    (tmp_path / "rank_3").write_bytes(pickle.dumps(dump())[:-9])
    settings.ending.set()
    assert [event.kind for event in directory.collect()] == [EventKind.DUMP_UNREADABLE]


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path):
    assert DumpDirectory(str(tmp_path / "no" / "r"), Settings(node="n", job="j")).collect() == []


def test_dumps_of_the_jobs_last_moment_are_reported_in_the_last_call(tmp_path: Path):
    settings = Settings(node="n", job="j", clock=VirtualClock(10**9))
    options = NcclOptions(directory=str(tmp_path), flight_recorder_prefix=str(tmp_path / "rank_"))
    collector = SPEC.create(options, settings)
    (tmp_path / "rank_3").write_bytes(pickle.dumps(dump()))
    assert collector.collect() == []

    settings.ending.set()

    (progress,) = collector.collect()
    assert (progress.rank, progress.enqueued) == (3, 5)
    collector.close()


def test_the_collector_reads_dumps_that_appear(tmp_path: Path):
    clock = VirtualClock(10**9)
    options = NcclOptions(directory=str(tmp_path), flight_recorder_prefix=str(tmp_path / "rank_"))
    collector = SPEC.create(options, Settings(node="n", job="j", clock=clock))
    (tmp_path / "rank_3").write_bytes(pickle.dumps(dump()))
    clock.advance(2)

    (progress,) = collector.collect()

    assert (progress.job, progress.rank, progress.enqueued) == ("j", 3, 5)
    collector.close()


def test_a_recorded_dump_is_played_at_its_time(tmp_path: Path):
    (tmp_path / "flight-rank2.pickle").write_bytes(pickle.dumps(dump()))
    settings = Settings(node="n", job="j", clock=VirtualClock())

    (progress,) = check_replay(SPEC, "flight-recorder", tmp_path / "flight-rank2.pickle", settings)

    assert progress.rank == 2
