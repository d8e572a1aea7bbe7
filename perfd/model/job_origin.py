"""Whose job it is, and which start of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_NODES = 16_384
"""Most nodes in one list, so that a hostile range is not expanded."""
_GROUP = re.compile(r"([^,\[\]]*)(?:\[([0-9,-]{1,4096})\])?([^,\[\]]*)")
JOB_LABEL = "perfd_job"
"""The name by which the aggregator knows the job; Prometheus uses `job` for the scrape itself."""
JOB_LABELS = ("cluster", "namespace", JOB_LABEL)
"""They identify a job over several aggregators: rules join on all of them."""
OWNER_LABELS = ("user", "account", "partition")
"""Whose it is, where the scheduler says; the same for all series of a job."""
_MOST_CHARS = 128
"""Of what a scheduler or a pod says: the job's own name, which is bounded elsewhere, is never cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrigin:
    """What scheduler and launcher say of a job.

    Jobs of one name that differ in cluster, namespace or owner are different jobs. What is empty is not
    known, and differs from nothing.
    """

    job: str
    cluster: str = ""
    namespace: str = ""
    """The Kubernetes namespace."""
    owner: str = ""
    """The user: `uid:1001`. Where the scheduler knows the user's name, it is in `user`."""
    user: str = ""
    account: str = ""
    """The account or project that pays for it (SLURM_JOB_ACCOUNT)."""
    partition: str = ""
    """The scheduler's queue (SLURM_JOB_PARTITION)."""
    title: str = ""
    """What its user calls it, which need not be unique (SLURM_JOB_NAME)."""
    array_job: str = ""
    """The array that it is a task of (SLURM_ARRAY_JOB_ID)."""
    array_task: str = ""
    """Its index there (SLURM_ARRAY_TASK_ID)."""
    het_group: int | None = None
    """The reporting node's group in a heterogeneous job, from 0 (PERFD_HET_GROUP)."""
    nodes: Sequence[str] = ()
    """The nodes that the scheduler gave to the job; empty when not known."""
    scheduler_restarts: int | None = None
    """How often the scheduler has requeued it (SLURM_RESTART_COUNT)."""
    launcher_restarts: int | None = None
    """How often torchelastic has restarted its workers since (TORCHELASTIC_RESTART_COUNT)."""

    def may_be(self, other: JobOrigin) -> bool:
        """Whether both may be of one job: nothing that is known of both differs."""
        pairs = (
            (self.cluster, other.cluster),
            (self.namespace, other.namespace),
            (self.owner, other.owner),
        )
        return all(not mine or not theirs or mine == theirs for mine, theirs in pairs)


def job_origin(job: str, environ: Mapping[str, str], *, owner: str = "") -> JobOrigin:
    """What the environment of a job's process, or of its agent, says of the job.

    `PERFD_CLUSTER` and `PERFD_NAMESPACE` override what the scheduler sets.
    """
    slurm = bool(environ.get("SLURM_JOB_ID"))
    uid = environ.get("SLURM_JOB_UID", "")
    return JobOrigin(
        job=job,
        cluster=environ.get("PERFD_CLUSTER") or environ.get("SLURM_CLUSTER_NAME") or "",
        namespace=environ.get("PERFD_NAMESPACE") or environ.get("POD_NAMESPACE") or "",
        owner=f"uid:{uid}" if uid.isdecimal() else owner,
        user=environ.get("SLURM_JOB_USER", ""),
        account=environ.get("SLURM_JOB_ACCOUNT", ""),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        title=environ.get("SLURM_JOB_NAME", "") if slurm else "",
        array_job=environ.get("SLURM_ARRAY_JOB_ID", ""),
        array_task=environ.get("SLURM_ARRAY_TASK_ID", ""),
        het_group=_count(environ.get("PERFD_HET_GROUP", "")),
        # Each component of a heterogeneous job has a list of its nodes only.
        nodes=() if environ.get("SLURM_HET_SIZE") else expand_hostlist(environ.get("SLURM_JOB_NODELIST", "")),
        # Slurm sets it from the first restart on.
        scheduler_restarts=_count(environ.get("SLURM_RESTART_COUNT", "0")) if slurm else None,
        launcher_restarts=_count(environ.get("TORCHELASTIC_RESTART_COUNT", "")),
    )


def expand_hostlist(text: str) -> tuple[str, ...]:
    """The nodes of Slurm's `n[01-03,7],login1`; empty when it is something else, or too many."""
    nodes: list[str] = []
    groups = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    if ",".join(groups) != text:
        return ()
    for group in groups:
        found = _GROUP.fullmatch(group)
        numbers = None if found is None else _numbers(found[2])
        if found is None or numbers is None or len(nodes) + len(numbers) > _MOST_NODES:
            return ()
        nodes += [f"{found[1]}{number}{found[3]}" for number in numbers]
    return tuple(nodes)


def _numbers(ranges: str | None) -> list[str] | None:
    if ranges is None:
        return [""]
    numbers: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        # Longer ones would name more nodes than there are.
        if not (first.isdigit() and last.isdigit() and len(last) <= 9):
            return None
        if not 0 <= int(last) - int(first) < _MOST_NODES:
            return None
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def job_labels(job: str, origin: JobOrigin | None = None) -> dict[str, str]:
    """The labels of a job by its name and what is known of its origin; unknown ones are left out."""
    labels = {JOB_LABEL: job}
    if origin is not None:
        labels |= {
            "cluster": origin.cluster,
            "namespace": origin.namespace,
            "user": origin.user or origin.owner,
            "account": origin.account,
            "partition": origin.partition,
        }
    return {
        label: text[:_MOST_CHARS] if label != JOB_LABEL else text for label, text in labels.items() if text
    }
