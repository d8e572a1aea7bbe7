"""Whose a pod is: its queue, and its owner."""

from __future__ import annotations

from collections.abc import Sequence

from perfd_collectors.pods.namespace_reader import NamespaceFacts
from perfd_collectors.pods.pod_facts import PodFacts

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
