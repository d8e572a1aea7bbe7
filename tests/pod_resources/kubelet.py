"""A stand-in for the kubelet's pod-resources API: a gRPC server on a unix socket, with messages of version 1.

Messages are written field by field, as the kubelet's api.proto numbers them, and not with the generated code
that is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import grpc

UUIDS = tuple(f"GPU-fef8089b-4820-abfc-e83e-9431819757{number:02x}" for number in range(8))
SLICE = "MIG-5c2d1f3a-9e0b-5f11-8d6c-3f0a7b1c2d4e"


def field(number: int, content: bytes | str) -> bytes:
    """A field of text, bytes or a message."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A number of variable length."""
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def devices(resource: str, *ids: str) -> bytes:
    """A ContainerDevices, with a topology of one NUMA node."""
    return field(1, resource) + b"".join(field(2, id_) for id_ in ids) + field(3, field(1, b"\x08\x01"))


def container(name: str, *given: bytes, claims: Iterable[tuple[str, str]] = ()) -> bytes:
    """A ContainerResources; `claims` are drivers and devices of dynamic resource allocation."""
    dynamic = b"".join(
        field(4, field(1, field(1, "k8s.gpu.nvidia.com/claim=x")) + field(2, driver) + field(4, device))
        for driver, device in claims
    )
    memory = field(1, "memory") + b"\x10\x80\x08"
    return (
        field(1, name)
        + b"".join(field(2, one) for one in given)
        + field(3, b"\x00\x01\x02")
        + field(4, memory)
        + (field(5, field(2, "claim") + field(3, "research") + dynamic) if dynamic else b"")
    )


def pod(name: str, *containers: bytes, namespace: str = "research") -> bytes:
    """A PodResources."""
    return field(1, name) + field(2, namespace) + b"".join(field(3, one) for one in containers)


def training_pod(
    name: str, *ids: str, namespace: str = "research", resource: str = "nvidia.com/gpu"
) -> bytes:
    """A pod whose container `train` has these devices."""
    return pod(name, container("train", devices(resource, *ids)), namespace=namespace)


def listed(*pods: bytes) -> bytes:
    """A ListPodResourcesResponse."""
    return b"".join(field(1, one) for one in pods)


class Kubelet:
    """Answers with `pods` and `allocatable`; what is None is not implemented."""

    def __init__(self, socket: Path) -> None:
        self.pods: bytes | None = b""
        self.allocatable: Sequence[bytes] | None = ()
        self.status: grpc.StatusCode | None = None
        self._server = grpc.server(ThreadPoolExecutor(max_workers=2))
        methods: Mapping[str, grpc.RpcMethodHandler] = {
            "List": grpc.unary_unary_rpc_method_handler(self._list),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._allocatable),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),)
        )
        self._server.add_insecure_port(f"unix:{socket}")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None).wait()

    def _list(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        if self.status is not None:
            context.abort(self.status, "said the stand-in")
        if self.pods is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service v1.PodResourcesLister")
        return self.pods

    def _allocatable(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        if self.allocatable is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method GetAllocatableResources")
        return b"".join(field(1, one) for one in self.allocatable)
