"""Takes agents' gRPC streams where nodes must not reach NATS, and publishes to it."""

from perfd.gateway.gateway import Gateway

__all__ = ["Gateway"]
