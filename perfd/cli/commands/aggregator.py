"""`perfd aggregator`."""

from __future__ import annotations

import argparse
import logging
import signal
from pathlib import Path

import msgspec

from perfd import logs
from perfd.aggregator import Aggregator
from perfd.aggregator.series import keep_freed_memory
from perfd.cli.signals import set_by_signals
from perfd.config import AggregatorConfig, load

log = logging.getLogger("perfd.aggregator")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration in YAML (deploy/aggregator.yaml)"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="address for agents; overrides listen")
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="address of the page, /metrics and /api/v1; overrides http_listen"
    )
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    parser.add_argument("--log-json", action="store_true", help="log JSON lines")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; history is written before it ends."""
    logs.configure(args.log_level, json_lines=args.log_json)
    config = effective_config(args)
    keep_freed_memory()
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    aggregator = Aggregator(config)
    aggregator.start()
    log.info(
        "The aggregator serves.",
        extra={"agents": aggregator.grpc_address, "http": aggregator.http_address or "nowhere"},
    )
    stop.wait()
    # Who does not want to wait for what is still sent and written presses Ctrl-C again.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log.info("The aggregator stops.")
    aggregator.stop()
    return 0


def effective_config(args: argparse.Namespace) -> AggregatorConfig:
    """The configuration file with the arguments over it."""
    config = load(args.config, AggregatorConfig) if args.config else AggregatorConfig()
    if args.listen:
        config = msgspec.structs.replace(config, listen=args.listen)
    if args.http:
        config = msgspec.structs.replace(config, http_listen=args.http)
    return config
