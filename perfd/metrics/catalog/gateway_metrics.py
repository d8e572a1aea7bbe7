"""Metrics on a gateway's own page."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import MetricInfo, metric

_SELF = "gateway"

GATEWAY_METRICS: Sequence[MetricInfo] = (
    metric(
        "perfd_gateway_build_info", "Version of the gateway; always 1.", labels=("version",), source=_SELF
    ),
    metric("perfd_gateway_nats_connected", "1 while NATS is connected, else 0.", source=_SELF),
    metric("perfd_gateway_agents", "Agents with an open stream.", source=_SELF),
    metric(
        "perfd_gateway_batches_total", "Batches published, those that were sent again included.", source=_SELF
    ),
    metric(
        "perfd_gateway_unacknowledged_messages",
        "Messages published that JetStream has not acknowledged yet.",
        source=_SELF,
    ),
    metric(
        "perfd_gateway_malformed_messages_total",
        "Messages of agents that could not be read, and were left out.",
        source=_SELF,
    ),
    metric(
        "perfd_gateway_rejected_total",
        "Streams refused because a limit was reached.",
        labels=("bound",),
        source=_SELF,
        absent="When nothing was refused by that limit.",
    ),
)
