"""`perfd aggregator`."""

from __future__ import annotations

import argparse
import logging
import resource
import signal
import sys
from pathlib import Path

import msgspec

from perfd import logs
from perfd.aggregator import Aggregator
from perfd.aggregator.group import AggregatorGroup
from perfd.cli.signals import set_by_signals
from perfd.config import AggregatorConfig, load
from perfd.errors import ConfigError
from perfd.net.connection_limits import allow_many_connections
from perfd.process_memory import tune_memory

log = logging.getLogger("perfd.aggregator")

_FEWEST_ADDRESSES_BYTES = 500_000_000
"""It reserves 390 MB before the first agent connects, on two cores."""
_SWITCH_EVERY_S = 0.0005
"""Python's 5 ms is how long a round waits, each time numpy lets go of the interpreter, for the thread that
decodes batches: with 500 nodes its rounds took 5 to 6 times their CPU time, now 3 times."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration in YAML (deploy/aggregator.yaml)"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="address for agents; overrides listen")
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="address of the page, /metrics and /api/v1; overrides http_listen"
    )
    parser.add_argument(
        "--group-address",
        metavar="URL",
        help="where other aggregators of the group reach this one; overrides nats.group.address",
    )
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    parser.add_argument("--log-json", action="store_true", help="log JSON lines")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; history is written before it ends."""
    logs.configure(args.log_level, json_lines=args.log_json)
    config = effective_config(args)
    tune_memory()
    sys.setswitchinterval(_SWITCH_EVERY_S)
    _check_address_space()
    allow_many_connections()
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    aggregator: Aggregator | AggregatorGroup
    if config.nats is not None and config.nats.group is not None:
        aggregator = AggregatorGroup(config)
        aggregator.start()
        agents = ", ".join(config.nats.servers)
    else:
        aggregator = Aggregator(config)
        aggregator.start()
        agents = aggregator.grpc_address
    scheme, address = "http" if config.http_tls is None else "https", aggregator.http_address
    serves = {"agents": agents, "http": address or "nowhere"}
    log.info("The aggregator serves.", extra=serves | ({"page": f"{scheme}://{address}/"} if address else {}))
    stop.wait()
    # Who does not want to wait for what is still sent and written presses Ctrl-C again.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log.info("The aggregator stops.")
    aggregator.stop()
    return 0


def _check_address_space() -> None:
    """Raises `ConfigError` where no thread could start, which libraries answer with an abort."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < _FEWEST_ADDRESSES_BYTES:
        raise ConfigError(
            f"The address space is limited to {limit_bytes / 1e6:.0f} MB (ulimit -v), and the aggregator "
            f"reserves up to {_FEWEST_ADDRESSES_BYTES / 1e6:.0f} MB. Limit its memory by a cgroup instead "
            "(MemoryMax of systemd, limits of Kubernetes), which counts what is used."
        )


def effective_config(args: argparse.Namespace) -> AggregatorConfig:
    """The configuration file with the arguments over it."""
    config = load(args.config, AggregatorConfig) if args.config else AggregatorConfig()
    if args.listen:
        config = msgspec.structs.replace(config, listen=args.listen)
    if args.http:
        config = msgspec.structs.replace(config, http_listen=args.http)
    if args.group_address:
        config = _with_group_address(config, args.group_address)
    return config


def _with_group_address(config: AggregatorConfig, address: str) -> AggregatorConfig:
    """Raises `ConfigError` where there is no group."""
    if config.nats is None or config.nats.group is None:
        raise ConfigError("--group-address: the configuration has no nats.group.")
    group = msgspec.structs.replace(config.nats.group, address=address)
    return msgspec.structs.replace(config, nats=msgspec.structs.replace(config.nats, group=group))
