"""A client of XLA's profiler server: gRPC without encryption, on a port of this machine."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Protocol

import grpc
from google.protobuf.message import Message

from perfd.capture.jax.profiler_service_pb2 import ProfileOptions, ProfileRequest, TerminateRequest

_SERVICE = "/tensorflow.ProfilerService/"
_ANSWER_S = 2.0
"""For answers that take no work. Chosen, not measured."""
_NO_SESSION = "perfd-probe"
"""No session is named so: the server notes it and goes on."""
_CHANNEL = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


class Profile(Protocol):
    """A profile that a server takes: gRPC's future."""

    def done(self) -> bool:
        """Whether the server has answered."""

    def cancel(self) -> bool:
        """End it; the server writes nothing then."""

    def result(self, timeout: float | None = None) -> object:
        """Wait for the answer; raises `grpc.RpcError`, or `grpc.FutureTimeoutError` after the timeout."""


class ProfilerClient:
    """One connection; closed by `close`."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_CHANNEL)

    def answers(self) -> bool:
        """Whether the port has a profiler server: ending a session that does not exist succeeds there."""
        try:
            self.terminate(_NO_SESSION)
        except grpc.RpcError:
            return False
        return True

    def profile(self, folder: PurePosixPath, host: str, length_s: float) -> Profile:
        """Start a profile that becomes `folder`/`host`.xplane.pb; the name of the folder is its session.

        It begins at once, and ends after `length_s`, at `terminate`, or when this connection is lost.
        """
        length_ms = round(length_s * 1e3)
        request = ProfileRequest(
            duration_ms=length_ms,
            # Python's own calls would slow the job; its annotations and XLA's work are in level 2.
            opts=ProfileOptions(
                version=1,
                host_tracer_level=2,
                device_tracer_level=1,
                enable_hlo_proto=True,
                duration_ms=length_ms,
            ),
            repository_root=str(folder.parent),
            session_id=folder.name,
            host_name=host,
        )
        call = self._channel.unary_unary(
            _SERVICE + "Profile", request_serializer=_encoded, response_deserializer=bytes
        )
        started: Profile = call.future(request)
        return started

    def terminate(self, session: str) -> None:
        """End a profile, whose file is then written; raises `grpc.RpcError`."""
        call = self._channel.unary_unary(
            _SERVICE + "Terminate", request_serializer=_encoded, response_deserializer=bytes
        )
        call(TerminateRequest(session_id=session), timeout=_ANSWER_S)

    def close(self) -> None:
        """Close the connection, and cancel a profile that still runs."""
        self._channel.close()


def _encoded(message: Message) -> bytes:
    return message.SerializeToString()
