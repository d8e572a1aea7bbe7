"""Which job a process belongs to: an agent may serve a node on which several jobs run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from perfd.capture.node import RUN_VARIABLE, environment_of
from perfd.collector import UNNAMED_JOB, Settings
from perfd_collectors.ranks.cgroup import CgroupIdentity, parse_cgroup
from perfd_collectors.ranks.environment import is_other_slurm_job, job_name


class ProcessJobs:
    """The job of each process, named as the collector `ranks` names it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[int, str | None] = {}

    def job_of(self, pid: int) -> str | None:
        """A process's job; None if another agent reports the process.

        A pod's own agent reports its ranks, the agent of a SLURM job or of `perfd run` only those of its job.
        A process with an unreadable environment counts as this agent's; one that has ended keeps its job.
        """
        environment = environment_of(self._settings.proc, pid)
        if not environment and pid in self._known:
            return self._known[pid]
        job = self._named(pid, environment)
        if environment or job != self._settings.job:
            self._known[pid] = job
        return job

    def keep(self, pids: Collection[int]) -> None:
        """Forget all processes but these."""
        self._known = {pid: job for pid, job in self._known.items() if pid in pids}

    def _named(self, pid: int, environment: Mapping[str, str]) -> str | None:
        settings = self._settings
        if settings.run is not None and self._of_other_run(pid, environment):
            return None
        cgroup = self._cgroup(pid)
        pod = settings.pod_jobs.of(cgroup.pod_uid)
        if pod is not None:
            return None if pod.own_agent else pod.job
        named = job_name(environment)
        if settings.job == UNNAMED_JOB:
            return cgroup.slurm_job if named is None and cgroup.slurm_job else named or settings.job
        number = environment.get("SLURM_JOB_ID")
        other = is_other_slurm_job(settings.job, cgroup.slurm_job or number, number, named)
        return None if other else settings.job

    def _of_other_run(self, pid: int, environment: Mapping[str, str]) -> bool:
        """Whether a process is not of this `perfd run`; one that had ended before it was seen does not count.

        A job that was killed leaves its segments behind, which the agent of the next one finds.
        """
        if environment:
            return environment.get(RUN_VARIABLE) != self._settings.run
        return not (self._settings.proc / str(pid)).exists()

    def _cgroup(self, pid: int) -> CgroupIdentity:
        try:
            return parse_cgroup((self._settings.proc / str(pid) / "cgroup").read_bytes())
        except OSError:
            return CgroupIdentity()
