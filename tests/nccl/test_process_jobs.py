"""The job to which a process's operations belong, also while the process ends."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest
from nccl.driver import NEEDS_GCC, driving, go_on, wait_for
from nccl.test_segment_owner import HOST_PID, ME, kept, node, ranks
from nccl.test_segments import make
from perfd_collectors.nccl.collector import NcclCollector, NcclOptions
from perfd_collectors.ranks.process_jobs import ProcessJobs

from perfd.clock import VirtualClock
from perfd.collector import UNNAMED_JOB, PodJob, Settings
from perfd.model import CollectiveTimes

POD = "01234567-89ab-cdef-0123-456789abcdef"


def settings(proc: Path, job: str = UNNAMED_JOB) -> Settings:
    return Settings(node="n", job=job, clock=VirtualClock(), proc=proc)


def process(proc: Path, environment: str = "", cgroup: str = "/") -> None:
    folder = proc / str(HOST_PID)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environ").write_text(environment.replace(" ", "\0"))
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.mark.parametrize(
    ("environment", "cgroup", "job"),
    [
        ("TORCHELASTIC_RUN_ID=a", "/", "a"),
        ("SLURM_JOB_ID=12 SLURM_ARRAY_JOB_ID=11 SLURM_ARRAY_TASK_ID=3", "/slurm/uid_1/job_12/step_0", "11_3"),
        ("", "/slurm/uid_1/job_12/step_0", "12"),
        ("HOME=/", f"/kubepods/pod{POD}/x", "of-pod"),
    ],
)
def test_a_process_that_has_ended_is_of_the_job_that_it_was_of(
    tmp_path: Path, environment: str, cgroup: str, job: str
) -> None:
    node_settings = settings(tmp_path)
    node_settings.pod_jobs.replace({POD: PodJob("of-pod", "team", own_agent=False)})
    jobs = ProcessJobs(node_settings)
    process(tmp_path, environment, cgroup)

    assert jobs.job_of(HOST_PID) == job
    process(tmp_path)
    assert jobs.job_of(HOST_PID) == job, "a zombie"
    shutil.rmtree(tmp_path / str(HOST_PID))
    assert jobs.job_of(HOST_PID) == job
    jobs.keep([])
    assert jobs.job_of(HOST_PID) == UNNAMED_JOB, "another process may have its number"


def test_a_number_that_another_process_has_is_of_that_one(tmp_path: Path) -> None:
    jobs = ProcessJobs(settings(tmp_path))
    process(tmp_path, "TORCHELASTIC_RUN_ID=a")
    jobs.job_of(HOST_PID)
    process(tmp_path, "TORCHELASTIC_RUN_ID=b")

    assert jobs.job_of(HOST_PID) == "b"


@NEEDS_GCC
def test_the_last_operations_are_of_the_same_job_as_all_before(built: Path, tmp_path: Path) -> None:
    node_settings = settings(Path("/proc"))
    options = NcclOptions(directory=str(tmp_path), flight_recorder_prefix=None)
    collector = NcclCollector(options, node_settings)
    clock = node_settings.clock
    assert isinstance(clock, VirtualClock)
    with driving(
        built, tmp_path, 5, "bursts", 10, TORCHELASTIC_RUN_ID="a", SLURM_JOB_ID="", SLURM_ARRAY_JOB_ID=""
    ) as job:
        wait_for(job, "0")
        collector.collect()
        go_on(job)
        wait_for(job, "10")
    clock.advance(1.0)
    records = list(collector.collect())
    collector.close()

    assert kept(records) == list(range(10))
    assert {record.job for record in records if isinstance(record, CollectiveTimes)} == {"a"}


def test_a_pod_s_own_agent_may_become_known_after_its_process(tmp_path: Path) -> None:
    path = make(tmp_path / "perfd-nccl-7-1")
    proc = node(tmp_path, inode=path.stat().st_ino, uid=ME)
    process(proc, "HOME=/", f"/kubepods/pod{POD}/x")
    node_settings = settings(proc)
    options = NcclOptions(directory=str(tmp_path), flight_recorder_prefix=None)
    collector = NcclCollector(options, node_settings)
    clock = node_settings.clock
    assert isinstance(clock, VirtualClock)

    def window() -> set[str]:
        clock.advance(1.0)
        return ranks(list(collector.collect()))

    with path.open() as segment:
        # As the process does while it lives.
        fcntl.flock(segment, fcntl.LOCK_EX)
        assert window() == window() != set()
        node_settings.pod_jobs.replace({POD: PodJob("of-pod", "team", own_agent=True)})
        assert window() == window() == set()
        assert path.exists()
    collector.close()
