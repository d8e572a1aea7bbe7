"""`perfd record`."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from pathlib import Path

from perfd import logs
from perfd.cli.arguments import positive
from perfd.cli.commands.run import EXIT_CODES, add_command, command_of, watch
from perfd.cli.signals import set_by_signals
from perfd.config import AgentConfig, load
from perfd.errors import PerfdError
from perfd.session.recording import record

_ABOUT = """\
With a command, records that command, as perfd run --record; --config is that of perfd run.
Without one, records what an agent's collectors see on this node until --duration or a signal;
--config is that of perfd agent.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = f"Write a recording.\n\n{_ABOUT}"
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", required=True, metavar="DIR", help="directory to create for the recording")
    parser.add_argument("--config", metavar="FILE", help="configuration in YAML")
    parser.add_argument("--job", metavar="NAME", help="name of job and recording")
    parser.add_argument("--duration", type=positive, metavar="S", help="without a command: seconds to record")
    add_command(parser)


def run(args: argparse.Namespace) -> int:
    """Record a command, or this node."""
    command = command_of(args)
    if not command:
        return _record_node(args)
    if args.duration is not None:
        raise PerfdError("--duration is for a recording without a command; this one ends with its command.")
    return watch(
        command,
        job=args.job,
        config=args.config,
        http=None,
        out=Path("perfd-out"),
        recording=Path(args.out),
        tracer=None,
    )


def _record_node(args: argparse.Namespace) -> int:
    logs.configure("warning")
    config = load(Path(args.config), AgentConfig) if args.config else AgentConfig()
    directory = Path(args.out)
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    record(
        config,
        directory,
        node=config.node or os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        job=args.job or config.job or os.environ.get("SLURM_JOB_ID") or directory.absolute().name,
        stop=stop,
        duration_s=args.duration,
    )
    print(f"The recording is in {directory}.", file=sys.stderr)
    return 0
