"""`perfd capture --slurm`: without agents, over srun. Run as a program it is the helper on each node."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfd.capture.policy.capture_json import SCHEMA, to_json
from perfd.capture.policy.capture_policy import MAX_DURATION_S
from perfd.capture.selection import check_selector
from perfd.cli.arguments import positive, whole_from_zero
from perfd.clock import SystemClock
from perfd.config import AgentConfig, load
from perfd.errors import CaptureError
from perfd.model import CaptureState, CaptureTool
from perfd.session.slurm import (
    TOOLS,
    CaptureOptions,
    FromNode,
    Slurm,
    SlurmCapture,
    capture_id,
    lines_of,
    serve,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    group = parser.add_argument_group("a job of SLURM without agents")
    group.add_argument(
        "--slurm", metavar="JOBID", help="capture ranks of this job now, over srun, as its user"
    )
    group.add_argument(
        "--tool",
        choices=[tool.value for tool in TOOLS],
        default=CaptureTool.PY_SPY.value,
        help="(%(default)s) docs/captures.md says what each needs",
    )
    group.add_argument(
        "--ranks",
        dest="slurm_ranks",
        metavar="WHO",
        default="all",
        help="all; 0,3,8-11; node=n7,gpu=3 (%(default)s)",
    )
    group.add_argument(
        "--step",
        type=whole_from_zero,
        metavar="N",
        help="number of the SLURM step that trains; default: the largest, else the batch script",
    )
    group.add_argument(
        "--duration",
        dest="slurm_duration",
        type=positive,
        metavar="SECONDS",
        default=10.0,
        help="how long it collects (%(default)g); py_spy looks once",
    )
    group.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=Path("perfd-captures"),
        help="on every node (%(default)s)",
    )
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="an agent's, for its section `capture` (deploy/agent.yaml)",
    )
    group.add_argument(
        "--json", dest="slurm_json", action="store_true", help=f"print the outcome, schema {SCHEMA}"
    )


def run(args: argparse.Namespace, show: Callable[[Mapping[str, Any]], None]) -> int:
    """Capture and show the outcome; 0 when every rank is done, else 1."""
    if args.slurm is None:
        raise CaptureError("Say what to do: list, show, start, cancel, plan, redact, or --slurm JOBID.")
    if not 0 < args.slurm_duration <= MAX_DURATION_S:
        raise CaptureError(f"--duration must be above 0 and at most {MAX_DURATION_S:.0f}.")
    check_selector(args.slurm_ranks)
    slurm = Slurm(os.environ)
    job = slurm.job(args.slurm)
    place = slurm.place(job, args.step)
    where = f"step {job.job_id}.{place.step}" if place.step is not None else "the batch script"
    more = f" and {len(place.nodes) - 8} more nodes" if len(place.nodes) > 8 else ""
    print(f"perfd capture: {args.tool} of {where} on {', '.join(place.nodes[:8])}{more}", file=sys.stderr)
    wish = CaptureOptions(
        capture_id=capture_id(job.name, time.time()),
        tool=CaptureTool(args.tool),
        ranks=args.slurm_ranks,
        duration_s=args.slurm_duration,
        directory=args.output.absolute(),
        config=(load(args.config, AgentConfig) if args.config else AgentConfig()).capture,
    )
    srun = slurm.start(job, place, helper_command())
    capture = SlurmCapture(wish, job, place, srun, SystemClock()).run()
    show({"schema": SCHEMA, "capture": to_json(capture)})
    return 0 if capture.state is CaptureState.DONE else 1


def helper_command() -> Sequence[str]:
    """What runs on each node: this perfd, which must be there under the same path."""
    return [sys.executable, "-P", "-m", __spec__.name]


def run_helper() -> int:
    """The helper of one node: orders on standard input, answers on standard output."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()

    def send(message: FromNode) -> None:
        for line in lines_of(node, message):
            sys.stdout.write(line)
        sys.stdout.flush()

    # A canceled step gets SIGTERM: the profilers that it started must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    serve(sys.stdin, send, node=node, search_path=_search_path(), clock=SystemClock())
    return 0


def _search_path() -> str:
    # A py-spy beside perfd counts, also where the job's PATH does not name it.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


if __name__ == "__main__":
    sys.exit(run_helper())
