from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent import spool_worker

from perfd.agent.spool import spool_file
from perfd.agent.spool.spool import Spool
from perfd.agent.spool.spool_file import FILE_NAME, SpoolFile
from perfd.errors import SpoolError


def child(scenario: str, directory: Path) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, spool_worker.__file__, scenario, str(directory)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("seed", range(5))
def test_a_kill_at_any_time_loses_nothing_that_append_returned(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    newest = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, spool_worker.__file__, "append_until_killed", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(chance.randint(1, 400)):
            newest = int(process.stdout.readline())
        process.kill()
        # What it still said before the kill counts too; a line may be cut. `communicate` would pass over what
        # was read together with the lines above.
        with process:
            rest = process.stdout.read().splitlines(keepends=True)
        newest = max([newest, *(int(line) for line in rest if line.endswith("\n"))])
        spool = Spool(tmp_path, max_bytes=100_000)
        held = spool.read_after(0, limit=1 << 20)
        spool.close()
        numbers = [batch.sequence for batch in held]
        assert newest <= spool.last_sequence <= newest + 1
        assert numbers == list(range(numbers[0], spool.last_sequence + 1))
        assert all(batch.payload == spool_worker.payload(batch.sequence) for batch in held)


def test_a_full_disk_loses_the_oldest_counted_and_never_stops_the_agent(tmp_path: Path) -> None:
    found, log = child("fill_a_full_disk", tmp_path)
    assert found["last"] == 502
    assert found["newest"] == 501
    assert not found["writable"]
    assert found["readable"] + found["dropped_batches"] == 501
    assert found["dropped_batches"] > 0
    assert found["dropped_records"] == 3 * found["dropped_batches"]
    assert found["writable_again"]
    assert found["dropped_again"] == found["dropped_batches"]
    assert [line.split()[0] for line in log.splitlines()] == ["ERROR", "WARNING", "INFO"]
    assert "The spool cannot be written" in log


def test_what_was_kept_in_memory_is_on_disk_once_there_is_room(tmp_path: Path) -> None:
    found, _ = child("fill_a_full_disk", tmp_path)
    spool = Spool(tmp_path, max_bytes=1 << 30)
    assert spool.last_sequence == found["last"]
    assert spool.stats().batches == found["readable"] + 1
    spool.close()


def test_an_agent_starts_on_a_full_disk_and_its_spool_moves_there_once_there_is_room(tmp_path: Path) -> None:
    found, log = child("start_on_a_full_disk", tmp_path)
    assert found["writable"] == [False, True]
    assert found["readable"] == list(range(1, 11))
    assert [line.split(".")[0] for line in log.splitlines()] == [
        "ERROR The spool's disk is full or read-only: batches stay in memory, and a restart loses them",
        "WARNING The spool is on disk again: its disk had been full, or its file removed",
    ]
    # The agent did not close it, as after a kill.
    spool = Spool(tmp_path, max_bytes=1 << 30)
    assert spool.agent_id == found["agent_id"]
    assert [batch.sequence for batch in spool.read_after(0, limit=99)] == found["readable"]
    spool.close()


def test_batches_of_an_earlier_life_stay_where_they_are_while_the_spool_is_in_memory(tmp_path: Path) -> None:
    earlier = Spool(tmp_path, max_bytes=1 << 30)
    earlier.append(spool_worker.payload, records=1)
    earlier.close()
    file = SpoolFile(
        path=str(tmp_path / FILE_NAME), database=sqlite3.connect(":memory:"), lock=None, in_memory=True
    )

    assert not file.settle()
    file.close()

    spool = Spool(tmp_path, max_bytes=1 << 30)
    assert spool.agent_id == earlier.agent_id
    assert [batch.sequence for batch in spool.read_after(0, limit=9)] == [1]
    spool.close()


@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_spool_that_is_removed_is_written_again(
    whole_folder: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool"
    spool = Spool(folder, max_bytes=1 << 30)
    for number in range(1, 21):
        if number == 8 and whole_folder:
            shutil.rmtree(folder)
        elif number == 8:
            (folder / FILE_NAME).unlink()
        spool.append(spool_worker.payload, records=1)
    assert [record.getMessage() for record in caplog.records] == [
        "The spool is on disk again: its disk had been full, or its file removed."
    ]
    with pytest.raises(SpoolError, match="Another agent"):
        Spool(folder, max_bytes=1 << 30)
    spool.close()

    found = Spool(folder, max_bytes=1 << 30)
    assert found.agent_id == spool.agent_id
    assert [batch.sequence for batch in found.read_after(0, limit=99)] == list(range(1, 21))
    found.close()


def test_an_agent_starts_in_memory_where_the_disk_of_its_spool_became_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(_: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    Spool(tmp_path, max_bytes=1 << 30).close()
    monkeypatch.setattr(spool_file, "ProcessLock", read_only)
    spool = Spool(tmp_path, max_bytes=1 << 30)
    spool.append(spool_worker.payload, records=1)
    assert not spool.stats().writable
    assert [batch.sequence for batch in spool.read_after(0, limit=9)] == [1]
    spool.close()
    with pytest.raises(SpoolError, match="Read-only file system"):
        Spool(tmp_path / "none", max_bytes=1 << 30)
