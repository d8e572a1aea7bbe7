"""Ranks of processes whose environment names none: by relatives, GPUs, communicators and threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfd.collector import PciAddress
from perfd_collectors.ranks.environment import Launcher
from perfd_collectors.ranks.gpu_of_rank import HeldMemory
from perfd_collectors.ranks.placement import RankProcess, rank_processes

_OWN_MEMORY_RATIO = 0.25
"""Of what a process holds on its fullest GPU: on one where it holds less it only has a context, for peer
access or by mistake. Chosen, not measured."""

_STORE_THREADS = ("pt_tcpstore", "pt_tcpstore_uv")
"""In rank 0, which serves the store of torch.distributed, since PyTorch 2.5 (TCPStoreBackend.cpp)."""
_GROUP_THREADS = ("pt_gloo_runloop", "pt_nccl_watchdg")
"""In each rank of a process group of gloo or NCCL (ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProcess:
    """A process that Python's multiprocessing started."""

    pid: int
    parent: int | None
    start_ticks: int
    threads: Collection[str] = ()
    """Their names."""


def by_order(processes: Iterable[StartedProcess]) -> list[int]:
    """The PIDs of ranks 0, 1, ... that `torch.multiprocessing.spawn` started; empty if that is not certain.

    It numbers processes in the order in which it starts them, and rank 0 serves the store: so it must be the
    first one that does. On nodes other than the first none does.
    """
    started = sorted(
        (one for one in processes if not {*_GROUP_THREADS}.isdisjoint(one.threads)),
        key=lambda one: (one.start_ticks, one.pid),
    )
    serve = [not {*_STORE_THREADS}.isdisjoint(one.threads) for one in started]
    siblings = len(started) > 1 and len({one.parent for one in started}) == 1
    first_serves = serve == [True] + [False] * (len(started) - 1)
    return [one.pid for one in started] if siblings and first_serves else []


def launching_rank(processes: Iterable[RankProcess]) -> int | None:
    """The PID of rank 0 where it started the other ranks itself, as under Lightning's own launcher.

    That process has no LOCAL_RANK in its environment: it is the parent of all ranks from 1 on.
    """
    ranks = [one for one in rank_processes(processes) if one.identity.launcher is Launcher.LOCAL]
    parents = {one.ancestors[0] if one.ancestors else 0 for one in ranks}
    numbers = sorted(one.identity.rank for one in ranks)
    if not numbers or numbers != list(range(1, len(numbers) + 1)) or len(parents) != 1:
        return None
    return parents.pop() or None


def by_gpu(
    held: Mapping[int, Sequence[HeldMemory]], parents: Mapping[int, int | None]
) -> dict[int, dict[int, int | None]]:
    """The ranks of processes by the GPUs that they hold: by PID, the GPU of each rank.

    One process has a rank on each of its GPUs. Several are numbered in the order of their GPUs if they are
    children of one process and each has one GPU to itself; otherwise none is.
    """
    gpus = {pid: own_gpus(entries) for pid, entries in held.items()}
    if len(gpus) == 1:
        ((pid, own),) = gpus.items()
        return {pid: dict(enumerate(own))}
    alone = all(len(own) == 1 for own in gpus.values())
    first = {own[0]: pid for pid, own in gpus.items() if own}
    siblings = len({parents.get(pid) for pid in gpus}) == 1 and None not in parents.values()
    if not alone or len(first) != len(gpus) or not siblings:
        return {}
    return {pid: {rank: gpu} for rank, (gpu, pid) in enumerate(sorted(first.items()))}


def own_gpus(entries: Sequence[HeldMemory]) -> list[int]:
    """The GPUs on which a process works, in order."""
    held: dict[int, int] = {}
    for entry in entries:
        held[entry.gpu] = held.get(entry.gpu, 0) + (entry.memory_bytes or 0)
    fullest = max(held.values(), default=0)
    return sorted(gpu for gpu, size in held.items() if size >= _OWN_MEMORY_RATIO * fullest)


def parse_pci_address(text: str) -> PciAddress | None:
    """An address as NVML writes it, `00000000:1B:00.0`; None for anything else."""
    parts = text.replace(".", ":").split(":")
    try:
        domain, bus, device, _ = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return PciAddress(domain, bus, device)
