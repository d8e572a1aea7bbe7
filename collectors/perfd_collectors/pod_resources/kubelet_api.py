"""Asks the kubelet's pod-resources API, version 1, on its unix socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from perfd.errors import PerfdError, Unavailable
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
