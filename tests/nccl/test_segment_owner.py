"""Whose segments are believed, and what is said of the others."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from nccl.driver import NEEDS_GCC, driving, go_on, wait_for
from nccl.test_segments import make
from perfd_collectors.nccl.collector import NcclCollector, NcclOptions
from perfd_collectors.nccl.segments.segment_owner import FileLocks, ownership_problem, writer_of

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import CollectiveTimes, Event, Record, SampleTable, Scope
from tests.support.fake_node import process_stat

PID = 7
"""In the header of a made segment."""
HOST_PID = 4007
ME, OTHER, ROOT = os.geteuid(), os.geteuid() + 1000, 0
VERSION_AT = 4


class Reader:
    """A collector whose windows a test ends."""

    def __init__(self, directory: Path, proc: Path = Path("/proc"), **options: Any) -> None:
        self._clock = VirtualClock()
        self.collector = NcclCollector(
            NcclOptions(directory=str(directory), flight_recorder_prefix=None, **options),
            Settings(node="n", job="job", clock=self._clock, proc=proc),
        )

    def window(self) -> list[Record]:
        self._clock.advance(1.0)
        return list(self.collector.collect())


def ranks(records: list[Record]) -> set[str]:
    tables = [one for one in records if isinstance(one, SampleTable) and one.scope is Scope.RANK]
    return {entity for table in tables for entity in table.entities}


def ignored(records: list[Record]) -> list[float]:
    tables = [one for one in records if isinstance(one, SampleTable) and one.scope is Scope.NODE]
    return [value for table in tables for value in table.columns["nccl_ignored_segments"]]


def events(records: list[Record]) -> list[str]:
    return [record.message for record in records if isinstance(record, Event)]


def kept(records: list[Record]) -> list[int]:
    return [n for record in records if isinstance(record, CollectiveTimes) for n in record.sequences]


def node(directory: Path, *, inode: int, uid: int) -> Path:
    """A /proc whose process 4007, 7 in its container, holds a lock on a file."""
    process = directory / "proc" / str(HOST_PID)
    process.mkdir(parents=True)
    (process / "stat").write_text(process_stat(HOST_PID, "python3", 1, 1000))
    (process / "status").write_text(
        f"NSpid:\t{HOST_PID}\t{PID}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\n"
    )
    (process.parent / "locks").write_text(
        "1: POSIX  ADVISORY  READ 12 00:05:9 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE {HOST_PID} 00:1a:{inode} 0 EOF\n"
    )
    return process.parent


def test_the_writer_is_found_by_its_lock_whatever_its_pid_is_in_its_container(tmp_path: Path) -> None:
    status = make(tmp_path / "perfd-nccl-7-1").stat()
    proc = node(tmp_path, inode=status.st_ino, uid=ME)

    assert writer_of(FileLocks(proc), status, PID) == HOST_PID
    assert writer_of(FileLocks(proc), status, PID + 1) is None
    assert ownership_problem(FileLocks(proc), status, PID, ME) == ""


def test_a_file_of_another_user_than_its_process_is_not_believed(tmp_path: Path) -> None:
    status = make(tmp_path / "perfd-nccl-7-1").stat()
    proc = node(tmp_path, inode=status.st_ino, uid=OTHER)

    assert (
        ownership_problem(FileLocks(proc), status, PID, ME)
        == f"it belongs to user {ME}, but its process {PID} runs as user {OTHER}"
    )


@pytest.mark.parametrize("locks", [None, "", "nonsense\n\n1: -> FLOCK ADVISORY WRITE x 00:1a:5 0 EOF\n"])
def test_a_file_that_nobody_is_seen_to_write_must_be_the_agents_own(
    tmp_path: Path, locks: str | None
) -> None:
    path = make(tmp_path / "perfd-nccl-7-1")
    if locks is not None:
        (tmp_path / "locks").write_text(locks)
    mine = path.stat()
    others = os.stat_result([*mine[:4], OTHER, *mine[5:]])

    assert ownership_problem(FileLocks(tmp_path), mine, PID, ME) == ""
    assert f"belongs to user {OTHER}, and its process {PID} is not visible" in ownership_problem(
        FileLocks(tmp_path), others, PID, ROOT
    )


def test_an_agent_that_is_not_root_believes_its_own_users_files_only(tmp_path: Path) -> None:
    status = make(tmp_path / "perfd-nccl-7-1").stat()
    proc = node(tmp_path, inode=status.st_ino, uid=ME)

    assert (
        ownership_problem(FileLocks(proc), status, PID, OTHER)
        == f"it belongs to user {ME}, and this agent runs as user {OTHER}"
    )


def test_what_is_not_believed_is_neither_read_nor_silently_left_out(tmp_path: Path) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    path = make(shared / "perfd-nccl-7-1", written=40)
    reader = Reader(shared, node(tmp_path, inode=path.stat().st_ino, uid=OTHER))

    first = reader.window()
    # Once is enough; the column goes on. It is no process's any more, so it is swept, and forgotten.
    assert (ranks(first), ignored(first)) == (set(), [1.0])
    assert events(first) == [
        f"{path} is ignored: it belongs to user {ME}, but its process {PID} runs as user {OTHER}."
    ]
    assert reader.window() == []
    reader.collector.close()


def test_hundreds_of_other_files_keep_no_rank_from_being_read(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"perfd-nccl-{number}-0").write_bytes(b"forged" * 1000)
    reader = Reader(tmp_path)
    counts = [ignored(reader.window()) for _ in range(5)]
    make(tmp_path / "perfd-nccl-999-1", written=40)

    # A look has a bound, and each file its turn; a new one comes first.
    assert counts[0] < counts[1] < counts[-1] == [300.0]
    assert len(ranks(reader.window())) == 1
    reader.collector.close()


@NEEDS_GCC
def test_a_plugin_of_another_layout_is_reported_and_the_others_are_read(built: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with driving(built, tmp_path, 5, "one", 10, RANK="0") as older:
        wait_for(older, "ready")
        (path,) = tmp_path.iterdir()
        with path.open("r+b") as file:
            file.seek(VERSION_AT)
            file.write(struct.pack("<I", 99))
        with driving(built, tmp_path, 5, "one", 10, RANK="1") as newer:
            wait_for(newer, "ready")
            records = [reader.window() for _ in range(3)]
    reader.collector.close()

    assert set.union(*map(ranks, records)) == {"job/1"}
    assert [ignored(one) for one in records] == [[1.0]] * 3
    (reported,) = [message for one in records for message in events(one)]
    assert reported.startswith(f"{path} has layout")
    assert reported.endswith("use a plugin and an agent of the same perfd version.")


@NEEDS_GCC
def test_a_second_name_of_a_file_counts_nothing_twice(built: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with driving(built, tmp_path, 5, "bursts", 10, RANK="0", WORLD_SIZE="2") as job:
        wait_for(job, "0")
        (path,) = tmp_path.iterdir()
        assert ranks(reader.window()) == {"job/0"}
        os.link(path, path.with_name(f"{path.name}-again"))
        go_on(job)
        wait_for(job, "10")
        records = reader.window()
        path.with_name(f"{path.name}-again").unlink()
    reader.collector.close()

    assert sorted(kept(records)) == list(range(10))
    assert [message for message in events(records) if "second name of a file that is already read" in message]


@NEEDS_GCC
def test_two_agents_read_one_job_and_one_of_them_switches_its_events(built: Path, tmp_path: Path) -> None:
    begun = 0
    with driving(built, tmp_path, 5, "bursts", 10, RANK="0", WORLD_SIZE="2") as job:
        wait_for(job, "0")

        def windows(*readers: Reader) -> list[list[int]]:
            nonlocal begun
            go_on(job)
            begun += 10
            wait_for(job, str(begun))
            return [kept(reader.window()) for reader in readers]

        first, second = Reader(tmp_path), Reader(tmp_path, gpu_time=False)
        for reader in (first, second):
            assert ranks(reader.window()) == {"job/0"}
        for _ in range(3):
            newest = list(range(begun, begun + 10))
            assert windows(first, second) == [newest, newest]
        first.collector.close()
        # The one that is left has its way now.
        windows(second)
        windows(second)
        assert windows(second) == [[]]
        second.collector.close()


@pytest.mark.parametrize(("start_s", "first_s"), [(1000.37, 1001.0), (1000.62, 1002.0), (1000.0, 1001.0)])
def test_windows_end_at_whole_seconds_of_unix_time_though_readings_come_a_little_late(
    tmp_path: Path, start_s: float, first_s: float
) -> None:
    clock = VirtualClock(round(start_s * 1e9))
    settings = Settings(node="n", job="job", clock=clock)
    collector = NcclCollector(NcclOptions(directory=str(tmp_path), flight_recorder_prefix=None), settings)
    ended_s = []
    for tick in range(60):
        # A window removes what a dead process left. Readings come every tenth of a second, up to 30 ms late.
        make(tmp_path / "perfd-nccl-7-1")
        clock.advance_to_unix_ns(round((1000.7 + tick / 10 + 0.03 * (tick % 2)) * 1e9))
        if ignored(list(collector.collect())):
            ended_s.append(clock.unix_ns() / 1e9)
    assert ended_s == pytest.approx([first_s + n for n in range(len(ended_s))], abs=0.031)
    assert len(ended_s) >= 4
