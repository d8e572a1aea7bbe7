"""The `ranks` collector: finds the ranks on this node and their placement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfd.collector import UNNAMED_JOB, LocalRank, NumberedRank, Options, PciAddress, Settings
from perfd.errors import NothingHere, Unavailable
from perfd.model import JobOrigin, RankPlacement, Record, SampleTable
from perfd_collectors.nvml.nvml_api import Fault, Nvml, NvmlError, fault_of, start, unavailable
from perfd_collectors.nvml.topology import optional
from perfd_collectors.ranks.doubled_ranks import DoubledRanks
from perfd_collectors.ranks.environment import (
    Launcher,
    RankIdentity,
    identity,
    is_other_slurm_job,
    job_name,
)
from perfd_collectors.ranks.gpu_of_rank import Gpu, HeldMemory, gpu_expected, gpu_held
from perfd_collectors.ranks.host_waits import HostWaits, local_cpus
from perfd_collectors.ranks.placement import (
    RankProcess,
    changed,
    job_events,
    of_one_user,
    origins,
    placements,
)
from perfd_collectors.ranks.processes import Process, ProcessTable
from perfd_collectors.ranks.unnamed_ranks import (
    StartedProcess,
    by_gpu,
    by_order,
    launching_rank,
    parse_pci_address,
)

REPEAT_EVERY_S = 30.0
"""How often placements are repeated, for aggregators that start after the agent. Chosen, not measured."""

_MPS_SERVER = "nvidia-cuda-mps"
"""Name of the MPS server in /proc, cut to 15 characters; it holds all GPUs for its clients."""


class RanksOptions(Options, frozen=True):
    """Options of the `ranks` collector."""

    root_pid: int | None = None
    """Search only this process and its descendants; set by `perfd run` to its command."""


class RanksCollector:
    """Finds ranks by the environment of processes that hold GPUs, or that descend from `root_pid`.

    Raises `Unavailable` without NVML and `root_pid`.
    """

    def __init__(self, nvml: Nvml, options: RanksOptions, settings: Settings) -> None:
        self._root_pid = options.root_pid
        self._settings = settings
        self._processes = ProcessTable(settings.proc)
        self._host_waits = HostWaits(settings.proc, settings.sys)
        self._own_container = self._processes.own_container()
        self._last: list[RankPlacement] = []
        self._looked_unix_ns: int | None = None
        self._doubled = DoubledRanks()
        self._users: dict[str, int] = {}
        self._origins: list[JobOrigin] = []
        self._repeat_due_s = -math.inf
        self._gpus: list[Gpu] = []
        self._gpu_ranks: Mapping[int, Mapping[int, int | None]] = {}
        """By process, the GPU of each rank that only NVML named at the last look."""
        self._ordered: list[int] = []
        """The processes that only the order of their start numbers, at the last look."""
        self._numbered: Mapping[int, int] = {}
        """By rank, once two looks agreed."""
        self._pci_addresses: Mapping[PciAddress, int] = {}
        """The index of each GPU."""
        self._local_cpus: Mapping[int, frozenset[int]] = {}
        """By GPU."""
        self._nvml: Nvml | None = None
        try:
            self._nvml, self._gpus = nvml, _open(nvml, settings.sys)
        except NothingHere:
            if options.root_pid is None:
                raise
        except Unavailable as error:
            if options.root_pid is None:
                raise Unavailable(
                    f"Ranks are found by processes that hold GPUs, which NVML cannot list. {error}"
                ) from error

    def collect(self) -> Sequence[Record]:
        now_ns, now_s = self._settings.clock.unix_ns(), self._settings.clock.monotonic_s()
        if not self._pci_addresses:
            self._read_pci_addresses()
        held = self._held()
        processes = self._processes.refresh(self._candidates(held))
        claimed = self._rank_processes(processes, held)
        ranks, self._users = of_one_user(
            claimed, self._job_of, self._users, self._settings.local_jobs.scheduled
        )
        found = placements(ranks, self._job_of, self._last)
        found = found or placements(self._by_gpu(processes, held), self._job_of)
        found = found or placements(self._by_order(processes), self._job_of)
        local = [LocalRank(one.job, one.rank, one.pid) for one in found if one.pid is not None]
        self._settings.local_jobs.replace(self._users, local)
        reported = changed(self._last, found)
        whose = self._whose(ranks)
        new_origins = [origin for origin in whose if origin not in self._origins]
        self._origins = whose
        if now_s >= self._repeat_due_s:
            self._repeat_due_s = now_s + REPEAT_EVERY_S
            self._gpus = self._gpus if self._nvml is None else _gpus(self._nvml)
            self._read_pci_addresses()
            reported, new_origins = found, whose
        events = job_events(self._last, found, now_ns, self._looked_unix_ns)
        events += self._doubled.events(ranks, self._job_of, now_ns)
        self._last, self._looked_unix_ns = found, now_ns
        waits = self._host_waits.collect(found, self._local_cpus, now_s, now_ns)
        counts = self._counts(now_ns, processes, held, len(found), foreign=len(claimed) - len(ranks))
        return [*new_origins, *reported, *events, counts, *([] if waits is None else [waits])]

    def close(self) -> None:
        if self._nvml is None:
            return
        nvml, self._nvml = self._nvml, None
        try:
            nvml.nvmlShutdown()
        except NvmlError:
            return  # The driver was unloaded first.

    def _held(self) -> Mapping[int, list[HeldMemory]]:
        """GPU memory held by each process, by its PID in our /proc."""
        entries = [entry for gpu in self._gpus for entry in self._held_on(gpu.index)]
        unknown_pids = {entry.pid for entry in entries if self._processes.stat(entry.pid) is None}
        outer_pids = self._processes.outer_pids(unknown_pids) if unknown_pids else {}
        held: dict[int, list[HeldMemory]] = {}
        for entry in entries:
            pid = outer_pids.get(entry.pid, entry.pid)
            stat = self._processes.stat(pid)
            if stat is not None and not stat.name.startswith(_MPS_SERVER):
                held.setdefault(pid, []).append(entry)
        return held

    def _read_pci_addresses(self) -> None:
        texts = {gpu.index: self._pci_address(gpu.index) for gpu in self._gpus}
        self._local_cpus = {
            gpu: local_cpus(self._settings.sys, text) if text else frozenset() for gpu, text in texts.items()
        }
        self._pci_addresses = {
            address: gpu for gpu, text in texts.items() if (address := parse_pci_address(text)) is not None
        }

    def _pci_address(self, gpu: int) -> str:
        if self._nvml is None:
            return ""
        try:
            return str(self._nvml.nvmlDeviceGetPciInfo(self._nvml.nvmlDeviceGetHandleByIndex(gpu)).busId)
        except NvmlError as error:
            if fault_of(error) is Fault.GONE:
                raise unavailable(error) from error
            return ""

    def _held_on(self, gpu: int) -> list[HeldMemory]:
        if self._nvml is None:
            return []
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(gpu)
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except NvmlError as error:
            if fault_of(error) is Fault.GONE:
                raise unavailable(error) from error
            return []
        return [HeldMemory(pid=entry.pid, gpu=gpu, memory_bytes=entry.usedGpuMemory) for entry in listed]

    def _candidates(self, held: Mapping[int, Sequence[HeldMemory]]) -> Sequence[int]:
        if self._root_pid is not None:
            return self._processes.descendants(self._root_pid)
        # In a container, NVML lists no processes, or PIDs of another namespace; then all (few) are searched.
        return (
            sorted({*held, *self._settings.communicating_ranks.by_process()})
            if held
            else self._processes.pids()
        )

    def _rank_processes(
        self, processes: Mapping[int, Process], held: Mapping[int, Sequence[HeldMemory]]
    ) -> list[RankProcess]:
        numbered = self._settings.communicating_ranks.by_process()
        found: list[RankProcess] = []
        for pid, process in processes.items():
            ranks = numbered.get(pid, ())
            if ranks:
                found.append(self._communicating(pid, process, ranks, held.get(pid, ())))
            elif process.identity is not None:
                gpu = self._gpu_of(process.identity, held.get(pid, ()))
                found.append(self._rank_process(pid, process, process.identity, gpu, holds_gpu=pid in held))
        found = [one for one in found if self._counts_as_rank(one.identity, holds_gpu=one.holds_gpu)]
        first = launching_rank(found)
        known = {one.pid for one in found}
        if first is not None and first in processes and first not in known and self._root_pid is not None:
            process = processes[first]
            named = self._identity(process, rank=0, world_size=found[0].identity.world_size)
            gpu = gpu_held(held.get(first, ()), None)
            found.append(self._rank_process(first, process, named, gpu, holds_gpu=True))
        return [one for process in found if (one := self._of_pod(process)) is not None]

    def _of_pod(self, process: RankProcess) -> RankProcess | None:
        """The process with its pod's job; None for one that an agent in the pod reports."""
        pod = self._settings.pod_jobs.of(process.identity.pod_uid)
        if pod is None:
            return process
        named = replace(process.identity, job=pod.job)
        return None if pod.own_agent else replace(process, identity=named)

    def _whose(self, ranks: Sequence[RankProcess]) -> list[JobOrigin]:
        """Whose the jobs are; namespace and cluster are those of the pod, whatever a process says."""
        of_pods = [self._settings.pod_jobs.of(process.identity.pod_uid) for process in ranks]
        pods = {pod.job: pod for pod in of_pods if pod is not None}
        known = {origin.job: origin for origin in origins(ranks, self._job_of)}
        known |= {job: JobOrigin(job=job) for job in pods.keys() - known.keys()}
        for job, pod in pods.items():
            cluster = pod.cluster or known[job].cluster
            known[job] = replace(known[job], namespace=pod.namespace, cluster=cluster)
        return [origin for _, origin in sorted(known.items())]

    def _rank_process(
        self, pid: int, process: Process, named: RankIdentity, gpu: int | None, *, holds_gpu: bool
    ) -> RankProcess:
        return RankProcess(
            pid=pid,
            ancestors=self._processes.ancestors(pid),
            identity=named,
            gpu=gpu,
            holds_gpu=holds_gpu,
            started_unix_ns=self._processes.started_unix_ns(process.start_ticks),
            time_limit_unix_s=process.time_limit_unix_s,
        )

    def _communicating(
        self, pid: int, process: Process, ranks: Sequence[NumberedRank], held: Sequence[HeldMemory]
    ) -> RankProcess:
        """A process whose communicators number its ranks: better than a task's variables of SLURM."""
        known = process.identity
        if len(ranks) == 1 and known is not None and known.rank == ranks[0].rank:
            return self._rank_process(pid, process, known, self._gpu_of(known, held), holds_gpu=True)
        named = self._identity(process, rank=ranks[0].rank, world_size=ranks[0].world_size)
        gpus = {one.rank: self._pci_addresses.get(one.device) for one in ranks if one.device is not None}
        if len(ranks) == 1:
            own = gpu_held(held, gpus.get(ranks[0].rank))
            gpus = {ranks[0].rank: gpus.get(ranks[0].rank, own)}
        one = self._rank_process(pid, process, named, gpus.get(ranks[0].rank), holds_gpu=True)
        return replace(one, gpus_of_ranks={each.rank: gpus.get(each.rank) for each in ranks})

    def _identity(self, process: Process, *, rank: int, world_size: int | None) -> RankIdentity:
        return identity(process.environ, process.cgroup, process.uid, rank=rank, world_size=world_size)

    def _counts_as_rank(self, identity: RankIdentity, *, holds_gpu: bool) -> bool:
        """Whether a process with rank variables is a rank.

        Slurm's variables are also in interactive shells: they only count for processes with a GPU or below
        `root_pid`. The agent of a Slurm job ignores other jobs on the node.
        """
        if self._root_pid is not None:
            return True
        number = identity.environ.get("SLURM_JOB_ID")
        if is_other_slurm_job(self._settings.job, number, job_name(identity.environ)):
            return False
        return holds_gpu or identity.launcher is not Launcher.SLURM

    def _gpu_of(self, identity: RankIdentity, held: Sequence[HeldMemory]) -> int | None:
        same_container = identity.container_id == self._own_container
        expected = gpu_expected(identity, self._gpus, same_container=same_container)
        return gpu_held(held, expected) if held else expected

    def _by_gpu(
        self, processes: Mapping[int, Process], held: Mapping[int, Sequence[HeldMemory]]
    ) -> list[RankProcess]:
        """Below `root_pid`, the processes that hold GPUs are ranks, if none is named.

        Only if two looks agree: while a process starts, it may hold a little of each GPU.
        """
        before, self._gpu_ranks = self._gpu_ranks, {}
        if self._root_pid is None:
            return []
        holders = {pid: held[pid] for pid in processes if pid in held}
        parents = {pid: next(iter(self._processes.ancestors(pid)), None) for pid in holders}
        self._gpu_ranks = by_gpu(holders, parents)
        count = sum(map(len, self._gpu_ranks.values()))
        if count > 1 and self._gpu_ranks != before:
            return []
        return [
            replace(
                self._rank_process(
                    pid,
                    processes[pid],
                    replace(
                        self._identity(processes[pid], rank=min(ranks), world_size=count),
                        local_rank=min(ranks) if len(ranks) == 1 else None,
                    ),
                    ranks[min(ranks)],
                    holds_gpu=True,
                ),
                gpus_of_ranks=ranks if len(ranks) > 1 else {},
            )
            for pid, ranks in self._gpu_ranks.items()
        ]

    def _by_order(self, processes: Mapping[int, Process]) -> list[RankProcess]:
        """Below `root_pid`, what `torch.multiprocessing.spawn` started; only if two looks agree.

        Once numbered they stay so, whichever of them end.
        """
        if self._root_pid is None:
            return []
        before, self._ordered = self._ordered, by_order(self._started_by_multiprocessing(processes))
        if before == self._ordered and not {*before} <= {*self._numbered.values()}:
            self._numbered = dict(enumerate(before))
        size = len(self._numbered)
        return [
            self._rank_process(
                pid,
                processes[pid],
                replace(self._identity(processes[pid], rank=rank, world_size=size), local_rank=rank),
                None,
                holds_gpu=False,
            )
            for rank, pid in self._numbered.items()
            if pid in processes
        ]

    def _started_by_multiprocessing(self, processes: Mapping[int, Process]) -> Iterator[StartedProcess]:
        for pid, process in processes.items():
            parent = next(iter(self._processes.ancestors(pid)), 0)
            if parent in processes and self._processes.started_by_multiprocessing(pid, parent):
                names = self._processes.thread_names(pid)
                yield StartedProcess(pid=pid, parent=parent, start_ticks=process.start_ticks, threads=names)

    def _job_of(self, identity: RankIdentity) -> str:
        # A name set by an operator or `perfd run` is also that of the log's steps.
        if self._root_pid is not None or self._settings.job != UNNAMED_JOB:
            return self._settings.job
        return identity.job or self._settings.job

    def _counts(
        self,
        now_ns: int,
        processes: Mapping[int, Process],
        held: Mapping[int, Sequence[HeldMemory]],
        ranks: int,
        *,
        foreign: int,
    ) -> SampleTable:
        counts = {"rank_processes": ranks, "foreign_rank_processes": foreign}
        if held or self._root_pid is not None:
            counts["unreadable_processes"] = sum(not process.readable for process in processes.values())
        if self._nvml is not None:
            counts["gpu_processes"] = len(held)
        return SampleTable.of_node(now_ns, counts)


def _open(nvml: Nvml, sys: Path) -> list[Gpu]:
    start(nvml, sys)
    try:
        return _gpus(nvml)
    except Unavailable:
        nvml.nvmlShutdown()
        raise


def _gpus(nvml: Nvml) -> list[Gpu]:
    try:
        indices = range(nvml.nvmlDeviceGetCount())
        return [gpu for index in indices if (gpu := _gpu(nvml, index)) is not None]
    except NvmlError as error:
        raise unavailable(error) from error


def _gpu(nvml: Nvml, index: int) -> Gpu | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return Gpu(
            index=index, name=nvml.nvmlDeviceGetName(handle), uuid=optional(nvml.nvmlDeviceGetUUID, handle)
        )
    except NvmlError as error:
        if fault_of(error) is Fault.GONE:
            raise
        return None  # Lost, or not accessible to this user.
