"""Segments in a /dev/shm of the job's own, as containers and SLURM's job_container/tmpfs give it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from nccl.driver import NEEDS_GCC, go_on, wait_for
from nccl.test_segment_owner import kept
from perfd_collectors.nccl.collector import NcclCollector, NcclOptions

from perfd.clock import VirtualClock
from perfd.collector import UNNAMED_JOB, Settings
from perfd.model import CollectiveTimes, Record

pytestmark = [
    NEEDS_GCC,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="a mount namespace needs root"
    ),
]
PRIVATE = """
mount -t tmpfs -o mode=1777 tmpfs /dev/shm && cp "$1" "$2" /dev/shm && cd /dev/shm && shift 2 && exec "$@"
"""
NODE_AGENT = ["sys_ptrace", "dac_read_search"]
"""The capabilities of the chart's agent with `ranks`."""


class Agent:
    """The agent of a node, with a directory of its own in which no process writes."""

    def __init__(self, directory: Path, job: str = UNNAMED_JOB) -> None:
        self._clock = VirtualClock()
        options = NcclOptions(directory=str(directory), flight_recorder_prefix=None)
        self.collector = NcclCollector(options, Settings(node="n", job=job, clock=self._clock))

    def windows(self, jobs: set[str], count: int = 3) -> dict[str, list[Record]]:
        """The records of a few windows by job; other tests may run containers on this machine."""
        found: dict[str, list[Record]] = {job: [] for job in jobs}
        for _ in range(count):
            self._clock.advance(1.0)
            for record in self.collector.collect():
                if isinstance(record, CollectiveTimes) and record.job in jobs:
                    found[record.job].append(record)
        return found


@contextmanager
def contained(
    built: Path, *, script: str = PRIVATE, become: Sequence[str] = (), **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A process in a mount namespace of its own, which records ten operations at a time."""
    files = [built / "driver", built / "libnccl-profiler-perfd.so"]
    driver = ["./driver", "./libnccl-profiler-perfd.so", "5", "bursts", "10"]
    kept_variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", *files, *become, *driver],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**kept_variables, "RANK": "0", "WORLD_SIZE": "2", "PERFD_NCCL_DIR": "", **variables},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def burst(process: subprocess.Popen[str], until: int) -> None:
    go_on(process)
    wait_for(process, str(until))


def test_each_job_s_operations_are_read_out_of_its_own_shared_memory(built: Path, tmp_path: Path) -> None:
    agent, jobs = Agent(tmp_path), {"private-a", "private-b"}
    with (
        contained(built, TORCHELASTIC_RUN_ID="private-a") as first,
        contained(built, TORCHELASTIC_RUN_ID="private-b", RANK="1") as second,
    ):
        for process in (first, second):
            wait_for(process, "0")
        agent.windows(jobs)
        burst(first, 10)
        burst(second, 10)
        burst(second, 20)
        found = agent.windows(jobs)
    agent.collector.close()

    assert {job: sorted(kept(records)) for job, records in found.items()} == {
        "private-a": list(range(10)),
        "private-b": list(range(20)),
    }
    assert {record.rank for record in found["private-b"] if isinstance(record, CollectiveTimes)} == {1}


def test_the_agent_of_a_slurm_job_leaves_out_other_jobs_of_its_node(built: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path, job="990001")
    with (
        contained(built, SLURM_JOB_ID="990001") as own,
        contained(built, SLURM_JOB_ID="990002", RANK="1") as other,
    ):
        for process in (own, other):
            wait_for(process, "0")
        agent.windows({"990001"})
        burst(own, 10)
        burst(other, 10)
        found = agent.windows({"990001"})["990001"]
    agent.collector.close()

    assert kept(found) == list(range(10))


@pytest.mark.parametrize("seen", ["own", "shared"])
def test_a_directory_that_a_container_shares_is_read_once(built: Path, tmp_path: Path, seen: str) -> None:
    for name in ("own", "shared"):
        (tmp_path / name).mkdir()
    script = f'cd {built} && mount --bind {tmp_path}/shared /dev/shm && shift 2 && exec "$@"'
    agent = Agent(tmp_path / seen)
    with contained(built, script=script, TORCHELASTIC_RUN_ID="private-d") as process:
        wait_for(process, "0")
        agent.windows({"private-d"})
        burst(process, 10)
        records = agent.windows({"private-d"})
    agent.collector.close()

    assert kept(records["private-d"]) == list(range(10))


def test_an_agent_that_may_only_read_reads_another_user_s_operations(built: Path, tmp_path: Path) -> None:
    become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    capabilities = ",".join(["-all", *(f"+{name}" for name in NODE_AGENT)])
    read = (
        "import sys; from pathlib import Path; from nccl.test_private_segments import Agent, kept\n"
        "agent, jobs = Agent(Path(sys.argv[1])), {'private-e'}\n"
        "agent.windows(jobs); print('opened', flush=True); input()\n"
        "print(kept(agent.windows(jobs)['private-e']))\n"
    )
    limited = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", sys.executable]
    with contained(built, become=become, TORCHELASTIC_RUN_ID="private-e") as process:
        wait_for(process, "0")
        agent = subprocess.Popen(
            [*limited, "-c", read, tmp_path],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_for(agent, "opened")
        burst(process, 10)
        printed, _ = agent.communicate("\n")
    assert (printed, agent.returncode) == (f"{list(range(10))}\n", 0)
