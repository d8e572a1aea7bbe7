"""`perfd demo`."""

from __future__ import annotations

import argparse
import sys

from perfd.cli.commands import replay

RECORDING, START_UP_S = "dp4_slow2", 18
"""Four H200s train with Megatron-LM, rank 2 with additional work. What is skipped has no steps."""
_WHAT = """\
A recorded training job (Megatron-LM, 4 H200 GPUs) is replayed through perfd's agent, gRPC
stream, aggregator and rules, as if it ran now. Nothing of this machine is measured.
"""
_NEXT = """
Next: `perfd run -- YOUR COMMAND` watches your own job, without a change to it;
`perfd doctor` checks this machine.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--http", metavar="HOST:PORT", help="serve the page, /metrics and /api/v1 meanwhile")
    parser.add_argument("--hold", action="store_true", help="after the end, keep serving until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Replay the recording of a slow GPU, and say what to do next."""
    print(_WHAT, flush=True)
    parser = argparse.ArgumentParser()
    replay.configure(parser)
    options = [RECORDING, "--skip", str(START_UP_S)]
    options += ["--http", args.http] if args.http else []
    options += ["--hold"] if args.hold else []
    code = replay.run(parser.parse_args(options))
    if code == 0:
        sys.stdout.write(_NEXT)
    return code
