"""The `pod_resources` collector: the namespace, pod and container of each GPU and MIG slice of a node.

The kubelet's pod-resources API, version 1, says it on its Unix socket.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from perfd.collector import CollectorSpec, Column, Options, Settings
from perfd.errors import PerfdError, Unavailable
from perfd.model import GpuAllocation, GpuAllocations, Record, SampleTable, Scope
from perfd_collectors.pod_resources.gpu_devices import (
    allocatable_gpus,
    dynamic_gpu_claims,
    gpu_allocations,
)
from perfd_collectors.pod_resources.pod_resources_pb2 import (
    AllocatableResourcesResponse,
    ListPodResourcesResponse,
)

_Answer = TypeVar("_Answer", bound=Message)
_SERVICE = "/v1.PodResourcesLister/"
_TIMEOUT_S = 1.0
"""The kubelet answers from memory; a collector may block for a second."""
_MOST_BYTES = 16 << 20
"""Of an answer, as the kubelet's own client allows."""
_OPTIONS = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.enable_http_proxy", 0)]
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)
log = logging.getLogger(__name__)
_REPEAT_EVERY_S = 60.0
"""How often the containers are repeated, for aggregators that start later. Chosen, not measured."""


class KubeletApi:
    """One connection to the kubelet."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)

    def pods(self) -> ListPodResourcesResponse:
        """The devices of all containers.

        Raises `Unavailable` when the kubelet does not listen, `PerfdError` when it refuses.
        """
        try:
            return self._call("List", ListPodResourcesResponse.FromString)
        except grpc.RpcError as error:
            raise self._failure(error) from error

    def allocatable(self) -> AllocatableResourcesResponse | None:
        """The devices that the kubelet gives to pods, in use or not; None when it does not say."""
        try:
            return self._call("GetAllocatableResources", AllocatableResourcesResponse.FromString)
        except grpc.RpcError:
            return None

    def close(self) -> None:
        """Close the connection; legal twice."""
        self._channel.close()

    def _call(self, method: str, decode: Callable[[bytes], _Answer]) -> _Answer:
        # Both requests are messages without fields.
        call = self._channel.unary_unary(
            _SERVICE + method, request_serializer=bytes, response_deserializer=decode
        )
        answer: _Answer = call(b"", timeout=_TIMEOUT_S)
        return answer

    def _failure(self, error: grpc.RpcError) -> PerfdError:
        code = error.code() if isinstance(error, grpc.Call) else None
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        message = f"The kubelet does not answer on {self._socket}: {details}."
        return Unavailable(message) if code in _GONE else PerfdError(message)


class PodResourcesOptions(Options, frozen=True):
    """Where the kubelet listens."""

    socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The unix socket of the kubelet's pod-resources API."""


class PodResourcesCollector:
    """Asks the kubelet at each collect; raises `Unavailable` when it does not listen."""

    def __init__(self, options: PodResourcesOptions, settings: Settings) -> None:
        socket = Path(options.socket)
        if not socket.is_socket():
            raise Unavailable(f"{socket} is not a socket: mount the kubelet's folder pod-resources.")
        self._clock = settings.clock
        self._api = KubeletApi(socket)
        self._reported: list[GpuAllocation] | None = None
        self._repeat_due_s = -math.inf
        self._warned = False

    def collect(self) -> Sequence[Record]:
        answer = self._api.pods()
        given, claims = gpu_allocations(answer), dynamic_gpu_claims(answer)
        if claims and not self._warned:
            log.warning(
                "GPUs by dynamic resource allocation carry no pod: the kubelet does not name them by UUID.",
                extra={"devices": claims},
            )
        self._warned = claims > 0
        allocatable = self._api.allocatable()
        counts = {
            "allocated_gpu_devices": len(given),
            "allocatable_gpu_devices": math.nan if allocatable is None else allocatable_gpus(allocatable),
        }
        return [SampleTable.of_node(self._clock.unix_ns(), counts), *self._news(given)]

    def close(self) -> None:
        self._api.close()

    def _news(self, given: list[GpuAllocation]) -> Sequence[Record]:
        now_s = self._clock.monotonic_s()
        if given == self._reported and now_s < self._repeat_due_s:
            return ()
        self._reported, self._repeat_due_s = given, now_s + _REPEAT_EVERY_S
        return (GpuAllocations(devices=given),)


_COLUMNS = (
    Column(
        scope=Scope.NODE,
        name="allocated_gpu_devices",
        help="GPUs and MIG slices that containers have; one that several share counts once.",
        source="the kubelet's pod-resources API, List",
        absent="Without the kubelet's socket.",
    ),
    Column(
        scope=Scope.NODE,
        name="allocatable_gpu_devices",
        help="GPUs and MIG slices that the kubelet gives to pods, in use or not, without unhealthy ones.",
        source="the kubelet's pod-resources API, GetAllocatableResources",
        absent="Before Kubernetes 1.23.",
    ),
)


SPEC = CollectorSpec(
    name="pod_resources",
    options=PodResourcesOptions,
    create=PodResourcesCollector,
    interval_s=5.0,
    enabled=False,
    columns=_COLUMNS,
)
