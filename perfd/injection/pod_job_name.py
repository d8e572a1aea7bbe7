"""Reads a job's name from the labels that an operator sets on its pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_RAY_CLUSTER = "ray.io/cluster"
_MADE_BY_KUBERAY = re.compile(r"(.+)-raycluster-[bcdfghjklmnpqrstvwxz2456789]{5}")
"""The cluster of a RayJob or RayService; no label of its pods has the RayJob's name (KubeRay 1.1 to 1.3)."""


def job_of_labels(labels: Mapping[str, str], keys: Sequence[str]) -> str | None:
    """The value of the first of these labels that is not empty; None if all are.

    For a RayJob's cluster it is the RayJob's name, like that of the submitter's pod.
    """
    key = next((key for key in keys if labels.get(key)), None)
    if key is None:
        return None
    made = _MADE_BY_KUBERAY.fullmatch(labels[key]) if key == _RAY_CLUSTER else None
    return labels[key] if made is None else made[1]
