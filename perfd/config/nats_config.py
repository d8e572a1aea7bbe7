"""How agents and aggregators connect to NATS servers."""

from __future__ import annotations

from perfd.config.unknown_keys import Strict, TlsConfig


class NatsConfig(Strict, frozen=True):
    """A connection to NATS; credentials are in files only."""

    servers: list[str]
    """Servers of one NATS cluster: `nats://HOST:4222` or `tls://HOST:4222`."""
    cluster: str = "default"
    """Name of this GPU cluster; the second token of all subjects after `perfd`."""
    credentials_file: str | None = None
    """A `.creds` file (JWT and seed)."""
    nkey_file: str | None = None
    """A file with the seed of an NKey."""
    tls: TlsConfig | None = None
    """`ca` of the servers, and `certificate` and `key` if they map certificates to users."""
    allow_plaintext: bool = False
    """Required for servers other than loopback without `tls://` and without `tls`."""


class NatsUplinkConfig(NatsConfig, frozen=True):
    """Batches are published to NATS JetStream."""

    max_message_bytes: int = 1_000_000
    """Largest batch. Not above `max_payload` of the servers, less 4096 bytes for headers."""
    partitions: int | None = None
    """`nats.group.partitions` of the aggregators; null: one aggregator reads the cluster."""


class NatsGatewayConfig(NatsUplinkConfig, frozen=True):
    """Where a gateway publishes."""

    max_message_bytes: int = 16 << 20
    """Largest batch; agents over gRPC send single records of up to 16 MiB. Not above `max_payload` of the
    servers, less 4096 bytes for headers."""


class NatsGroupConfig(Strict, frozen=True):
    """Several aggregators share the jobs of one cluster."""

    partitions: int = 8
    """Number of partitions of the jobs, each held by one aggregator at a time; the same everywhere."""
    address: str | None = None
    """URL at which other aggregators and Prometheus reach this one; null: the address in `http_listen`."""
    lease_s: float = 3.0
    """Time without renewal after which another aggregator takes over a partition."""
    answer_within_s: float = 2.0
    """Time to wait for another aggregator; lists name partitions without an answer (`missing_partitions`)."""
    ca: str | None = None
    """PEM file with certificates to trust for `https` addresses; null: the system's."""


class NatsListenConfig(NatsConfig, frozen=True):
    """Batches are read from NATS JetStream."""

    stream: str = "perfd"
    """The stream; created if there is none."""
    max_bytes: int = 10_000_000_000
    """Its size when it is created. If it is full, batches stay in the agents' spools."""
    replicas: int = 1
    """Servers that store it when it is created; 3 to lose none of it with a server."""
    group: NatsGroupConfig | None = None
    """null: one aggregator reads the cluster, and others wait."""
