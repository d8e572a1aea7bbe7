"""Keeps the numbers of the ranks of this node's processes while communicators come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfd.capture.node import environment_of, rank_of
from perfd.collector import NumberedRank
from perfd_collectors.nccl.rank_numbers import CommunicatingProcess, number_ranks
from perfd_collectors.nccl.segments import ProcessRanks

if TYPE_CHECKING:
    from perfd_collectors.nccl.operations import SegmentReader


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
