"""The configuration of agent and aggregator in one process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from perfd.config import AgentConfig, AggregatorConfig, load, read_mapping


class SessionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`perfd run --config FILE` and `perfd replay --config FILE`: both roles in one file.

    They find each other without configuration; `agent.uplink` and `aggregator.listen` are not used.
    """

    agent: AgentConfig = AgentConfig()
    aggregator: AggregatorConfig = AggregatorConfig()


def load_session(path: Path | None) -> SessionConfig:
    """Read a configuration file, or the defaults without one; raises `ConfigError`."""
    return SessionConfig() if path is None else load(path, SessionConfig)


def load_aggregator(path: Path) -> AggregatorConfig:
    """The aggregator's part of a file of `perfd aggregator` or of `perfd run`; raises `ConfigError`."""
    if not read_mapping(path).keys().isdisjoint(SessionConfig.__struct_fields__):
        return load_session(path).aggregator
    return load(path, AggregatorConfig)


def with_rules(config: SessionConfig, files: Iterable[str]) -> SessionConfig:
    """The same configuration with more rules files, after its own."""
    rules = config.aggregator.rules
    more = msgspec.structs.replace(rules, files=[*rules.files, *files])
    return msgspec.structs.replace(config, aggregator=msgspec.structs.replace(config.aggregator, rules=more))
