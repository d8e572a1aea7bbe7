"""`perfd doctor`."""

from __future__ import annotations

import argparse
import json
import os
import socket
from pathlib import Path

from perfd.cli.commands.agent import state_directory
from perfd.config import AgentConfig, AggregatorConfig, GatewayConfig, load
from perfd.doctor import SCHEMA, CheckResult, Level, diagnose, probe, to_json, worst

_EPILOG = """\
With --json it prints one object: {"schema": "perfd.doctor/2", "level", "findings": [{"check",
"level", "title", "what", "fix"}]}; a level is ok, warn or fail, and that of the whole is the
worst.
Exits with 1 when something that is installed or configured cannot work, else with 0.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the agent's configuration, to judge by it"
    )
    parser.add_argument(
        "--aggregator-config",
        type=Path,
        metavar="FILE",
        help="the aggregator's configuration, to check its history on this machine, and its stream in NATS",
    )
    parser.add_argument(
        "--gateway-config",
        type=Path,
        metavar="FILE",
        help="the gateway's configuration, to check its connection to NATS",
    )
    parser.add_argument("--json", action="store_true", help=f"print JSON, schema {SCHEMA}")


def run(args: argparse.Namespace) -> int:
    """Probe this node and print what was found."""
    config = load(args.config, AgentConfig) if args.config else AgentConfig()
    node = config.node or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    spool = Path(config.spool.directory) if config.spool.directory else state_directory(os.environ) / node
    aggregator = load(args.aggregator_config, AggregatorConfig) if args.aggregator_config else None
    facts = probe(
        config,
        node=node,
        spool=spool,
        configured=args.config is not None,
        environment=os.environ,
        aggregator=aggregator,
        gateway=load(args.gateway_config, GatewayConfig) if args.gateway_config else None,
    )
    findings = diagnose(facts)
    if args.json:
        print(json.dumps(to_json(findings)))
    else:
        for finding in findings:
            print(_line(finding))
    return 1 if worst(findings) is Level.FAIL else 0


def _line(finding: CheckResult) -> str:
    line = f"{finding.level:<5}{finding.title}: {finding.what}"
    return f"{line}\n     {finding.fix}" if finding.fix else line
