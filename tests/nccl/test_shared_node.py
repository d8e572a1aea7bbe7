"""Two SLURM jobs on a node whose agent stays: ranks, NCCL and hook know which job a process is of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from nccl.driver import NEEDS_GCC, driving, go_on, wait_for
from perfd_collectors.hook import SPEC as HOOK
from perfd_collectors.hook.collector import HookOptions
from perfd_collectors.nccl.collector import NcclCollector, NcclOptions
from perfd_collectors.ranks import RanksCollector, RanksOptions
from perfd_collectors.slurm_jobs import SlurmJobsCollector, SlurmJobsOptions

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import (
    CollectiveTimes,
    Event,
    EventKind,
    JobOrigin,
    RankPlacement,
    Record,
    StepPhases,
    TrainingStep,
)
from tests.support.fake_nvml import FakeGpu, FakeNvml, FakeProcess

pytestmark = NEEDS_GCC

FIRST, SECOND = (str(1_500_000_000 + 2 * os.getpid() + number) for number in range(2))
"""Numbers that no SLURM on this machine has given."""
TRAINER = """
import os, sys
from perfd.hook import StepTimer
timer = StepTimer(rank=3, world_size=8, warmup_steps=0, socket_path=sys.argv[1])
for step in range(int(sys.argv[2])):
    with timer.step(), timer.phase("forward"):
        pass
print("sent", flush=True)
sys.stdin.read()
"""


class SharedNode:
    """One agent's collectors, over processes of two jobs that each hold a GPU."""

    def __init__(self, folder: Path, built: Path) -> None:
        self._stack = ExitStack()
        self._built, self._folder = built, folder
        self.jobs = folder / "slurm" / "n1" / "jobs"
        self.jobs.mkdir(parents=True)
        self.clock = VirtualClock()
        self.nvml = FakeNvml([FakeGpu(), FakeGpu()])
        settings = Settings(node="n1", job="default", clock=self.clock)
        self.settings = settings
        self._socket = str(folder / "hook.sock")
        nccl = NcclOptions(directory=str(folder), flight_recorder_prefix=None)
        self.collectors = [
            SlurmJobsCollector(SlurmJobsOptions(directory=str(folder / "slurm")), settings),
            NcclCollector(nccl, settings),
            RanksCollector(self.nvml, RanksOptions(), settings),
            HOOK.create(HookOptions(listen_s=0.0, socket=self._socket), settings),
        ]
        for collector in self.collectors:
            self._stack.callback(collector.close)

    def begins(self, number: str, gpu: int, operations: int) -> subprocess.Popen[str]:
        """A job of rank 3, whose process plays NCCL's part; the Prolog wrote its file."""
        known = {"SLURM_JOB_ID": number, "SLURM_JOB_UID": os.geteuid(), "SLURM_JOB_USER": "ada"}
        text = "".join(f"{name}={value}\n" for name, value in known.items())
        (self.jobs / f"{number}-0").write_text(f"{text}SLURM_RESTART_COUNT=0\nPERFD_LOG=none\n")
        environ = {"SLURM_JOB_ID": number, "SLURM_ARRAY_JOB_ID": "", "TORCHELASTIC_RUN_ID": ""}
        process = self._stack.enter_context(
            driving(self._built, self._folder, 5, "bursts", operations, **environ)
        )
        self.nvml.gpus[gpu].processes = [FakeProcess(pid=process.pid, memory_bytes=2**30)]
        return process

    def times(self, number: str, steps: int) -> None:
        """A process of the job reports steps by the hook."""
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, self._socket, str(steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "SLURM_JOB_ID": number, "SLURM_ARRAY_JOB_ID": "", "TORCHELASTIC_RUN_ID": ""},
        )
        self._stack.callback(process.communicate)
        assert process.stdout is not None
        assert process.stdout.readline() == b"sent\n"

    def ends(self, number: str, gpu: int, process: subprocess.Popen[str]) -> None:
        """The job's process is gone, and the Epilog wrote how it ended."""
        process.kill()
        process.wait()
        self.nvml.gpus[gpu].processes = []
        (self.jobs / f"{number}-0.end").write_text("exit_code=3\n")

    def collect(self) -> list[Record]:
        self.clock.advance(5.0)
        return [record for collector in self.collectors for record in collector.collect()]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def node(tmp_path: Path, built: Path) -> Iterator[SharedNode]:
    node = SharedNode(tmp_path, built)
    yield node
    node.close()


def operations(records: Sequence[Record]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in records:
        if isinstance(record, CollectiveTimes):
            found.setdefault(record.job, []).extend(record.sequences)
    return found


def phases(records: Sequence[Record]) -> dict[str, int]:
    jobs = [record.job for record in records if isinstance(record, StepPhases)]
    return {job: jobs.count(job) for job in jobs}


def test_two_jobs_with_the_same_rank_on_one_node_stay_two(node: SharedNode) -> None:
    first, second = node.begins(FIRST, 0, 10), node.begins(SECOND, 1, 6)
    for process in (first, second):
        wait_for(process, "0")
    node.times(FIRST, 3)
    node.times(SECOND, 5)
    records = node.collect()
    go_on(first)
    go_on(second)
    wait_for(first, "10")
    wait_for(second, "6")
    for _ in range(2):
        records += node.collect()

    placed = {(one.job, one.rank): (one.gpu, one.pid) for one in records if isinstance(one, RankPlacement)}
    assert placed == {(FIRST, 3): (0, first.pid), (SECOND, 3): (1, second.pid)}
    assert operations(records) == {FIRST: list(range(10)), SECOND: list(range(6))}
    # The first step is left out.
    assert phases(records) == {FIRST: 2, SECOND: 4}
    named = {
        one.job for one in records if isinstance(one, RankPlacement | JobOrigin | TrainingStep | StepPhases)
    }
    assert named == {FIRST, SECOND}


def test_the_end_of_one_job_leaves_the_other_as_it_is(node: SharedNode) -> None:
    first, second = node.begins(FIRST, 0, 10), node.begins(SECOND, 1, 6)
    for process in (first, second):
        wait_for(process, "0")
    node.collect()
    node.ends(FIRST, 0, first)
    records = node.collect()
    go_on(second)
    wait_for(second, "6")
    for _ in range(2):
        records += node.collect()

    happened = [(one.kind, one.job) for one in records if isinstance(one, Event)]
    assert (EventKind.JOB_ENDED, FIRST) in happened
    assert {job for _, job in happened} == {FIRST}
    assert operations(records) == {SECOND: list(range(6))}
    assert node.settings.local_jobs.scheduled.keys() == {SECOND}
    assert {rank.job for rank in node.settings.local_jobs.ranks()} == {SECOND}
