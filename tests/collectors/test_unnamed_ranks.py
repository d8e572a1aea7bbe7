"""Ranks of processes whose environment names none: by parents, GPUs, communicators and threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from collectors.test_ranks import NO_NVML, Job, count, events, placed
from perfd_collectors.ranks import RanksOptions
from perfd_collectors.ranks.unnamed_ranks import parse_pci_address

from perfd.collector import NumberedRank, PciAddress
from perfd.model import EventKind, RankPlacement, Record
from tests.support.fake_nvml import FakeNvml

GIB = 2**30


def run(root: Path, fake: FakeNvml | None = None) -> Job:
    return Job(root, fake, options=RanksOptions(root_pid=10), job="run")


def pids(records: Sequence[Record]) -> dict[int, int | None]:
    return {record.rank: record.pid for record in records if isinstance(record, RankPlacement)}


def lightning(rank: int, size: int, **more: str) -> dict[str, str]:
    """What Lightning's own launcher gives the ranks that it starts; seen with Lightning 2.6."""
    return {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(size)} | more


def address(gpu: int) -> PciAddress:
    """As `FakeNvml` has it."""
    return PciAddress(0, 0x18 + gpu, 0)


def test_a_process_that_starts_ranks_1_to_n_is_rank_0(tmp_path: Path) -> None:
    job = run(tmp_path, FakeNvml(init_code=NO_NVML))
    job.start(10, {})
    for rank in (1, 2, 3):
        job.start(100 + rank, lightning(rank, 4), parent=10)
        job.start(200 + rank, lightning(rank, 4), parent=100 + rank)
    job.start(300, {}, parent=10)
    records = job.collect()
    assert pids(records) == {0: 10, 1: 101, 2: 102, 3: 103}
    assert {one.world_size for one in records if isinstance(one, RankPlacement)} == {4}


def test_local_ranks_of_another_node_are_not_ranks_of_the_job(tmp_path: Path) -> None:
    job = run(tmp_path, FakeNvml(init_code=NO_NVML))
    job.start(10, {})
    for rank in (1, 2, 3):
        job.start(100 + rank, lightning(rank, 8, NODE_RANK="1"), parent=10)
    assert pids(job.collect()) == {}


def test_a_launcher_that_is_no_rank_stays_none(tmp_path: Path) -> None:
    job = run(tmp_path, FakeNvml(init_code=NO_NVML))
    job.start(10, {})
    for rank in (0, 1):
        job.start(100 + rank, lightning(rank, 2), parent=10)
    assert pids(job.collect()) == {0: 100, 1: 101}


def test_each_gpu_of_one_process_is_a_rank_once_two_looks_agree(tmp_path: Path) -> None:
    job = run(tmp_path)
    job.start(10, {})
    for gpu in (1, 2, 3):
        job.hold(gpu, 10, memory_bytes=100 * GIB)
    job.hold(0, 10, memory_bytes=GIB // 2)
    assert placed(job.collect()) == {}
    records = job.collect()
    assert placed(records) == {0: 1, 1: 2, 2: 3}
    assert set(pids(records).values()) == {10}
    assert events(records) == [(EventKind.JOB_STARTED, "run")]
    assert count(records, "rank_processes") == 3


def test_siblings_with_a_gpu_each_are_numbered_by_their_gpus(tmp_path: Path) -> None:
    job = run(tmp_path)
    job.start(10, {})
    job.start(11, {}, parent=10, gpus=[1])
    job.start(12, {}, parent=10, gpus=[0])
    job.collect()
    assert pids(job.collect()) == {0: 12, 1: 11}
    # A second process on a GPU: it is no longer certain who is a rank.
    job.start(13, {}, parent=10, gpus=[1])
    job.collect()
    assert count(job.collect(), "rank_processes") == 0


def test_communicators_number_processes_without_a_rank(tmp_path: Path) -> None:
    job = run(tmp_path)
    job.start(10, {})
    job.start(11, {}, parent=10, gpus=[0])
    job.start(12, {}, parent=10, gpus=[1])
    job.settings.communicating_ranks.replace(
        {11: [NumberedRank(1, 2, address(0))], 12: [NumberedRank(0, 2, address(1))]}
    )
    records = job.collect()
    assert pids(records) == {0: 12, 1: 11}
    assert placed(records) == {0: 1, 1: 0}


def test_communicators_name_the_gpu_of_each_rank_of_a_process(tmp_path: Path) -> None:
    job = run(tmp_path)
    job.start(10, {}, gpus=[0, 1, 2, 3])
    ranks = [NumberedRank(rank, 4, address(3 - rank)) for rank in range(4)]
    job.settings.communicating_ranks.replace({10: ranks})
    records = job.collect()
    assert placed(records) == {0: 3, 1: 2, 2: 1, 3: 0}
    assert {one.world_size for one in records if isinstance(one, RankPlacement)} == {4}


def test_a_task_of_slurm_that_starts_the_ranks_itself_is_none_of_them(tmp_path: Path) -> None:
    """`srun` starts one task, which starts one process for each GPU by `torch.multiprocessing.spawn`."""
    task = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "77"}
    job = Job(tmp_path)
    job.start(10, task)
    for rank in range(2):
        job.start(11 + rank, task, parent=10, gpus=[rank])
    job.settings.communicating_ranks.replace(
        {11 + rank: [NumberedRank(rank, 2, address(rank))] for rank in range(2)}
    )
    records = job.collect()
    assert pids(records) == {0: 11, 1: 12}
    assert events(records) == [(EventKind.JOB_STARTED, "77")]


def test_a_process_that_communicates_is_found_where_nvml_lists_others_only(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(90, {}, gpus=[0])
    job.start(11, {"SLURM_JOB_ID": "77"})
    job.settings.communicating_ranks.replace({11: [NumberedRank(3, 8, address(2))]})
    records = job.collect()
    assert placed(records) == {3: 2}
    assert pids(records) == {3: 11}


SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6)"
"""As seen under Python 3.11."""


def spawned(
    job: Job, pid: int, *threads: str, ticks: int = 1000, parent: int = 10, command: str = SPAWN
) -> None:
    job.start(pid, {}, parent=parent, start_ticks=ticks)
    job.node.write_proc(f"{pid}/cmdline", f"python\0-c\0{command}\0")
    for at, name in enumerate(("python", *threads)):
        job.node.write_proc(f"{pid}/task/{pid + 1000 * at}/comm", f"{name}\n")


@pytest.fixture
def spawn(tmp_path: Path) -> Job:
    """Two ranks as `torch.multiprocessing.spawn` starts them, with PIDs that began anew between them."""
    job = run(tmp_path, FakeNvml(init_code=NO_NVML))
    job.start(10, {})
    spawned(job, 90, "pt_tcpstore_uv", "pt_gloo_runloop", ticks=1000)
    spawned(job, 20, "pt_gloo_runloop", ticks=1001)
    return job


def test_processes_of_a_group_are_numbered_in_the_order_in_which_they_were_spawned(spawn: Job) -> None:
    spawned(spawn, 200, parent=20)  # It loads data.
    assert pids(spawn.collect()) == {}
    records = spawn.collect()
    assert pids(records) == {0: 90, 1: 20}
    assert {(one.rank, one.local_rank) for one in records if isinstance(one, RankPlacement)} == {
        (0, 0),
        (1, 1),
    }


def test_processes_that_fork_started_are_numbered_too(spawn: Job) -> None:
    for pid in (10, 20, 90):
        spawn.node.write_proc(f"{pid}/cmdline", "python\0train.py\0")
    spawn.collect()
    assert pids(spawn.collect()) == {0: 90, 1: 20}


def test_a_process_that_joins_a_group_later_is_waited_for(spawn: Job) -> None:
    spawn.collect()
    spawned(spawn, 21, "pt_gloo_runloop", ticks=1002)
    assert pids(spawn.collect()) == {}
    assert pids(spawn.collect()) == {0: 90, 1: 20, 2: 21}
    # Once numbered they stay so.
    spawn.end(20)
    repeated = [pids(spawn.collect()) for _ in range(10)]
    assert {0: 90, 2: 21} in repeated
    assert {rank for said in repeated for rank in said} == {0, 2}


@pytest.mark.parametrize(
    "unlike",
    [
        pytest.param({"pid": 20, "command": "import train"}, id="started by hand"),
        pytest.param({"pid": 90, "ticks": 1002}, id="the second one serves the store"),
        pytest.param({"pid": 20, "threads": ("pt_gloo_runloop", "pt_tcpstore")}, id="both serve a store"),
        pytest.param({"pid": 20, "parent": 90}, id="one started the other"),
        pytest.param({"pid": 90, "threads": ("pt_gloo_runloop",)}, id="a later node"),
    ],
)
def test_processes_whose_order_is_not_certain_are_not_numbered(spawn: Job, unlike: dict) -> None:
    threads = {90: ("pt_tcpstore_uv", "pt_gloo_runloop"), 20: ("pt_gloo_runloop",)}[unlike["pid"]]
    changed = {"ticks": 1000 if unlike["pid"] == 90 else 1001} | unlike
    pid, threads = changed.pop("pid"), changed.pop("threads", threads)
    spawn.end(pid)
    spawned(spawn, pid, *threads, **changed)
    spawn.collect()
    assert pids(spawn.collect()) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", PciAddress(0, 27, 0)),
        ("00000001:00:06.0", PciAddress(1, 0, 6)),
        ("", None),
        ("b'00000000:1B:00.0'", None),
        ("1B:00.0", None),
    ],
)
def test_addresses_are_read_as_nvml_writes_them(text: str, expected: PciAddress | None) -> None:
    assert parse_pci_address(text) == expected
