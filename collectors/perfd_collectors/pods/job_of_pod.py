"""Which job a pod belongs to: by labels of those who make pods, by its owner, or by its name."""

from __future__ import annotations

import re

from perfd.injection.pod_job_name import job_of_labels
from perfd_collectors.pods.pod_facts import PodFacts

LABELS = (
    "perfd/job",
    # A TrainJob makes a JobSet with its name.
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/originated-from-cr-name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""From the outermost owner to the innermost: a JobSet's pods are also those of a Job."""
_REPLICA_SET = re.compile(r"-[a-z0-9]{6,10}$")
_PYTORCH = re.compile(r"-(?:master|worker|launcher)-\d{1,6}$")
_RANDOM = r"-[bcdfghjklmnpqrstvwxz2456789]{5}"
_RANDOM_END = re.compile(_RANDOM + "$")
_INDEXED = re.compile(rf"-\d{{1,6}}{_RANDOM}$")


def job_of(pod: PodFacts) -> str:
    """The name of a pod's job, without its namespace."""
    labelled = job_of_labels(pod.labels, LABELS)
    if labelled is not None:
        return labelled
    if pod.owner_kind == "ReplicaSet":
        return _REPLICA_SET.sub("", pod.owner_name)
    return pod.owner_name or pod.name


def job_of_name(name: str) -> str:
    """The name of the job that a pod of this name is of, where the API server says nothing.

    Pods of a Job end in five random characters, indexed ones in their number before that, those of a
    PyTorchJob in role and number. Pods of other owners may keep a number of theirs.
    """
    for pattern in (_INDEXED, _RANDOM_END, _PYTORCH):
        if (found := pattern.search(name)) is not None and found.start() > 0:
            return name[: found.start()]
    return name
