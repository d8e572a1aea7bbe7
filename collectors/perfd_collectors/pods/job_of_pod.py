"""Which job a pod belongs to, by labels of those who make pods, its owner or its name; and whose it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.injection.pod_job_name import job_of_labels
from perfd_collectors.pods.namespace_reader import NamespaceFacts
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


_QUEUES = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/local-queue-name", "volcano.sh/queue-name")
"""A user writes the first on a pod; Kueue adds the second to pods of the jobs that it admits."""
_MOST_CHARS = 128
"""Of an owner's name: annotations may be long."""


def queue_of(pod: PodFacts) -> str:
    """The queue of Kueue (the local queue) or Volcano; empty if there is none."""
    return next((pod.labels[label] for label in _QUEUES if pod.labels.get(label)), "")


def owner_of(pod: PodFacts, namespace: NamespaceFacts | None, keys: Sequence[str]) -> str:
    """The first of these labels of the pod, or labels or annotations of its namespace, that says something.

    Otherwise the pod's service account, unless all pods have it; empty while the namespace is not known.
    """
    for key in keys:
        if pod.labels.get(key):
            return pod.labels[key][:_MOST_CHARS]
    if namespace is None:
        return ""
    for key in keys:
        if found := namespace.labels.get(key) or namespace.annotations.get(key):
            return found[:_MOST_CHARS]
    return "" if pod.service_account == "default" else pod.service_account[:_MOST_CHARS]
