"""The name of a job by the labels that an operator gives its pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_RAY_CLUSTER = "ray.io/cluster"
_MADE_BY_KUBERAY = re.compile(r"(.+)-raycluster-[bcdfghjklmnpqrstvwxz2456789]{5}")
"""The cluster of a RayJob or RayService, whose pods have no label with that name (KubeRay 1.1 to 1.3)."""


def job_of_labels(labels: Mapping[str, str], keys: Sequence[str]) -> str | None:
    """The first of these labels that says something; None without any.

    A RayJob's cluster counts as the RayJob, as the pod that submits it does.
    """
    key = next((key for key in keys if labels.get(key)), None)
    if key is None:
        return None
    made = _MADE_BY_KUBERAY.fullmatch(labels[key]) if key == _RAY_CLUSTER else None
    return labels[key] if made is None else made[1]
