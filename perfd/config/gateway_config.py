"""Configuration of `perfd gateway`."""

from __future__ import annotations

from perfd.config.aggregator_config import AgentIdentityConfig
from perfd.config.nats_config import NatsGatewayConfig
from perfd.config.unknown_keys import Strict, TlsConfig


class GatewayConfig(Strict, frozen=True):
    """`perfd gateway --config FILE`: takes agents' streams, and publishes to NATS."""

    nats: NatsGatewayConfig
    listen: str = "127.0.0.1:9461"
    """gRPC, for agents."""
    tls: TlsConfig | None = None
    """As of the aggregator."""
    allow_plaintext: bool = False
    """Required for `listen` on an address other than loopback without `tls`."""
    agent_identity: AgentIdentityConfig = AgentIdentityConfig()
    """As of the aggregator; `any_job` belongs there."""
    audit_file: str | None = None
    """A file for refusals, a JSON object per line; null: they are only logged."""
    http_listen: str | None = "127.0.0.1:9463"
    """/metrics and /readyz; null: none."""
    http_read_token_file: str | None = None
    """File with the bearer token for /metrics; null: whoever reaches the address may read."""
    http_hosts: list[str] = []
    """Further names by which clients may call this server; others are refused (DNS rebinding)."""
    http_tls: TlsConfig | None = None
    """Certificate of the HTTP server; null: plain HTTP."""
