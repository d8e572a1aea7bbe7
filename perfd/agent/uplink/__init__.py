"""The agent's end of its connection: connects, sends batches, receives acknowledgments and requests."""

from perfd.agent.uplink.grpc_uplink import GrpcUplink
from perfd.agent.uplink.nats_publisher import NatsPublisher, PartitionRoutes, new_session
from perfd.agent.uplink.nats_uplink import NatsUplink
from perfd.agent.uplink.unstored_batches import UnstoredBatches
from perfd.agent.uplink.uplink import Uplink, UplinkState

__all__ = [
    "GrpcUplink",
    "NatsPublisher",
    "NatsUplink",
    "PartitionRoutes",
    "UnstoredBatches",
    "Uplink",
    "UplinkState",
    "new_session",
]
