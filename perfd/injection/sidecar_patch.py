"""What changes in a pod so that it has perfd's agent, as a JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from perfd.config.unknown_keys import Strict
from perfd.injection.pod_job_name import job_of_labels

Document = Mapping[str, Any]
Patch = list[dict[str, Any]]

LABEL = "perfd/inject"
_JOB = "perfd/job"
_AGENTS = {"perfd", "perfd-agent"}
_GPU = "nvidia.com/"
_MOUNT = {"name": "perfd", "mountPath": "/run/perfd"}


class Injection(Strict, frozen=True):
    """What is added, as the Helm chart writes it."""

    containers: list[dict[str, Any]]
    """Init containers, which come before the pod's own."""
    volumes: list[dict[str, Any]]
    env: dict[str, str]
    """For each of the pod's containers; a variable that a container sets itself stays."""
    job_labels: list[str]
    """Labels that name a pod's job, the first one that it has."""
    gpu_pods_only: bool = True
    """Leave out pods that ask for no GPU and have no label `perfd/inject` of their own."""
    share_process_namespace: bool = True


def patch_of(pod: Document, injection: Injection) -> Patch:
    """The patch of a pod whose namespace, or that itself, asks for perfd; empty when it is left as it is."""
    if not _wanted(pod, injection):
        return []
    metadata, spec = pod.get("metadata") or {}, pod["spec"]
    patch = _merged(metadata.get("labels"), "/metadata/labels", {"perfd-agent": "injected"})
    patch += _merged(metadata.get("annotations"), "/metadata/annotations", {_JOB: _job(metadata, injection)})
    if injection.share_process_namespace:
        patch.append(_add("/spec/shareProcessNamespace", True))
    patch += _appended(spec.get("volumes"), "/spec/volumes", injection.volumes)
    for number, container in enumerate(spec["containers"]):
        own = {one.get("name") for one in container.get("env") or []}
        env = [{"name": name, "value": value} for name, value in injection.env.items() if name not in own]
        place = f"/spec/containers/{number}"
        patch += _appended(container.get("env"), f"{place}/env", env)
        patch += _appended(container.get("volumeMounts"), f"{place}/volumeMounts", [_MOUNT])
    return patch + _init_containers(spec, injection)


def _wanted(pod: Document, injection: Injection) -> bool:
    spec = pod["spec"]
    label = ((pod.get("metadata") or {}).get("labels") or {}).get(LABEL)
    present = {container.get("name") for container in spec.get("initContainers") or []}
    if label not in {None, "true"} or present & _AGENTS:
        return False
    return label == "true" or not injection.gpu_pods_only or any(map(_has_gpu, spec["containers"]))


def _has_gpu(container: Document) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return any(name.startswith(_GPU) for name in limits)


def _job(metadata: Document, injection: Injection) -> str:
    labels = metadata.get("labels") or {}
    owners = [one["name"] for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    named = job_of_labels(labels, injection.job_labels)
    return str(named or [*owners, metadata.get("name") or "default"][0])


def _init_containers(spec: Document, injection: Injection) -> Patch:
    patch = [] if spec.get("initContainers") else [_add("/spec/initContainers", [])]
    for number, template in enumerate(injection.containers):
        container = copy.deepcopy(template)
        container["securityContext"] = {**container.get("securityContext", {}), **_user(spec)}
        patch.append(_add(f"/spec/initContainers/{number}", container))
    return patch


def _user(spec: Document) -> dict[str, Any]:
    """The training's user: being the same is why the agent needs no privilege.

    A user that only the image names is not known: then it is root, or perfd's own where root is forbidden.
    """
    contexts = [spec["containers"][0].get("securityContext") or {}, spec.get("securityContext") or {}]
    rootless = any(context.get("runAsNonRoot") for context in contexts)
    users = [context["runAsUser"] for context in contexts if context.get("runAsUser") is not None]
    found: dict[str, Any] = {"runAsNonRoot": True} if rootless else {}
    if users:
        found["runAsUser"] = users[0]
    elif not rootless:
        found["runAsUser"] = 0
    return found


def _add(path: str, value: object) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _merged(before: Document | None, path: str, values: Mapping[str, str]) -> Patch:
    if not before:
        return [_add(path, dict(values))]
    return [_add(f"{path}/{key.replace('~', '~0').replace('/', '~1')}", values[key]) for key in values]


def _appended(before: Sequence[object] | None, path: str, values: Sequence[object]) -> Patch:
    if not before:
        return [_add(path, list(values))] if values else []
    return [_add(f"{path}/-", value) for value in values]
