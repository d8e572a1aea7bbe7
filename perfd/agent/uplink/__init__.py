"""The agent's end of the gRPC stream: connects, sends batches, receives acknowledgements and requests."""

from perfd.agent.uplink.uplink import Uplink, UplinkState

__all__ = [
    "Uplink",
    "UplinkState",
]
