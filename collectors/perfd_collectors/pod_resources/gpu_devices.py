"""The GPUs and MIG slices among the devices that the kubelet gave to containers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfd.model import GpuAllocation
from perfd_collectors.pod_resources.pod_resources_pb2 import (
    AllocatableResourcesResponse,
    ListPodResourcesResponse,
)

_DEVICE = re.compile(r"((?:GPU|MIG)-[0-9A-Za-z/-]{1,100})(?:::\d{1,6})?")
"""An id of NVIDIA's device plugin: the UUID that NVML has, and a number where containers share a GPU."""

_DRIVER = "gpu.nvidia.com"


def gpu_allocations(answer: ListPodResourcesResponse) -> list[GpuAllocation]:
    """The container of each GPU that one has, by UUID; what containers of a shared GPU do not share is empty.

    Devices of other kinds are left out, whatever their resource is called: plugins let operators name it.
    """
    found: dict[str, GpuAllocation] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for uuid in _uuids(id_ for devices in container.devices for id_ in devices.device_ids):
                given = GpuAllocation(
                    uuid=uuid, namespace=pod.namespace, pod=pod.name, container=container.name
                )
                found[uuid] = _shared(found.get(uuid, given), given)
    return [found[uuid] for uuid in sorted(found)]


def allocatable_gpus(answer: AllocatableResourcesResponse) -> int:
    """How many GPUs and MIG slices the kubelet gives to pods: those that their plugin calls healthy."""
    return len(_uuids(id_ for devices in answer.devices for id_ in devices.device_ids))


def dynamic_gpu_claims(answer: ListPodResourcesResponse) -> int:
    """How many GPUs containers have by dynamic resource allocation.

    Their names are not the UUIDs that NVML has.
    """
    return sum(
        claim.driver_name == _DRIVER
        for pod in answer.pod_resources
        for container in pod.containers
        for resource in container.dynamic_resources
        for claim in resource.claim_resources
    )


def _uuids(device_ids: Iterable[str]) -> set[str]:
    return {match[1] for id_ in device_ids if (match := _DEVICE.fullmatch(id_)) is not None}


def _shared(one: GpuAllocation, other: GpuAllocation) -> GpuAllocation:
    same_namespace = one.namespace == other.namespace
    same_pod = same_namespace and one.pod == other.pod
    return GpuAllocation(
        uuid=one.uuid,
        namespace=one.namespace if same_namespace else "",
        pod=one.pod if same_pod else "",
        container=one.container if same_pod and one.container == other.container else "",
    )
