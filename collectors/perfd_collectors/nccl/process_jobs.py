"""Which job a process with a segment belongs to: an agent may serve a node on which several jobs run."""

from __future__ import annotations

import re

from perfd.capture.node import RUN_VARIABLE, environment_of
from perfd.collector import UNNAMED_JOB, Settings
from perfd_collectors.ranks.cgroup import CgroupIdentity, parse_cgroup
from perfd_collectors.ranks.environment import job_name

_SLURM_JOB = re.compile(r"\d+(_\d+)?")


class ProcessJobs:
    """The job of each process, named as the collector `ranks` names it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def job_of(self, pid: int) -> str | None:
        """The job of a process; None for one that another agent reports.

        A pod's own agent reports its ranks, the agent of a SLURM job or of `perfd run` only those of its job.
        A process whose environment is unreadable counts as ours.
        """
        settings = self._settings
        environment = environment_of(settings.proc, pid)
        if settings.run is not None and environment and environment.get(RUN_VARIABLE) != settings.run:
            return None
        cgroup = self._cgroup(pid)
        pod = settings.pod_jobs.of(cgroup.pod_uid)
        if pod is not None:
            return None if pod.own_agent else pod.job
        named = job_name(environment)
        if settings.job == UNNAMED_JOB:
            return cgroup.slurm_job if named is None and cgroup.slurm_job else named or settings.job
        number = cgroup.slurm_job or environment.get("SLURM_JOB_ID")
        same = {number, environment.get("SLURM_JOB_ID"), named}
        if number and _SLURM_JOB.fullmatch(settings.job) and settings.job not in same:
            return None
        return settings.job

    def _cgroup(self, pid: int) -> CgroupIdentity:
        try:
            return parse_cgroup((self._settings.proc / str(pid) / "cgroup").read_bytes())
        except OSError:
            return CgroupIdentity()
