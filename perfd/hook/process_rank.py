"""The rank of this process, as its framework or its launcher numbers it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


class ProcessRank(NamedTuple):
    """The number of a process and how many there are; None if unknown."""

    rank: int | None
    world_size: int | None


def process_rank(environ: Mapping[str, str], modules: Mapping[str, Any] = sys.modules) -> ProcessRank:
    """The rank of this process, now.

    The process groups of torch and JAX know it best, once they exist; they are asked only where the job has
    imported them. Otherwise the launcher's variables count, the innermost launcher first. Lightning and
    others set only LOCAL_RANK: it numbers the processes of one node.
    """
    return (
        _of_torch(modules.get("torch.distributed"))
        or _of_jax(modules.get("jax"))
        or ProcessRank(
            rank=_first(environ, _RANKS, fallback=_from_local_rank(environ)),
            world_size=_first(environ, _SIZES),
        )
    )


def _of_torch(distributed: Any) -> ProcessRank | None:  # noqa: ANN401  (a module)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return ProcessRank(rank=distributed.get_rank(), world_size=distributed.get_world_size())


def _of_jax(jax: Any) -> ProcessRank | None:  # noqa: ANN401  (a module)
    initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if initialized is None or not initialized():
        return None
    return ProcessRank(rank=jax.process_index(), world_size=jax.process_count())


def _from_local_rank(environ: Mapping[str, str]) -> int | None:
    local = _first(environ, ("LOCAL_RANK",))
    node = _first(environ, ("NODE_RANK", "GROUP_RANK"), fallback=0)
    per_node = _first(environ, ("LOCAL_WORLD_SIZE",))
    if local is None or not node:
        return local
    return None if per_node is None else node * per_node + local


def _first(environ: Mapping[str, str], names: Iterable[str], fallback: int | None = None) -> int | None:
    found = (environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isascii() and text.isdecimal()), fallback)
