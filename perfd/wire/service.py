"""What both ends of the stream must agree on beside the messages: its name, and limits of gRPC."""

from __future__ import annotations

REVISION = 1
"""Of the protocol; an aggregator refuses a revision that it does not know."""

CONNECT_METHOD = "/perfd.wire.v1.Telemetry/Connect"

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Neither side sends more in one message. gRPC alone would refuse 4 MiB, which one step's timers
of 16,000 ranks exceed."""

_KEEPALIVE_MS = 30_000

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Otherwise a new channel inherits the backoff of the last one; the agent has a policy of its own.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy for the web that a job's environment names is no way to the aggregator.
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # By default a server takes pings on a quiet stream for an attack and closes it.
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 3),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Without it a second server on the same port would be silently given half of the agents.
    ("grpc.so_reuseport", 0),
)
