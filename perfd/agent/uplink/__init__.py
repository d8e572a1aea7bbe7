"""The agent's end of its connection: connects, sends batches, receives acknowledgments and requests."""

from perfd.agent.uplink.grpc_uplink import GrpcUplink
from perfd.agent.uplink.nats_uplink import NatsUplink
from perfd.agent.uplink.uplink import Uplink, UplinkState

__all__ = [
    "GrpcUplink",
    "NatsUplink",
    "Uplink",
    "UplinkState",
]
