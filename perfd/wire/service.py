"""Constants shared by both ends of the stream: its method, revision, and gRPC options."""

from __future__ import annotations

REVISION = 1
"""Revision of the protocol; an aggregator refuses unknown revisions."""

CONNECT_METHOD = "/perfd.wire.v1.Telemetry/Connect"

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest message. gRPC's default of 4 MiB is exceeded by the timers of one step on 16,000 ranks."""

_KEEPALIVE_MS = 30_000
"""Interval of keepalive pings, which detect a dead peer. Chosen, not measured."""
_KEEPALIVE_TIMEOUT_MS = 10_000
"""A peer that does not acknowledge a ping for so long is dead. Chosen, not measured."""

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # Otherwise a new channel inherits the backoff of the last one; the agent has its own policy.
    ("grpc.use_local_subchannel_pool", 1),
    # A web proxy in a job's environment does not lead to the aggregator.
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # By default a server treats pings on an idle stream as an attack and closes it.
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 3),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # Otherwise it sends a ping with each message that arrives, to adapt its window: a third to a half of what
    # gRPC costs the aggregator. The fixed one of 64 KiB lets an agent send 1 MB/s over a distance of 60 ms.
    ("grpc.http2.bdp_probe", 0),
    # Otherwise a second server on the same port would silently get half of the agents.
    ("grpc.so_reuseport", 0),
)
