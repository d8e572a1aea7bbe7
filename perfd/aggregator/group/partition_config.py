"""Derives the configuration of one partition's aggregator from the group's: pure."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from perfd.config import AggregatorConfig, NatsGroupConfig
from perfd.errors import ConfigError
from perfd.net import split_address

LABEL = "perfd_partition"
_SHORTEST_LEASE_S = 1.0
"""Shorter leases would be lost by a pause of the process or of the network that is usual."""
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  (it is refused)


def check_group(config: AggregatorConfig) -> NatsGroupConfig:
    """The group's validated configuration; raises `ConfigError`."""
    group = config.nats.group if config.nats else None
    if group is None:
        raise ConfigError("nats.group: required.")
    if not 1 <= group.partitions <= 1024:
        raise ConfigError("nats.group.partitions: it must be from 1 to 1024.")
    if not group.lease_s >= _SHORTEST_LEASE_S:
        raise ConfigError(f"nats.group.lease_s: it must be at least {_SHORTEST_LEASE_S}.")
    if config.history.path is None and config.history.url is None:
        raise ConfigError("nats.group: configure `history`, from which another aggregator continues.")
    if config.http_listen is None:
        raise ConfigError("nats.group: the aggregators reach each other over HTTP; configure `http_listen`.")
    if group.address is None and split_address(config.http_listen)[0] in _EVERYWHERE:
        raise ConfigError(
            "nats.group.address: required, since `http_listen` names no address to reach it at."
        )
    if group.address is not None and urlsplit(group.address).scheme not in {"http", "https"}:
        raise ConfigError("nats.group.address: it must be http://HOST:PORT or https://HOST:PORT.")
    if config.webhook.token_file is not None:
        raise ConfigError("nats.group: a group does not accept webhooks from Alertmanager; remove `webhook`.")
    if config.nodes.drain is not None:
        raise ConfigError(
            "nats.group: a partition sees only its own jobs' problems with a node; remove `nodes.drain`."
        )
    return group


def group_hosts(config: AggregatorConfig) -> list[str]:
    """Host names accepted in requests, including the one in `address`, which other members use."""
    address = config.nats.group.address if config.nats and config.nats.group else None
    name = urlsplit(address or "").hostname
    return [*config.http_hosts, *([name] if name else [])]


def partition_config(config: AggregatorConfig, number: int) -> AggregatorConfig:
    """The configuration of a partition's aggregator: no addresses; exports have the partition's number."""
    name, exporters = str(number), config.exporters
    lines = exporters.jsonl
    if lines.path is not None:
        path = Path(lines.path)
        lines = replace(lines, path=str(path.with_stem(f"{path.stem}-{name}")))
    written = exporters.remote_write
    pushed = exporters.otlp
    return replace(
        config,
        http_listen=None,
        health_listen=None,
        exporters=replace(
            exporters,
            jsonl=lines,
            remote_write=replace(written, external_labels={**written.external_labels, LABEL: name}),
            otlp=replace(pushed, resource_attributes={**pushed.resource_attributes, LABEL: name}),
        ),
    )
