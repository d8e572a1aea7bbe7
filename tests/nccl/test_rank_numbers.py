"""Ranks of processes that have no RANK: by their communicators, and by the GPU of each of these."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nccl.driver import driving, wait_for
from perfd_collectors.nccl import SPEC
from perfd_collectors.nccl.collector import NcclOptions
from perfd_collectors.nccl.job_ranks import CommunicatingProcess, number_ranks
from perfd_collectors.nccl.segments import Communicator

from perfd.clock import VirtualClock
from perfd.collector import CommunicatingRanks, NumberedRank, PciAddress, Settings
from perfd.model import CollectiveTimes, Record, SampleTable, Scope


def gpu(number: int) -> PciAddress:
    return PciAddress(domain=0, bus=16 * (number + 1), device=0)


def member(
    identity: int, rank: int, ranks: int, *, on: int | None = None, index: int = 0, nodes: int = 1
) -> Communicator:
    return Communicator(
        index=index,
        id=identity,
        rank=rank,
        ranks=ranks,
        nodes=nodes,
        live=True,
        name="",
        device=None if on is None else gpu(on),
    )


def numbers(**processes: CommunicatingProcess) -> dict[str, list[int]]:
    return {name: list(ranks.devices) for name, ranks in number_ranks(processes).items()}


def of(*communicators: Communicator, **reported: int) -> CommunicatingProcess:
    return CommunicatingProcess(communicators=communicators, **reported)


def test_the_largest_communicator_is_the_world() -> None:
    found = number_ranks(
        {
            "a": of(member(7, 0, 2, on=0), member(1, 5, 8, on=0, index=1)),
            "b": of(member(1, 4, 8, on=1), member(7, 1, 2, on=1, index=1)),
        }
    )

    assert {name: list(ranks.devices) for name, ranks in found.items()} == {"a": [5], "b": [4]}
    assert found["a"].world_size == 8
    assert found["a"].communicators == {0: 5, 1: 5}


def test_each_gpu_of_one_process_is_a_rank() -> None:
    table = [member(1, one, 4, on=3 - one, index=one) for one in range(4)]
    pairs = [member(2 + one // 2, one % 2, 2, on=3 - one, index=4 + one) for one in range(4)]
    (ranks,) = number_ranks({"jax": of(*table, *pairs)}).values()

    assert ranks.devices == {0: gpu(3), 1: gpu(2), 2: gpu(1), 3: gpu(0)}
    assert ranks.communicators == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 2, 7: 3}
    assert ranks.world_size == 4


def test_without_a_communicator_of_all_the_gpus_are_numbered_in_their_order() -> None:
    assert numbers(jax=of(*(member(one // 2, one % 2, 2, on=one, index=one) for one in range(4)))) == {
        "jax": [0, 1, 2, 3]
    }
    assert numbers(a=of(member(1, 0, 2, on=2)), b=of(member(2, 0, 2, on=0))) == {"a": [1], "b": [0]}


def test_what_leaves_the_node_is_not_numbered_by_this_nodes_gpus() -> None:
    assert numbers(a=of(member(1, 0, 2, on=2, nodes=2)), b=of(member(2, 0, 2, on=0, nodes=2))) == {}


def test_the_environment_of_a_process_counts_unless_it_drives_several_gpus() -> None:
    assert numbers(a=of(member(1, 0, 2, on=0), stated_rank=6, stated_world_size=8)) == {"a": [6]}
    two = [member(1, 2 + one, 4, on=one, index=one) for one in range(2)]
    assert numbers(second=of(*two, stated_rank=1, stated_world_size=2)) == {"second": [2, 3]}


def test_a_launchers_number_counts_where_communicators_name_no_world() -> None:
    """As with NCCL before 2.27, which gives a plugin neither rank nor size."""
    unknown = Communicator(index=0, id=1, rank=None, ranks=None, nodes=None, live=True, name="")
    assert numbers(a=of(unknown, launched_rank=3), b=of(unknown, launched_rank=2)) == {"a": [3], "b": [2]}
    # One task a node, which starts one process for each GPU.
    assert numbers(a=of(unknown, launched_rank=0), b=of(unknown, launched_rank=0)) == {}


FAKE_DRIVER = """
static _Thread_local int context = -1;
static int contexts;
int cuCtxGetDevice(int *device) {
  context = contexts++;
  *device = context % GPUS;
  return FAILS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 33 ? 16 * (device + 1) : attribute == 34 || attribute == 50 ? 0 : -1;
  return 0;
}
"""
"""CUDA's driver, as far as the plugin asks it; each communicator is made on the next GPU."""


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(FAKE_DRIVER)
    for name, fails in (("works", 0), ("fails", 201)):
        library = folder / name / "libcuda.so.1"
        library.parent.mkdir()
        flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-DGPUS=4", f"-DFAILS={fails}"]
        subprocess.run(["gcc", *flags, str(folder / "cuda.c"), "-o", str(library)], check=True)
    return folder


def watched(
    built: Path, folder: Path, **environment: str
) -> tuple[list[Record], dict[int, list[NumberedRank]]]:
    clock, shared = VirtualClock(), CommunicatingRanks()
    options = NcclOptions(directory=str(folder), flight_recorder_prefix=None)
    settings = Settings(node="n", job="job", clock=clock, communicating_ranks=shared)
    with driving(
        built, folder, 5, "devices", 40, RANK="", WORLD_SIZE="", DRIVER_GPUS="4", **environment
    ) as job:
        wait_for(job, "ready")
        collector = SPEC.create(options, settings)
        clock.advance(options.window_s)
        records = list(collector.collect())
        collector.close()
    return records, {pid: list(ranks) for pid, ranks in shared.by_process().items()}


@pytest.mark.parametrize("whole", [True, False])
def test_the_plugin_names_the_gpu_of_each_communicator_of_a_process(
    built: Path, cuda: Path, tmp_path: Path, whole: bool
) -> None:
    pairs_only = {} if whole else {"DRIVER_PAIRS_ONLY": "1"}
    records, ranks = watched(built, tmp_path, LD_PRELOAD=str(cuda / "works" / "libcuda.so.1"), **pairs_only)

    assert list(ranks.values()) == [[NumberedRank(one, 4, gpu(one)) for one in range(4)]]
    counted = {
        (one.rank, one.communicator_size): one.count for one in records if isinstance(one, CollectiveTimes)
    }
    sizes = (4, 2) if whole else (2,)
    assert counted == {(rank, size): 40 for rank in range(4) for size in sizes}
    tables = [one for one in records if isinstance(one, SampleTable) and one.scope is Scope.RANK]
    assert [one.entities for one in tables] == [[f"job/{rank}"] for rank in range(4)]
    assert [one.columns["nccl_operations"] for one in tables] == [[40.0 * len(sizes)]] * 4
    busy_s = [one.columns["nccl_busy_s"][0] for one in tables]
    # Rank by rank, one microsecond more for each of the forty kernels, which pairs repeat at the same times.
    assert [round((busy_s[rank + 1] - busy_s[rank]) * 1e6) for rank in range(3)] == [40, 40, 40]


@pytest.mark.parametrize("driver", ["none", "fails"])
def test_without_cudas_driver_the_members_of_the_world_are_ranks_on_unknown_gpus(
    built: Path, cuda: Path, tmp_path: Path, driver: str
) -> None:
    preload = {} if driver == "none" else {"LD_PRELOAD": str(cuda / driver / "libcuda.so.1")}
    records, ranks = watched(built, tmp_path, **preload)

    assert list(ranks.values()) == [[NumberedRank(one, 4, None) for one in range(4)]]
    counted = {
        (one.rank, one.communicator_size): one.count for one in records if isinstance(one, CollectiveTimes)
    }
    assert counted == {(rank, 4): 40 for rank in range(4)}
