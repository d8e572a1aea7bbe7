from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.ranks import CgroupIdentity, parse_cgroup, parse_environ, resolve_rank
from perfd_collectors.ranks.environment import KEPT_VARIABLES, Launcher, job_name, time_limit_unix_s
from perfd_collectors.ranks.gpu_of_rank import Gpu, HeldMemory, gpu_expected, gpu_held
from perfd_collectors.ranks.processes import parse_nspid, parse_stat

UID = "0f7ac4f5-7a4c-4f0e-9a2a-6a5d8c1b2e3f"
UID_SYSTEMD = UID.replace("-", "_")
ID = "3c4ff1" + "0" * 58
NOWHERE = CgroupIdentity()
TORCH = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
H200S = [Gpu(index=index, name="NVIDIA H200", uuid=f"GPU-{index}f") for index in range(4)]


@pytest.mark.parametrize(
    ("content", "pod_uid", "container_id"),
    [
        pytest.param(
            f"11:memory:/kubepods/burstable/pod{UID}/{ID}\n10:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}\n",
            UID, ID, id="version 1, cgroupfs",
        ),
        pytest.param(f"4:cpu:/kubepods/pod{UID}/{ID}\n", UID, ID, id="version 1, guaranteed pod"),
        pytest.param(
            "1:name=systemd:/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UID_SYSTEMD}.slice/docker-{ID}.scope\n",
            UID, ID, id="version 1, systemd, docker",
        ),
        pytest.param(
            "0::/kubepods.slice/kubepods-besteffort.slice/"
            f"kubepods-besteffort-pod{UID_SYSTEMD}.slice/cri-containerd-{ID}.scope\n",
            UID, ID, id="version 2, systemd, containerd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UID_SYSTEMD}.slice/crio-{ID}.scope/container\n",
            UID, ID, id="version 2, systemd, cri-o",
        ),
        pytest.param(
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{UID_SYSTEMD}.slice:cri-containerd:{ID}\n",
            UID, ID, id="containerd with the colon form",
        ),
        pytest.param(
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{UID_SYSTEMD}.slice/cri-containerd-{ID}.scope\n",
            UID, ID, id="kind",
        ),
        pytest.param(
            f"0::/../../kubepods-pod{UID_SYSTEMD}.slice/cri-containerd-{ID}.scope\n",
            UID, ID, id="seen from another namespace",
        ),
        pytest.param(
            f"0::/kubepods/burstable/pod{'ab12' * 8}/{ID}\n", "ab12" * 8, ID, id="static pod"
        ),
        pytest.param(f"0::/system.slice/docker-{ID}.scope\n", None, ID, id="docker alone"),
        pytest.param(f"12:pids:/docker/{ID}\n", None, ID, id="docker, version 1"),
        pytest.param(f"0::/machine.slice/libpod-{ID}.scope/container\n", None, ID, id="podman"),
        pytest.param(
            f"0::/docker/{'a' * 64}/kubepods/pod{UID}/{ID}\n", UID, ID, id="nested: the innermost"
        ),
        pytest.param("0::/\n", None, None, id="a namespace of its own"),
        pytest.param("0::/user.slice/user-1000.slice/session-2.scope\n", None, None, id="a login"),
        pytest.param("0::/podman-thing/pod12\n", None, None, id="a name that begins with pod"),
        pytest.param("", None, None, id="empty"),
    ],
)  # fmt: skip
def test_the_pod_and_the_container_are_read(
    content: str, pod_uid: str | None, container_id: str | None
) -> None:
    expected = CgroupIdentity(pod_uid=pod_uid, container_id=container_id)
    assert parse_cgroup(content.encode()) == expected


@pytest.mark.parametrize(
    ("content", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n", "123"),
        ("4:devices:/slurm/uid_1001/job_77/step_batch/task_0\n", "77"),
        ("4:devices:/slurm_n1/uid_0/job_5\n", "5"),
        ("0::/user.slice/job_5\n", None),
        ("0::/slurm/job_x\n", None),
    ],
)
def test_the_slurm_job_of_a_process_is_that_of_its_cgroup(content: str, job: str | None) -> None:
    assert parse_cgroup(content.encode()).slurm_job == job


@pytest.mark.parametrize(("claimed", "believed"), [("77", True), ("4711", False), (None, True)])
def test_an_environment_that_names_another_job_than_the_cgroup_is_no_rank(
    claimed: str | None, believed: bool
) -> None:
    environ = TORCH | ({} if claimed is None else {"SLURM_JOB_ID": claimed})
    assert (resolve_rank(environ, CgroupIdentity(slurm_job="77")) is not None) is believed


@pytest.mark.parametrize(
    ("placed", "size", "believed"),
    [
        ("77", "2", True),
        ("78", "2", True),
        ("79", "2", False),
        ("76", "2", False),
        ("9999", "99999999", False),
    ],
)
def test_every_part_of_a_heterogeneous_job_names_the_first(placed: str, size: str, believed: bool) -> None:
    environ = TORCH | {"SLURM_JOB_ID": "77", "SLURM_HET_SIZE": size}
    assert (resolve_rank(environ, CgroupIdentity(slurm_job=placed)) is not None) is believed


def test_an_environment_is_read_and_only_what_is_wanted_is_kept() -> None:
    content = b"RANK=3\0AWS_SECRET_ACCESS_KEY=secret\0SLURM_JOB_NAME=a=b\0WORLD_SIZE=16\0\0"
    assert parse_environ(content) == {"RANK": "3", "SLURM_JOB_NAME": "a=b", "WORLD_SIZE": "16"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000015", 1_700_000_015.0),
        ("99999999999", 99_999_999_999.0),
        ("100000000000", None),
        ("", None),
        ("0", None),
        ("tomorrow", None),
    ],
)
def test_the_time_limit_of_slurm_is_what_a_process_was_started_with(
    text: str, expected: float | None
) -> None:
    assert time_limit_unix_s(parse_environ(b"SLURM_JOB_END_TIME=" + text.encode())) == expected


def test_torchrun_shows_the_rank() -> None:
    identity = resolve_rank(TORCH, CgroupIdentity(pod_uid=UID, container_id=ID))
    assert identity is not None
    assert identity.launcher is Launcher.TORCH
    assert (identity.rank, identity.local_rank, identity.world_size) == (3, 1, 16)
    assert identity.local_world_size == 8
    assert (identity.pod_uid, identity.container_id) == (UID, ID)


@pytest.mark.parametrize(
    ("environ", "where", "name"),
    [
        ({"HOSTNAME": "train-0"}, CgroupIdentity(pod_uid=UID), "train-0"),
        ({"HOSTNAME": "train-0", "POD_NAME": "train-0-x7k2p"}, CgroupIdentity(pod_uid=UID), "train-0-x7k2p"),
        ({"POD_NAME": "train-0"}, NOWHERE, "train-0"),
        ({"HOSTNAME": "node7"}, NOWHERE, None),
        ({"HOSTNAME": ""}, CgroupIdentity(pod_uid=UID), None),
        ({}, CgroupIdentity(pod_uid=UID), None),
    ],
)
def test_a_pod_is_called_as_its_manifest_or_its_host_name_says(
    environ: dict[str, str], where: CgroupIdentity, name: str | None
) -> None:
    identity = resolve_rank(
        TORCH | parse_environ(b"\0".join(f"{k}={v}".encode() for k, v in environ.items())), where
    )
    assert identity is not None
    assert identity.pod_name == name


def test_slurm_alone_shows_the_rank() -> None:
    environ = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}
    identity = resolve_rank(environ, NOWHERE)
    assert identity is not None
    assert identity.launcher is Launcher.SLURM
    assert (identity.rank, identity.local_rank, identity.world_size, identity.job) == (5, 1, 8, "77")


def test_the_size_of_the_step_wins_over_that_of_the_allocation() -> None:
    environ = {"SLURM_PROCID": "1", "SLURM_NTASKS": "64", "SLURM_STEP_NUM_TASKS": "2"}
    identity = resolve_rank(environ, NOWHERE)
    assert identity is not None
    assert identity.world_size == 2


def test_openmpi_shows_the_rank() -> None:
    environ = {
        "OMPI_COMM_WORLD_RANK": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    identity = resolve_rank(environ, NOWHERE)
    assert identity is not None
    assert identity.launcher is Launcher.OPENMPI
    assert (identity.rank, identity.local_rank, identity.world_size) == (2, 0, 4)


@pytest.mark.parametrize("rank", [0, 1])
def test_mpich_shows_the_rank(rank: int) -> None:
    # What `mpiexec -n 2` of MPICH 5.0.2 sets.
    environ = {
        "PMI_RANK": str(rank),
        "PMI_SIZE": "2",
        "PMI_FD": "9",
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": "2",
    }
    identity = resolve_rank(environ, NOWHERE)
    assert identity is not None
    assert identity.launcher is Launcher.MPI
    assert (identity.rank, identity.local_rank, identity.world_size) == (rank, rank, 2)
    assert identity.local_world_size == 2


@pytest.mark.parametrize(
    "environments",
    [
        pytest.param(
            tuple(
                f"CROSS_RANK=0 CROSS_SIZE=1 CUDA_VISIBLE_DEVICES=0,1 LOCAL_RANK={rank} LOCAL_SIZE=2"
                f" MASTER_ADDR=127.0.0.1 RANK={rank} WORLD_SIZE=2"
                for rank in range(2)
            ),
            id="DeepSpeed 0.19.8, deepspeed --num_gpus 2",
        ),
        pytest.param(
            tuple(
                f"OMPI_COMM_WORLD_LOCAL_RANK={rank} OMPI_COMM_WORLD_LOCAL_SIZE=2"
                f" OMPI_COMM_WORLD_NODE_RANK={rank} OMPI_COMM_WORLD_RANK={rank}"
                f" OMPI_COMM_WORLD_SIZE=2 PMIX_RANK={rank}"
                for rank in range(2)
            ),
            id="Open MPI 5.0.11, mpirun -n 2",
        ),
        pytest.param(
            (
                "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0 PMI_RANK=0 PMI_SIZE=2",
                "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_RANK=1 PMI_SIZE=2",
            ),
            id="MPICH 5.0.2, mpirun -n 2",
        ),
    ],
)
def test_what_a_launcher_was_seen_to_set_shows_the_rank(environments: tuple[str, str]) -> None:
    found = [
        resolve_rank(parse_environ(b"\0".join(item.encode() for item in environment.split())), NOWHERE)
        for environment in environments
    ]
    assert [(one.rank, one.local_rank, one.world_size) for one in found if one] == [(0, 0, 2), (1, 1, 2)]


def test_the_innermost_launcher_wins() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
    for environ, launcher in [(slurm | TORCH, Launcher.TORCH), (slurm | mpi, Launcher.OPENMPI)]:
        identity = resolve_rank(environ, NOWHERE)
        assert identity is not None
        assert identity.launcher is launcher


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0"},
        {"WORLD_SIZE": "4", "LOCAL_RANK": "0"},
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {"RANK": "a", "WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "99999999"},
        {"RANK": "\u0664", "WORLD_SIZE": "8"},
    ],
)
def test_an_environment_that_makes_no_sense_shows_no_rank(environ: dict[str, str]) -> None:
    assert resolve_rank(environ, NOWHERE) is None


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"SLURM_JOB_ID": "77", "TORCHELASTIC_RUN_ID": "run"}, "77"),
        ({"SLURM_JOB_ID": "80", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}, "77_3"),
        ({"TORCHELASTIC_RUN_ID": "run"}, "run"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"TORCHELASTIC_RUN_ID": ""}, None),
        ({}, None),
    ],
)
def test_the_job_is_slurms_or_else_torchelastics(environ: dict[str, str], name: str | None) -> None:
    assert job_name(environ) == name


NAMES = st.sampled_from(sorted(KEPT_VARIABLES)).map(str.encode)
ITEMS = st.tuples(NAMES, st.binary(max_size=12)).map(b"=".join)


@given(
    st.one_of(st.binary(max_size=400), st.lists(ITEMS, max_size=20).map(b"\0".join)), st.binary(max_size=300)
)
def test_no_environment_and_no_cgroup_raises_or_makes_a_rank_out_of_its_world(
    environ: bytes, cgroup: bytes
) -> None:
    identity = resolve_rank(parse_environ(environ), parse_cgroup(cgroup))
    if identity is not None:
        assert 0 <= identity.rank < identity.world_size
        assert identity.local_rank is None or 0 <= identity.local_rank < identity.world_size


@given(st.integers(0, 999), st.integers(1, 1000), st.text(max_size=20))
def test_what_torchrun_sets_is_read_back_among_anything_else(rank: int, more: int, other: str) -> None:
    junk = other.replace("\0", "")
    content = f"{junk}\0RANK={rank}\0X{junk}=1\0WORLD_SIZE={rank + more}\0".encode("utf-8", "replace")
    identity = resolve_rank(parse_environ(content), NOWHERE)
    assert identity is not None
    assert (identity.rank, identity.world_size) == (rank, rank + more)


def test_a_process_may_call_itself_anything() -> None:
    stat = parse_stat(b"42 (a) b (c)) S 7 " + b"0 " * 17 + b"12345 0 0\n")
    assert stat is not None
    assert (stat.name, stat.parent, stat.start_ticks) == ("a) b (c)", 7, 12345)


@given(st.binary(max_size=200))
def test_garbage_in_proc_never_raises(content: bytes) -> None:
    parse_stat(content)
    parse_nspid(content)


def identity_with(**environ: str):
    identity = resolve_rank(TORCH | environ, NOWHERE)
    assert identity is not None
    return identity


@pytest.mark.parametrize(
    ("environ", "gpu"),
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": "2"}, 2, id="one device"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-3f"}, 3, id="one device by uuid"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "3,1", "LOCAL_WORLD_SIZE": "2"}, 1, id="one each, in order"),
        pytest.param({"LOCAL_WORLD_SIZE": "4"}, 1, id="all devices, one each"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "LOCAL_WORLD_SIZE": "2"}, None, id="more devices"),
        pytest.param({"LOCAL_WORLD_SIZE": "8"}, None, id="more ranks than devices"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, None, id="no device"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "-1"}, None, id="no device, by number"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "9"}, None, id="a device that is not there"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, None, id="a slice is no whole GPU"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-"}, None, id="a uuid that fits several"),
    ],
)
def test_a_gpu_is_expected_only_when_it_is_certain(environ: dict[str, str], gpu: int | None) -> None:
    assert gpu_expected(identity_with(**environ), H200S, same_container=True) == gpu


def test_numbers_of_another_container_are_not_ours() -> None:
    elsewhere = CgroupIdentity(container_id=ID)
    environ = TORCH | {"CUDA_VISIBLE_DEVICES": "0"}
    identity = resolve_rank(environ, elsewhere)
    assert identity is not None
    assert gpu_expected(identity, H200S, same_container=False) is None
    for devices, gpu in [("GPU-3f,GPU-2f", 2), ("all", 0), ("void", None)]:
        given_devices = resolve_rank(environ | {"NVIDIA_VISIBLE_DEVICES": devices}, elsewhere)
        assert given_devices is not None
        assert gpu_expected(given_devices, H200S, same_container=False) == gpu


def test_gpus_of_different_kinds_may_have_another_order_in_cuda() -> None:
    mixed = [*H200S, Gpu(index=4, name="NVIDIA T4", uuid="GPU-4f")]
    identity = identity_with(CUDA_VISIBLE_DEVICES="2")
    assert gpu_expected(identity, mixed, same_container=True) is None
    by_bus = identity_with(CUDA_VISIBLE_DEVICES="2", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert gpu_expected(by_bus, mixed, same_container=True) == 2


@pytest.mark.parametrize(
    ("held", "expected", "gpu"),
    [
        ([(0, 100)], None, 0),
        ([(0, 100), (1, 9000)], None, 1),
        ([(0, 100), (1, 60), (1, 60)], None, 1),
        ([(0, 100), (1, 100)], None, None),
        ([(0, 100), (1, 100)], 1, 1),
        ([(0, None), (1, 100)], None, None),
        ([(0, None), (1, None)], 0, 0),
        ([(0, None), (1, None)], 3, None),
        ([], 3, None),
    ],
)
def test_a_rank_is_where_it_holds_most(
    held: list[tuple[int, int | None]], expected: int | None, gpu: int | None
) -> None:
    entries = [HeldMemory(pid=1, gpu=index, memory_bytes=memory) for index, memory in held]
    assert gpu_held(entries, expected) == gpu
