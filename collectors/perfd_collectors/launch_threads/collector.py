"""The `launch_threads` collector: reads the processes of the ranks that `ranks` found."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.collector import CollectorSpec, Options, Settings
from perfd.model import RankColumn, Record, SampleTable, Scope
from perfd_collectors.launch_threads.process_readings import COLUMNS, LaunchThreads


class LaunchThreadsOptions(Options, frozen=True):
    """No options."""


class LaunchThreadsCollector:
    """Reads each rank's process once a second."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._processes: dict[int, LaunchThreads] = {}

    def collect(self) -> Sequence[Record]:
        """One table with a row per rank; ranks of one process share what is read of it."""
        ranks = self._settings.local_jobs.ranks()
        pids = {rank.pid for rank in ranks}
        self._processes = {
            pid: self._processes.get(pid) or LaunchThreads(self._settings.proc, pid) for pid in pids
        }
        read = {pid: process.read() for pid, process in self._processes.items()}
        rows = {f"{rank.job}/{rank.rank}": read[rank.pid] for rank in ranks}
        table = SampleTable.of_rows(Scope.RANK, self._settings.clock.unix_ns(), rows)
        return [] if table is None else [table]

    def close(self) -> None:
        """Nothing to free."""
        self._processes.clear()


def _create(options: LaunchThreadsOptions, settings: Settings) -> LaunchThreadsCollector:  # noqa: ARG001
    return LaunchThreadsCollector(settings)


SPEC = CollectorSpec(
    name="launch_threads",
    options=LaunchThreadsOptions,
    create=_create,
    interval_s=1.0,
    columns=COLUMNS,
    provides=tuple(RankColumn(column.name) for column in COLUMNS),
)
