"""The rank of a process, from its launcher's environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from perfd.model import JobOrigin, job_origin
from perfd_collectors.ranks.cgroup import CgroupIdentity

KEPT_VARIABLES = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
        "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_PROCID", "SLURM_LOCALID",
        "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES", "POD_NAME", "HOSTNAME", "SLURM_JOB_END_TIME", "SLURM_CLUSTER_NAME",
        "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT", "SLURM_HET_SIZE",
        "SLURM_JOB_USER", "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION", "SLURM_JOB_NAME",
        "NODE_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    }
)  # fmt: skip
"""The variables that are read; others are dropped, because they may be secrets."""

_MAX_RANKS = 1_000_000
"""Larger worlds are garbage."""
_MAX_DIGITS = 9
"""Longer numbers are garbage, and would not fit 32 bits."""
_MAX_COMPONENTS = 128
"""Of a heterogeneous job: SLURM's limit (slurm.h, MAX_HET_JOB_COMPS)."""
_TIME_DIGITS = 11
"""Unix seconds until the year 5138."""
_SLURM_JOB = re.compile(r"\d+(_\d+)?")


class Launcher(StrEnum):
    """The launcher whose variables define the rank."""

    TORCH = "torch"
    OPENMPI = "openmpi"
    MPI = "mpi"
    SLURM = "slurm"
    LOCAL = "local"
    """Only LOCAL_RANK, as from Lightning's own launcher."""
    NONE = "none"
    """None: numbered by the process's communicators, or by its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """A process's rank and placement by its launcher; unknown values are None."""

    launcher: Launcher
    rank: int
    world_size: int | None
    local_rank: int | None = None
    local_world_size: int | None = None
    job: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    container_id: str | None = None
    uid: int | None = None
    """The user of the process."""
    environ: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The variables that `gpu_of_rank` needs."""


def parse_environ(content: bytes) -> Mapping[str, str]:
    """The kept variables of /proc/PID/environ, which a process may have overwritten with anything."""
    found = {}
    for item in content.split(b"\0"):
        name, separator, value = item.partition(b"=")
        key = name.decode("ascii", "replace")
        if separator and key in KEPT_VARIABLES:
            found[key] = value.decode("utf-8", "replace")
    return found


def resolve_rank(
    environ: Mapping[str, str], cgroup: CgroupIdentity, uid: int | None = None
) -> RankIdentity | None:
    """The rank in an environment; None when there is no valid one, or when its cgroup is of another job.

    The innermost launcher counts: under `srun torchrun`, Slurm's variables are those of
    the node's task, torch's those of the rank; likewise under `srun mpirun`. LOCAL_RANK alone is the rank on
    the job's first node.
    """
    if not _is_of_job(environ, cgroup.slurm_job):
        return None
    for launcher, rank_name, size_names, local_rank_name, local_size_name in _SOURCES:
        rank = _integer(environ, rank_name)
        size = next((size for name in size_names if (size := _integer(environ, name))), None)
        if rank is None or size is None or not rank < size <= _MAX_RANKS:
            continue
        if launcher is Launcher.LOCAL and _integer(environ, "NODE_RANK") != 0:
            continue
        local_size = _integer(environ, local_size_name)
        local_rank = _integer(environ, local_rank_name)
        return replace(
            identity(environ, cgroup, uid, rank=rank, world_size=size, launcher=launcher),
            local_rank=local_rank if local_rank is None or local_rank < size else None,
            local_world_size=local_size if local_size is None or 0 < local_size <= size else None,
        )
    return None


def _is_of_job(environ: Mapping[str, str], slurm_job: str | None) -> bool:
    """Whether the job that slurmd placed a process in is the one that it names, or part of that.

    The components of a heterogeneous job have consecutive numbers, and tasks of all of them name the first.
    """
    number = _integer(environ, "SLURM_JOB_ID")
    if slurm_job is None or "SLURM_JOB_ID" not in environ or number is None:
        return slurm_job in {None, environ.get("SLURM_JOB_ID", slurm_job)}
    return number <= int(slurm_job) < number + min(_integer(environ, "SLURM_HET_SIZE") or 1, _MAX_COMPONENTS)


def identity(
    environ: Mapping[str, str],
    cgroup: CgroupIdentity,
    uid: int | None,
    *,
    rank: int,
    world_size: int | None,
    launcher: Launcher = Launcher.NONE,
) -> RankIdentity:
    """A rank that something else than the environment numbered, with job and pod by the environment."""
    return RankIdentity(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        job=job_name(environ),
        pod_uid=cgroup.pod_uid,
        pod_name=_pod_name(environ, cgroup),
        container_id=cgroup.container_id,
        uid=uid,
        environ=environ,
    )


def job_name(environ: Mapping[str, str]) -> str | None:
    """Slurm's job id (with array task), else torchelastic's run id, else None."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    if environ.get("SLURM_JOB_ID"):
        return environ["SLURM_JOB_ID"]
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    # torchrun's default run id is `none`.
    return run if run not in {"", "none"} else None


def is_other_slurm_job(agent_job: str, number: str | None, *names: str | None) -> bool:
    """Whether a process in SLURM job `number` is in another job than the agent, itself in a SLURM job.

    An array task has several ids: the agent's job may be `number` or any of `names`.
    """
    return bool(number and _SLURM_JOB.fullmatch(agent_job)) and agent_job not in {number, *names}


def time_limit_unix_s(environ: Mapping[str, str]) -> float | None:
    """When SLURM ends the job at the latest; SLURM sets the variable since 22.05."""
    return float(_integer(environ, "SLURM_JOB_END_TIME", _TIME_DIGITS) or 0) or None


def origin_of(identity: RankIdentity, job: str) -> JobOrigin:
    """The owner of a rank's job. User ids in a pod are ignored: each node may map them differently."""
    known = identity.uid is not None and identity.pod_uid is None
    return job_origin(job, identity.environ, owner=f"uid:{identity.uid}" if known else "")


def _pod_name(environ: Mapping[str, str], cgroup: CgroupIdentity) -> str | None:
    """The pod's name from the downward API, else from its host name."""
    host_name = environ.get("HOSTNAME") if cgroup.pod_uid else None
    return environ.get("POD_NAME") or host_name or None


def _integer(environ: Mapping[str, str], name: str, max_digits: int = _MAX_DIGITS) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= max_digits else None


_SOURCES = (
    (Launcher.TORCH, "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        Launcher.OPENMPI,
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    (Launcher.MPI, "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    (Launcher.SLURM, "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID", ""),
    (Launcher.LOCAL, "LOCAL_RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
