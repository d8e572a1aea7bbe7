"""The ranks of each process of this node, from its communicators where its environment does not name one.

Lightning's own launcher, `torch.multiprocessing.spawn` and `jax.distributed` start processes without RANK,
and one process may drive many GPUs, each of which is a rank. Numbers stay while communicators come and go.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perfd.capture.node import environment_of, rank_of
from perfd.collector import NumberedRank, PciAddress
from perfd_collectors.nccl.segments import Communicator, ProcessRanks

if TYPE_CHECKING:
    from perfd_collectors.nccl.operations import SegmentReader

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatingProcess:
    """A process, and the rank in its environment if there is one."""

    communicators: Sequence[Communicator]
    """Live and finalized ones."""
    stated_rank: int | None = None
    stated_world_size: int | None = None
    launched_rank: int | None = None
    """By the variables of its launcher, which may number the tasks of nodes instead of ranks."""


class _Gpu(NamedTuple):
    """One GPU of one process: what a rank is."""

    process: int
    device: PciAddress | None
    member: int | None = None
    """Its number in the largest communicator of a process with several GPUs whose devices are unknown."""


_UNKNOWN_MEMBER = -1
"""Stands for the rank of a GPU that is in no communicator of all GPUs."""


def number_ranks(processes: Mapping[_Key, CommunicatingProcess]) -> dict[_Key, ProcessRanks]:
    """The ranks of the processes of one job on this node; a process whose ranks are unknown is left out.

    RANK in a process's environment counts. Otherwise the world is the largest communicator, whose numbers are
    those of the ranks. Where that does not cover all GPUs here, and no communicator leaves the node, the GPUs
    are numbered in the order of their PCI addresses.
    """
    members = list(processes.values())
    known = {place: ranks for place, one in enumerate(members) if (ranks := _reported(one)) is not None}
    asking = {place: one for place, one in enumerate(members) if place not in known and one.communicators}
    world = _world(asking)
    numbers, size = world if world is not None else _without_world(asking)
    for place, one in asking.items():
        mine = {gpu: rank for gpu, rank in numbers.items() if gpu.process == place}
        if mine:
            known[place] = ProcessRanks(
                world_size=size,
                devices={rank: gpu.device for gpu, rank in sorted(mine.items(), key=lambda item: item[1])},
                communicators={
                    each.index: mine[gpu]
                    for each in one.communicators
                    if (gpu := _gpu(place, one, each)) in mine
                },
            )
    return {key: known[place] for place, key in enumerate(processes) if place in known}


def _reported(one: CommunicatingProcess) -> ProcessRanks | None:
    """By its environment; None without, or if a communicator has more ranks than there are processes."""
    largest = max((each.ranks or 0 for each in one.communicators), default=0)
    if one.stated_rank is None or (one.stated_world_size is not None and largest > one.stated_world_size):
        return None
    devices = {each.device for each in one.communicators}
    return ProcessRanks(
        world_size=one.stated_world_size,
        devices={one.stated_rank: next(iter(devices)) if len(devices) == 1 else None},
        communicators={each.index: one.stated_rank for each in one.communicators},
    )


def _world(processes: Mapping[int, CommunicatingProcess]) -> tuple[dict[_Gpu, int], int] | None:
    """The number of each GPU in the largest communicators; None if these leave some out, or contradict."""
    size = max((each.ranks or 0 for one in processes.values() for each in one.communicators), default=0)
    numbers: dict[_Gpu, int] = {}
    gpus: set[_Gpu] = set()
    for place, one in processes.items():
        for each in one.communicators:
            gpu = _gpu(place, one, each)
            if gpu.member == _UNKNOWN_MEMBER:
                continue
            gpus.add(gpu)
            if each.ranks == size and each.rank is not None:
                numbers.setdefault(gpu, each.rank)
    complete = bool(gpus) and numbers.keys() == gpus and len(set(numbers.values())) == len(gpus)
    return (numbers, size) if complete else None


def _without_world(processes: Mapping[int, CommunicatingProcess]) -> tuple[dict[_Gpu, int], int | None]:
    """By the launcher's variables if they differ, else the union of all GPUs, if none is on another node."""
    launched = {place: one.launched_rank for place, one in processes.items()}
    ranks = [rank for rank in launched.values() if rank is not None]
    single = all(len(_gpus(place, one)) == 1 for place, one in processes.items())
    if single and len(set(ranks)) == len(processes):
        numbers = {
            gpu: rank
            for place, rank in launched.items()
            if rank is not None
            for gpu in _gpus(place, processes[place])
        }
        return numbers, None
    if any(each.nodes != 1 for one in processes.values() for each in one.communicators):
        return {}, None
    gpus = [gpu for place, one in processes.items() for gpu in _gpus(place, one)]
    if any(gpu.device is None for gpu in gpus):
        return {}, None
    ordered = sorted(gpus, key=lambda gpu: (gpu.device or PciAddress(0, 0, 0), gpu.process))
    return {gpu: rank for rank, gpu in enumerate(ordered)}, len(ordered)


def _gpus(place: int, one: CommunicatingProcess) -> set[_Gpu]:
    return {_gpu(place, one, each) for each in one.communicators}


def _gpu(place: int, one: CommunicatingProcess, communicator: Communicator) -> _Gpu:
    """The GPU of a communicator; if unknown, the only one of its process.

    A process that is several members of one communicator drives several GPUs. Without their devices, each
    member of its largest communicator is one, and of the others it is unknown on which they are.
    """
    if communicator.device is not None:
        return _Gpu(place, communicator.device)
    known = {each.device for each in one.communicators if each.device is not None}
    if known:
        return _Gpu(place, next(iter(known)) if len(known) == 1 else None)
    ids = [each.id for each in one.communicators if each.live and each.id is not None]
    if len(set(ids)) == len(ids):
        return _Gpu(place, None)
    largest = max(each.ranks or 0 for each in one.communicators)
    return _Gpu(place, None, communicator.rank if communicator.ranks == largest else _UNKNOWN_MEMBER)


class JobRanks:
    """The ranks of the processes whose segments are read, by path."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._pids: Mapping[Path, int] = {}
        """In our namespace."""
        self._launched: dict[Path, int | None] = {}
        """The ranks in the environments that the processes were started with."""
        self._ranks: Mapping[Path, ProcessRanks] = {}
        self._seen: set[tuple[Path, int, int | None]] = set()
        """Path, index and id of the communicators that were numbered."""

    def number(
        self, readers: Mapping[Path, SegmentReader], pids: Mapping[Path, int]
    ) -> Mapping[Path, ProcessRanks]:
        """The ranks of each process, of which `pids` are known; one whose ranks are unknown is left out.

        Numbered again only when a communicator is new: while a job ends one process after the other, those
        that are left keep their numbers.
        """
        self._pids = {path: pids[path] for path in readers}
        for path, pid in self._pids.items():
            if path not in self._launched:
                self._launched[path] = rank_of(environment_of(self._proc, pid))
        tables = {path: reader.communicators() for path, reader in readers.items()}
        present: set[tuple[Path, int, int | None]] = {(path, -1, None) for path in tables}
        present |= {(path, one.index, one.id) for path, table in tables.items() for one in table}
        if not present <= self._seen:
            self._ranks = number_ranks(
                {
                    path: CommunicatingProcess(
                        communicators=tables[path],
                        stated_rank=reader.process.rank,
                        stated_world_size=reader.process.world_size,
                        launched_rank=self._launched.get(path),
                    )
                    for path, reader in readers.items()
                }
            )
        self._seen = present if not present <= self._seen else {one for one in self._seen if one[0] in tables}
        self._ranks = {path: ranks for path, ranks in self._ranks.items() if path in tables}
        return self._ranks

    def by_process(self) -> dict[int, Sequence[NumberedRank]]:
        """The ranks by PID."""
        return {
            self._pids[path]: [
                NumberedRank(rank, ranks.world_size, device) for rank, device in ranks.devices.items()
            ]
            for path, ranks in self._ranks.items()
        }
