from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from perfd_collectors.ranks import SPEC, RanksCollector, RanksOptions

from perfd.clock import VirtualClock
from perfd.collector import CollectorSpec, PodJob, Settings
from perfd.errors import NothingHere, Unavailable
from perfd.model import Event, EventKind, JobOrigin, RankPlacement, Record, SampleTable
from perfd.testing.collector_contract import check_collector, check_unavailable
from tests.support.fake_node import FakeNode
from tests.support.fake_nvml import FakeGpu, FakeNvml, FakeProcess

NOW_NS = 1_700_000_000 * 10**9
STARTED_NS = NOW_NS + 10 * 10**9
"""A thousand ticks after the boot of `FakeNode`."""
UID = "0f7ac4f5-7a4c-4f0e-9a2a-6a5d8c1b2e3f"
POD = f"0::/kubepods/burstable/pod{UID}/{'ab' * 32}\n"
NO_NVML = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND


def torch(rank: int, size: int = 4, **more: str) -> dict[str, str]:
    """What torchrun gives one of `size` ranks of one node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
    } | more


class Job:
    """A node whose GPUs each hold one process, found by a collector."""

    def __init__(
        self,
        root: Path,
        fake: FakeNvml | None = None,
        *,
        options: RanksOptions | None = None,
        job: str = "default",
    ) -> None:
        self.node = FakeNode(root)
        self.nvml = fake or FakeNvml([FakeGpu() for _ in range(4)])
        self.settings = Settings(
            node="node0", job=job, clock=VirtualClock(NOW_NS), proc=self.node.proc, sys=self.node.sys
        )
        self._options = options or RanksOptions()
        self._collector: RanksCollector | None = None

    @property
    def spec(self) -> CollectorSpec:
        return replace(SPEC, create=lambda options, settings: RanksCollector(self.nvml, options, settings))

    def start(
        self, pid: int, environ: Mapping[str, str] | None, *, gpus: Sequence[int] = (), **more: object
    ) -> None:
        """Start a process that holds contexts on GPUs."""
        self.node.process(pid, environ, **more)  # type: ignore[arg-type]
        for gpu in gpus:
            self.hold(gpu, pid)

    def hold(self, gpu: int, pid: int, memory_bytes: int | None = 10 * 2**30) -> None:
        held = self.nvml.gpus[gpu]
        held.processes = [*held.processes, FakeProcess(pid=pid, memory_bytes=memory_bytes)]

    def end(self, pid: int) -> None:
        self.node.end_process(pid)
        for gpu in self.nvml.gpus:
            gpu.processes = [process for process in gpu.processes if process.pid != pid]

    def collect(self) -> Sequence[Record]:
        if self._collector is None:
            self._collector = RanksCollector(self.nvml, self._options, self.settings)
        records = self._collector.collect()
        self.settings.clock.sleep(5.0)
        return records


def placed(records: Sequence[Record]) -> dict[int, int | None]:
    """The GPU of each rank."""
    return {record.rank: record.gpu for record in records if isinstance(record, RankPlacement)}


def events(records: Sequence[Record]) -> list[tuple[EventKind, str | None]]:
    return [(record.kind, record.job) for record in records if isinstance(record, Event)]


def count(records: Sequence[Record], column: str) -> float:
    (table,) = (record for record in records if isinstance(record, SampleTable) and column in record.columns)
    return table.columns[column][0]


def test_the_collector_keeps_the_contract(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(4):
        job.start(100 + rank, torch(rank), gpus=[rank])
    records = check_collector(job.spec, job.settings, between=lambda: job.node.process(999, {}))
    assert placed(records) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert job.nvml.initialised == 0


def test_each_rank_is_where_its_process_holds_a_gpu(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(4):
        job.start(100 + rank, torch(rank, TORCHELASTIC_RUN_ID="run7"), gpus=[3 - rank], cgroup=POD)
    records = job.collect()
    assert records[0] == RankPlacement(
        job="run7",
        rank=0,
        local_rank=0,
        world_size=4,
        gpu=3,
        pid=100,
        pod_uid=UID,
        started_unix_ns=STARTED_NS,
    )
    assert placed(records) == {0: 3, 1: 2, 2: 1, 3: 0}
    assert count(records, "rank_processes") == 4
    assert count(records, "gpu_processes") == 4
    assert count(records, "unreadable_processes") == 0


def test_placements_are_said_when_they_change_and_every_half_minute(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0), gpus=[0])
    said = [len(placed(job.collect())) for _ in range(7)]
    assert said == [1, 0, 0, 0, 0, 0, 1]
    job.start(101, torch(1), gpus=[1])
    assert placed(job.collect()) == {1: 1}


def test_a_job_starts_and_ends_with_its_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert events(job.collect()) == []
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    job.start(101, torch(1, SLURM_JOB_ID="77"), gpus=[1])
    assert events(job.collect()) == [(EventKind.JOB_STARTED, "77")]
    job.end(100)
    assert events(job.collect()) == []
    job.end(101)
    assert events(job.collect()) == [(EventKind.RANKS_GONE, "77")]
    assert events(job.collect()) == []


def test_a_job_starts_with_its_processes_however_late_the_agent_does(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.settings.clock.sleep(3600.0)
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    (event,) = (record for record in job.collect() if isinstance(record, Event))
    assert (event.kind, event.time_unix_ns) == (EventKind.JOB_STARTED, STARTED_NS)


def test_a_process_under_the_pid_of_an_earlier_one_is_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    job.collect()
    job.node.process(100, torch(0, SLURM_JOB_ID="77"), start_ticks=9999)
    assert events(job.collect()) == [(EventKind.RESTARTED, "77")]


def test_new_processes_for_every_rank_are_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    job.collect()
    job.end(100)
    job.start(200, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    records = job.collect()
    assert events(records) == [(EventKind.RESTARTED, "77")]
    assert placed(records) == {0: 0}


def test_two_jobs_on_a_node_are_distinguished(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, 1, SLURM_JOB_ID="77"), gpus=[0])
    job.start(101, torch(0, 1, SLURM_JOB_ID="78"), gpus=[1])
    records = job.collect()
    found = {(record.job, record.rank, record.gpu) for record in records if isinstance(record, RankPlacement)}
    assert found == {("77", 0, 0), ("78", 0, 1)}


def test_the_agent_of_one_job_of_slurm_leaves_the_others_on_its_node_to_theirs(tmp_path: Path) -> None:
    job = Job(tmp_path, job="77")
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    job.start(101, torch(1, SLURM_JOB_ID="78"), gpus=[1])
    job.start(102, torch(2, SLURM_JOB_ID="80", SLURM_ARRAY_JOB_ID="77", SLURM_ARRAY_TASK_ID="3"), gpus=[2])
    assert [record.pid for record in job.collect() if isinstance(record, RankPlacement)] == [100]


def test_ranks_in_a_pod_are_of_the_pods_job_whatever_they_say(tmp_path: Path) -> None:
    other = UID.replace("0f7ac4f5", "1f7ac4f5")
    job = Job(tmp_path)
    job.start(100, torch(0, 1, PERFD_NAMESPACE="vision", PERFD_CLUSTER="mine"), gpus=[0], cgroup=POD)
    job.start(101, torch(0, 1), gpus=[1], cgroup=POD.replace(UID, other))
    job.settings.pod_jobs.replace(
        {
            UID: PodJob("research/pretrain", "research", own_agent=False, cluster="east"),
            other: PodJob("vision/pretrain", "vision", own_agent=False),
        }
    )
    records = job.collect()
    found = {(record.job, record.rank, record.gpu) for record in records if isinstance(record, RankPlacement)}
    assert found == {("research/pretrain", 0, 0), ("vision/pretrain", 0, 1)}
    whose = {
        record.job: (record.cluster, record.namespace) for record in records if isinstance(record, JobOrigin)
    }
    assert whose == {"research/pretrain": ("east", "research"), "vision/pretrain": ("", "vision")}


def test_ranks_of_a_pod_with_an_agent_of_its_own_are_left_to_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, 1), gpus=[0], cgroup=POD)
    job.settings.pod_jobs.replace({UID: PodJob("research/pretrain", "research", own_agent=True)})
    assert placed(job.collect()) == {}


@pytest.mark.parametrize("name", ["80", "77_3"])
def test_an_agent_may_be_called_by_either_name_of_an_arrays_task(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, job=name)
    job.start(100, torch(0, 1, SLURM_JOB_ID="80", SLURM_ARRAY_JOB_ID="77", SLURM_ARRAY_TASK_ID="3"), gpus=[0])
    assert events(job.collect()) == [(EventKind.JOB_STARTED, name)]


def test_a_job_that_an_operator_named_keeps_that_name(tmp_path: Path) -> None:
    job = Job(tmp_path, job="llama")
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    assert events(job.collect()) == [(EventKind.JOB_STARTED, "llama")]


def test_a_job_that_nobody_named_has_the_agents_name(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, TORCHELASTIC_RUN_ID="none"), gpus=[0])
    assert events(job.collect()) == [(EventKind.JOB_STARTED, "default")]


def test_a_process_of_another_user_that_claims_to_be_a_rank_of_the_job_is_left_out(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(90, torch(0, SLURM_JOB_ID="77"), gpus=[], uid=65534)
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0], uid=1001)
    job.start(101, torch(1, SLURM_JOB_ID="77"), gpus=[1], uid=1001)
    records = job.collect()
    assert placed(records) == {0: 0, 1: 1}
    job.start(80, torch(2, SLURM_JOB_ID="77"), gpus=[2], uid=65534)
    records = job.collect()
    assert count(records, "foreign_rank_processes") == 1
    assert 2 not in placed(records)


def test_whose_job_it_is_comes_from_the_scheduler_and_the_kernel(tmp_path: Path) -> None:
    job = Job(tmp_path)
    slurm = {"SLURM_JOB_ID": "77", "SLURM_CLUSTER_NAME": "alps", "SLURM_JOB_NODELIST": "n[08-10]"}
    job.start(
        100, torch(0, **slurm, SLURM_RESTART_COUNT="1", TORCHELASTIC_RESTART_COUNT="2"), gpus=[0], uid=1001
    )
    expected = JobOrigin(
        job="77",
        cluster="alps",
        owner="uid:1001",
        nodes=("n08", "n09", "n10"),
        scheduler_restarts=1,
        launcher_restarts=2,
    )
    assert [record for record in job.collect() if isinstance(record, JobOrigin)] == [expected]
    assert not [record for record in job.collect() if isinstance(record, JobOrigin)]


def test_the_users_of_a_pod_are_not_those_of_other_nodes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, TORCHELASTIC_RESTART_COUNT="0"), gpus=[0], uid=165536, cgroup=POD)
    (origin,) = [record for record in job.collect() if isinstance(record, JobOrigin)]
    assert origin.owner == ""


def test_a_rank_that_holds_a_little_on_other_gpus_is_on_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(4):
        job.start(100 + rank, torch(rank), gpus=[rank])
        if rank:
            job.hold(0, 100 + rank, memory_bytes=500 * 2**20)
    assert placed(job.collect()) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_the_mps_server_is_no_rank(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(50, torch(0), gpus=[0, 1, 2, 3], name="nvidia-cuda-mps")
    job.start(100, torch(1), gpus=[1])
    records = job.collect()
    assert placed(records) == {1: 1}
    assert count(records, "gpu_processes") == 1


def test_a_gpu_process_that_is_no_rank_is_counted_and_not_placed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, {"PATH": "/bin"}, gpus=[0])
    records = job.collect()
    assert placed(records) == {}
    assert count(records, "gpu_processes") == 1


def test_an_environment_that_may_not_be_read_is_counted_and_no_error(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, None, gpus=[0])
    job.start(101, torch(1), gpus=[1])
    records = job.collect()
    assert placed(records) == {1: 1}
    assert count(records, "unreadable_processes") == 1


def test_a_process_that_nvml_lists_and_that_has_ended_is_left_out(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.hold(0, 4242)
    job.start(101, torch(1), gpus=[1])
    assert placed(job.collect()) == {1: 1}


def test_a_pid_of_a_container_is_found_by_its_namespace(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(50_000, torch(0), inner_pids=[7])
    job.hold(2, 7)
    assert placed(job.collect()) == {0: 2}


def test_a_pid_that_two_containers_have_is_nobodys(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(50_000, torch(0, 1), inner_pids=[7])
    job.start(60_000, torch(0, 1, SLURM_JOB_ID="other"), inner_pids=[7])
    job.hold(2, 7)
    assert set(placed(job.collect()).values()) <= {None}


def test_inside_of_a_container_where_nvml_lists_nothing_ranks_are_found_by_their_environment(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    for rank in range(4):
        job.start(100 + rank, torch(rank))
    assert placed(job.collect()) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_shell_in_an_allocation_is_no_rank(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "77"}, name="bash")
    assert placed(job.collect()) == {}


def test_a_lost_gpu_leaves_the_ranks_of_the_others(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(4):
        job.start(100 + rank, torch(rank), gpus=[rank])
    job.nvml.gpus[2].lost = True
    assert placed(job.collect()) == {0: 0, 1: 1, 3: 3}


def test_without_nvml_and_without_a_command_it_says_why(tmp_path: Path) -> None:
    job = Job(tmp_path, FakeNvml(init_code=NO_NVML))
    job.node.put_in_gpu()
    assert "which NVML cannot list" in check_unavailable(job.spec, job.settings)


def test_on_a_node_without_gpus_there_are_no_ranks_to_find(tmp_path: Path) -> None:
    job = Job(tmp_path, FakeNvml(init_code=NO_NVML))
    with pytest.raises(NothingHere):
        job.spec.create(RanksOptions(), job.settings)


def test_a_driver_that_goes_away_makes_the_source_unavailable(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.collect()
    job.nvml.initialised = 0
    with pytest.raises(Unavailable, match="driver is not loaded"):
        job.collect()


def launched(job: Job, *, dataloaders: bool = False, launcher: Mapping[str, str] | None = None) -> None:
    """`perfd run -- torchrun`: a launcher 10, ranks 100 to 103, and data loaders of each."""
    job.start(10, launcher or {})
    for rank in range(4):
        job.start(100 + rank, torch(rank), parent=10)
        if dataloaders:
            job.start(1000 + rank, torch(rank), parent=100 + rank)


def test_the_descendants_of_a_command_are_enough_without_nvml(tmp_path: Path) -> None:
    job = Job(tmp_path, FakeNvml(init_code=NO_NVML), options=RanksOptions(root_pid=10), job="run")
    launched(job)
    job.start(900, torch(0, 1))
    records = job.collect()
    assert placed(records) == {0: None, 1: None, 2: None, 3: None}
    assert {record.pid for record in records if isinstance(record, RankPlacement)} == {100, 101, 102, 103}
    assert events(records) == [(EventKind.JOB_STARTED, "run")]


def test_only_the_command_is_watched_and_its_gpus_are_by_nvml(tmp_path: Path) -> None:
    job = Job(tmp_path, options=RanksOptions(root_pid=10), job="run")
    launched(job)
    for rank in range(3):
        job.hold(rank + 1, 100 + rank)
    job.start(900, torch(0, 1, SLURM_JOB_ID="77"), gpus=[0])
    records = job.collect()
    assert {record.job for record in records if isinstance(record, RankPlacement)} == {"run"}
    # Rank 3 has no context yet: of four ranks on four GPUs, it is to take its own.
    assert placed(records) == {0: 1, 1: 2, 2: 3, 3: 3}


def test_data_loaders_are_not_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path, FakeNvml(init_code=NO_NVML), options=RanksOptions(root_pid=10))
    launched(job, dataloaders=True)
    # Pids wrap around: a child may have a lower one than its parent.
    job.start(20, torch(0), parent=100)
    records = job.collect()
    assert count(records, "rank_processes") == 4
    assert {record.pid for record in records if isinstance(record, RankPlacement)} == {100, 101, 102, 103}


@pytest.mark.parametrize(
    "launcher",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0"},
    ],
)
def test_a_launcher_whose_environment_looks_like_a_ranks_is_none(
    tmp_path: Path, launcher: Mapping[str, str]
) -> None:
    job = Job(tmp_path, FakeNvml(init_code=NO_NVML), options=RanksOptions(root_pid=10))
    launched(job, dataloaders=True, launcher=launcher)
    records = job.collect()
    assert {record.pid for record in records if isinstance(record, RankPlacement)} == {100, 101, 102, 103}


def test_a_kernel_without_lists_of_children_is_walked_by_parents(tmp_path: Path) -> None:
    job = Job(tmp_path, FakeNvml(init_code=NO_NVML), options=RanksOptions(root_pid=10))
    launched(job)
    for path in job.node.proc.glob("*/task/*/children"):
        path.unlink()
    assert len(placed(job.collect())) == 4


def test_a_command_of_one_process_is_rank_zero(tmp_path: Path) -> None:
    job = Job(tmp_path, options=RanksOptions(root_pid=10), job="run")
    job.start(10, {}, gpus=[2])
    records = job.collect()
    assert records[0] == RankPlacement(
        job="run", rank=0, local_rank=0, world_size=1, gpu=2, pid=10, started_unix_ns=STARTED_NS
    )


@pytest.mark.parametrize("variables", [torch(0, 1), {}], ids=["launched", "alone"])
def test_the_time_limit_of_slurm_comes_with_each_rank(tmp_path: Path, variables: dict[str, str]) -> None:
    job = Job(tmp_path, options=RanksOptions(root_pid=10), job="run")
    job.start(10, variables | {"SLURM_JOB_END_TIME": "1700000900"}, gpus=[2])
    (placement,) = (record for record in job.collect() if isinstance(record, RankPlacement))
    assert placement.time_limit_unix_s == 1_700_000_900.0


def test_of_several_processes_without_a_rank_none_is_guessed(tmp_path: Path) -> None:
    job = Job(tmp_path, options=RanksOptions(root_pid=10), job="run")
    job.start(10, {}, gpus=[0])
    job.start(11, {}, parent=10, gpus=[1])
    assert placed(job.collect()) == {}


def test_a_command_that_ended_has_no_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path, options=RanksOptions(root_pid=10), job="run")
    assert placed(job.collect()) == {}


def test_an_environment_seen_between_fork_and_exec_is_read_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, {"PATH": "/bin"}, gpus=[0])
    assert placed(job.collect()) == {}
    job.node.process(100, torch(0))
    assert placed(job.collect()) == {0: 0}


def test_a_pid_that_was_used_again_is_another_process(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, SLURM_JOB_ID="77"), gpus=[0])
    for _ in range(3):
        job.collect()
    job.node.process(100, torch(0, SLURM_JOB_ID="78"), start_ticks=9999)
    assert set(events(job.collect())) == {(EventKind.RANKS_GONE, "77"), (EventKind.JOB_STARTED, "78")}


def test_this_very_process_can_be_watched() -> None:
    fake = FakeNvml(init_code=NO_NVML)
    settings = Settings(node="node0", job="run")
    collector = RanksCollector(fake, RanksOptions(root_pid=os.getpid()), settings)
    assert count(collector.collect(), "unreadable_processes") == 0


@pytest.mark.parametrize("run", ["", "another"])
def test_two_jobs_under_one_name_are_said_and_no_restart(tmp_path: Path, run: str) -> None:
    job = Job(tmp_path, job="both")
    for pid, rank in ((100, 0), (101, 1)):
        job.start(pid, torch(rank, 2), gpus=[rank])
    assert events(job.collect()) == [(EventKind.JOB_STARTED, "both")]
    for pid, rank in ((90, 0), (91, 1)):
        job.start(pid, torch(rank, 2, TORCHELASTIC_RUN_ID=run), gpus=[rank])
    first, second = job.collect(), job.collect()
    assert not placed(first), "the ranks are still where they were"
    assert events(first) == [], "an earlier process may still end"
    (event,) = (record for record in second if isinstance(record, Event))
    assert event.kind is EventKind.RANKS_DOUBLED
    assert event.values == {"ranks": 2.0, "on_same_gpus": 2.0}
    assert "PIDs 90, 100, 91, 101" in event.message
    job.settings.clock.sleep(60.0)
    job.collect()
    job.end(100)
    job.end(101)
    assert EventKind.RESTARTED not in {kind for kind, _ in (*events(job.collect()), *events(job.collect()))}


def test_a_doubled_rank_that_is_one_process_again_is_said(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, 1), gpus=[0])
    job.start(101, torch(0, 1), gpus=[1])
    job.collect()
    (event,) = (record for record in job.collect() if isinstance(record, Event))
    assert event.values == {"ranks": 1.0, "on_same_gpus": 0.0}
    job.end(101)
    said = [record for _ in range(3) for record in job.collect() if isinstance(record, Event)]
    assert [one.values["ranks"] for one in said] == [0.0]


def test_a_child_with_its_ranks_variables_and_gpu_doubles_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(100, torch(0, 1), gpus=[0])
    job.start(101, torch(0, 1), gpus=[0], parent=100)
    assert not [record for _ in range(3) for record in job.collect() if isinstance(record, Event)][1:]
