"""Flight recorder dumps in a /tmp of the job's own, as in containers and SLURM's job_container/tmpfs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from perfd_collectors.nccl.flight_recorder import DumpDirectory

from perfd.clock import VirtualClock
from perfd.collector import LocalRank, Settings
from perfd.file_access import opened_inside
from perfd.model import CollectiveProgress, Record

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="a mount namespace needs root"
)
NOBODY = 65_534
DUMP = json.dumps(
    {
        "version": "2.4",
        "pg_status": {
            "0": {
                "last_enqueued_collective": 9,
                "last_started_collective": 9,
                "last_completed_collective": 4,
            }
        },
        "entries": [],
    }
)


class Job:
    """A shell with a tmpfs of its own over a folder."""

    def __init__(self, folder: Path, *, prepare: str = "true") -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs tmpfs {folder} && {prepare} && exec sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.run("true")

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, command: str) -> None:
        """Run a command in it to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command} && echo done\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def dump(self, rank: int, uid: int = 0) -> None:
        file = self.folder / f"rank_{rank}"
        self.run(f"printf %s '{DUMP}' > {file} && chown {uid} {file}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def job(folder: Path, *, prepare: str = "true") -> Iterator[Job]:
    folder.mkdir(exist_ok=True)
    made = Job(folder, prepare=prepare)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def settings() -> Settings:
    return Settings(node="n", job="node", clock=VirtualClock())


def seen(records: list[Record]) -> list[tuple[str, int]]:
    return [(one.job, one.rank) for one in records if isinstance(one, CollectiveProgress)]


def test_dumps_in_the_tmp_of_each_job_are_its_own(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    with job(folder) as first, job(folder) as second:
        first.dump(7)
        ranks = [LocalRank("a", 0, first.pid), LocalRank("a", 1, first.pid), LocalRank("b", 0, second.pid)]
        settings.local_jobs.replace({"a": NOBODY, "b": NOBODY}, ranks)
        dumps = DumpDirectory(str(folder / "rank_"), settings)
        assert dumps.collect() == []

        first.dump(0, NOBODY)
        second.dump(0, NOBODY)
        second.dump(1, NOBODY - 1)
        (folder / "rank_5").write_text(DUMP, encoding="ascii")
        assert seen(dumps.collect()) == [("node", 5), ("a", 0), ("b", 0)]
        assert dumps.collect() == []
    assert dumps.collect() == []


def test_the_tmp_that_a_job_shares_with_its_node_is_read_once(settings: Settings, tmp_path: Path) -> None:
    dumps = DumpDirectory(str(tmp_path / "rank_"), settings)
    settings.local_jobs.replace({"a": 0}, [LocalRank("a", 0, os.getpid())])
    (tmp_path / "rank_0").write_text(DUMP, encoding="ascii")
    assert seen(dumps.collect()) == [("node", 0)]


def test_a_link_in_a_jobs_file_system_is_not_followed_in_ours(settings: Settings, tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "tmp"
    elsewhere.mkdir()
    with job(folder, prepare=f"ln -s {elsewhere} {folder}/deep") as linked:
        settings.local_jobs.replace({"a": 0}, [LocalRank("a", 0, linked.pid)])
        dumps = DumpDirectory(str(folder / "deep" / "rank_"), settings)
        assert dumps.collect() == []
        (elsewhere / "rank_0").write_text(DUMP, encoding="ascii")
        assert dumps.collect() == []


def test_a_path_that_leads_out_of_a_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"`\.\.`"), opened_inside(tmp_path, Path("/../etc")):
        pass
