"""`perfd gateway`."""

from __future__ import annotations

import argparse
import logging
import signal
from pathlib import Path

from perfd import logs
from perfd.cli.signals import set_by_signals
from perfd.config import GatewayConfig, load
from perfd.gateway import Gateway
from perfd.net.connection_limits import allow_many_connections

log = logging.getLogger("perfd.gateway")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        required=True,
        help="configuration in YAML (deploy/gateway.yaml)",
    )
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    parser.add_argument("--log-json", action="store_true", help="log JSON lines")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    logs.configure(args.log_level, json_lines=args.log_json)
    config = load(args.config, GatewayConfig)
    allow_many_connections()
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    gateway = Gateway(config)
    gateway.start()
    log.info(
        "The gateway serves.",
        extra={"agents": gateway.grpc_address, "http": gateway.http_address or "nowhere"},
    )
    stop.wait()
    log.info("The gateway stops.")
    gateway.stop()
    return 0
