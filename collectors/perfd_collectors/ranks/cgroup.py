"""The container and pod of a process, from its cgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass

_POD = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)", re.IGNORECASE
)
"""`pod<uid>` in a path: with dashes (cgroupfs), with underscores (systemd), or a static pod's hash."""
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.IGNORECASE)

_SLURM_JOB = re.compile(r"/slurm[^/]*(?:/uid_[0-9]{1,10})?/job_([0-9]{1,10})(?:/|$)")
"""`/slurm/uid_1001/job_4711/step_0` (version 1), `/system.slice/slurmstepd.scope/job_4711/step_0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupIdentity:
    """Pod and container of a process; None when unknown."""

    pod_uid: str | None = None
    container_id: str | None = None
    slurm_job: str | None = None
    """Set by slurmd, where it has cgroups; unlike the environment, the process cannot change it."""


def parse_cgroup(content: bytes) -> CgroupIdentity:
    """Read /proc/PID/cgroup, version 1 or 2, of the systemd or the cgroupfs driver.

    In its own cgroup namespace a container sees only `0::/`, so both are unknown.
    """
    paths = [
        line.split(":", 2)[2]
        for line in content.decode("utf-8", "replace").splitlines()
        if line.count(":") > 1
    ]
    pods = [match for path in paths for match in _POD.findall(path)]
    containers = [match for path in paths for match in _CONTAINER.findall(path)]
    return CgroupIdentity(
        pod_uid=pods[-1].lower().replace("_", "-") if pods else None,
        # Containers may be nested, as in kind: the innermost is the last.
        container_id=containers[-1].lower() if containers else None,
        slurm_job=next((found[1] for path in paths if (found := _SLURM_JOB.search(path))), None),
    )
