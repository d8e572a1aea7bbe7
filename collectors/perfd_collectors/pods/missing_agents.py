"""Pods that ask for perfd's agent and run without one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from perfd_collectors.pods.known_pods import KnownPod
from perfd_collectors.pods.namespace_reader import NamespaceFacts
from perfd_collectors.pods.pod_facts import PodFacts

log = logging.getLogger(__name__)

_LABEL = "perfd/inject"


def wants_agent(pod: PodFacts, namespace: NamespaceFacts | None, *, gpu_pods_only: bool) -> bool:
    """Whether the admission policy or webhook should have added an agent, as the chart's conditions say."""
    own = pod.labels.get(_LABEL)
    if own is not None:
        return own == "true"
    labeled = namespace is not None and namespace.labels.get(_LABEL) == "true"
    return labeled and (pod.has_gpu or not gpu_pods_only)


class MissingAgents:
    """Names each such pod once, in the log."""

    def __init__(self) -> None:
        self._logged: frozenset[str] = frozenset()

    def look(self, missing: Sequence[KnownPod]) -> None:
        """`missing` are all such pods that run now."""
        for pod in missing:
            if pod.folder.uid not in self._logged:
                log.warning(
                    "A pod that asks for perfd's agent by the label perfd/inject has none: it began before "
                    "the label or the admission policy took effect, or the admission failed. Restart it.",
                    extra={"namespace": pod.folder.namespace, "pod": pod.folder.name, "job": pod.job},
                )
        self._logged = frozenset(pod.folder.uid for pod in missing)
