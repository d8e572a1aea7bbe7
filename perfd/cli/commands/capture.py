"""`perfd capture`."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from rich.text import Text

from perfd.capture.nsys import REPLAY_MODES, NcuPlan, NsysPlan, plan_ncu, plan_nsys
from perfd.capture.policy.capture_json import API_PATH, SCHEMA
from perfd.capture.redact import redacted_copy
from perfd.cli import capture_slurm
from perfd.cli.aggregator_client import (
    add_aggregator,
    add_token,
    ask,
    authorization_of,
    reads_answers,
    url_of,
)
from perfd.cli.arguments import positive, positive_whole, whole_from_zero
from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.errors import PerfdError
from perfd.formatting import data_size

if TYPE_CHECKING:
    from perfd.analysis.diagnosis import JobSummary

EXIT_CODES = """\
Exits with 0 when the aggregator did what was asked, and with 2 when it refused or cannot be reached.
`start` exits with 1 when the capture is over and not every rank is done; with --wait it always is over."""

_OF_NCU = ("kernel", "skip", "count", "start_end", "section", "replay_mode", "shared_gpu")
_POLL_S = 0.5
"""Of a list where there is no terminal."""
_MOST_NAMED = 16
"""Ranks in one line, as on the page."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    common = argparse.ArgumentParser(add_help=False)
    add_aggregator(common)
    common.add_argument("--json", action="store_true", help="print the answer, schema perfd.capture/1")
    capture_slurm.configure(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", parents=[common], help="list captures, newest last")
    listing.add_argument("--job", help="only this job")
    show = actions.add_parser("show", parents=[common], help="show one capture, rank by rank")
    show.add_argument("id", metavar="ID", help="as `perfd capture list` shows it")
    show.add_argument(
        "--analyze",
        action="store_true",
        help="on the node that has the files: write perfd.trace.json and perfd.report.html beside them",
    )
    changing = argparse.ArgumentParser(add_help=False, parents=[common])
    add_token(changing)
    start = actions.add_parser("start", parents=[changing], help="start a capture")
    start.add_argument("job", metavar="JOB", help="name as in `perfd status`; NODE/ADDRESS for a server")
    start.add_argument("--profile", default="default", help="a name of capture_profiles (%(default)s)")
    start.add_argument(
        "--ranks",
        metavar="WHO",
        help="all; 0,3,8-11; stage=last,tp=0; node=n7,gpu=3; pod=NAME; slowest:2; culprits; +peer adds"
        " healthy ranks to compare with",
    )
    start.add_argument("--steps", type=positive_whole, help="number of training steps")
    start.add_argument("--duration", type=positive, metavar="SECONDS", help="maximum duration")
    start.add_argument("--id", help="capture id; repeating it does not capture again")
    start.add_argument("--wait", action="store_true", help="wait for every rank's outcome")
    cancel = actions.add_parser("cancel", parents=[changing], help="cancel a capture")
    cancel.add_argument("id", metavar="ID", help="as `perfd capture list` shows it")
    cancel.add_argument("--reason", default="by hand.", help="why, for whoever looks later (%(default)s)")
    plan = actions.add_parser("plan", help="print the command that profiles a job by hand, with ncu or nsys")
    tools = plan.add_mutually_exclusive_group(required=True)
    tools.add_argument("--ncu", action="store_true", help="one kernel of one rank, with Nsight Compute")
    tools.add_argument("--nsys", action="store_true", help="all ranks of a node, with Nsight Systems")
    plan.add_argument("--kernel", metavar="REGEX", help="kernel name pattern")
    plan.add_argument(
        "--nvtx", metavar="RANGE", help="NVTX range, RANGE or DOMAIN@RANGE; with --nsys RANGE@DOMAIN"
    )
    plan.add_argument("--skip", type=whole_from_zero, default=0, help="skip this many first (%(default)s)")
    plan.add_argument(
        "--count",
        type=positive_whole,
        help="how many to profile (default: 1 with --kernel, otherwise the range)",
    )
    plan.add_argument(
        "--start-end", action="store_true", help="--nvtx is started and ended, not pushed and popped"
    )
    plan.add_argument(
        "--section",
        metavar="SECTION",
        action="append",
        default=[],
        help="only this section, for example SpeedOfLight; repeatable (default: all)",
    )
    plan.add_argument("--replay-mode", choices=REPLAY_MODES, help="how ncu repeats work (default: kernel)")
    plan.add_argument(
        "--profiler-api",
        action="store_true",
        help="only between cudaProfilerStart and cudaProfilerStop (`--profile-from-start off`)",
    )
    plan.add_argument(
        "--graph-nodes",
        action="store_true",
        help="with --nsys: each kernel inside CUDA graphs, which costs more",
    )
    plan.add_argument("--output", help="name of the report (perfd-ncu, perfd-nsys)")
    plan.add_argument("--shared-gpu", action="store_true", help="do not lock clocks: the GPU is shared")
    plan.add_argument(
        "command",
        metavar="-- CMD...",
        nargs=argparse.REMAINDER,
        help="command that runs the job, for ncu on one GPU",
    )
    redaction = actions.add_parser("redact", help="copy an artifact without the job's environment and output")
    redaction.add_argument(
        "export", metavar="EXPORT", type=Path, help="a .sqlite, .trace.json or .stacks.json of a capture"
    )
    redaction.add_argument("copy", metavar="COPY", type=Path, help="the file to write; it must not exist")


def run(args: argparse.Namespace) -> int:
    """Carry out one action."""
    actions: Mapping[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "show": _show,
        "start": _start,
        "cancel": _cancel,
        "redact": _redact,
        "plan": _plan,
    }
    if args.action is None:
        return capture_slurm.run(args, partial(_print, as_json=args.slurm_json))
    if args.slurm is not None:
        raise PerfdError(f"--slurm stands alone: `perfd capture --slurm JOBID`, without {args.action}.")
    return actions[args.action](args)


@reads_answers
def _list(args: argparse.Namespace) -> int:
    query = f"?{urlencode({'job': args.job})}" if args.job else ""
    document = ask(url_of(args), "GET", API_PATH + query, schema=SCHEMA)
    if args.json:
        print(json.dumps(document))
        return 0
    if not document["captures"]:
        print("No capture yet.")
        return 0
    table = TerminalTable()
    for name in ("ID", "JOB", "ALERT", "ASKED (UTC)", "STATE", "RANKS"):
        # An id is there to be copied.
        table.add_column(name, overflow="fold", no_wrap=name == "ID")
    for c in document["captures"]:
        asked = _when(c["requested_unix_s"])
        row = (c["id"], c["job"], c["alert"] or "by hand", asked, c["state"], _counts(c))
        # Names come from jobs: as texts, nothing in them is markup.
        table.add_row(*map(Text, row))
    Terminal().print(table)
    return 0


@reads_answers
def _show(args: argparse.Namespace) -> int:
    document = ask(url_of(args), "GET", f"{API_PATH}/{quote(args.id, safe='')}", schema=SCHEMA)
    _print(document, as_json=args.json)
    if args.analyze:
        from perfd.cli.traces.analyze_capture import analyze  # noqa: PLC0415  (slow to import; a rare wish)

        for path in analyze(document["capture"], _job_of(args, document["capture"])):
            print(path, file=sys.stderr)
    return 0


def _job_of(args: argparse.Namespace, capture: Mapping[str, Any]) -> JobSummary | None:
    """What the aggregator knows of the captured job; None when that is nothing."""
    from perfd.analysis.diagnosis import SCHEMA as SUMMARY_SCHEMA  # noqa: PLC0415  (as above)
    from perfd.report.comparison import jobs_of  # noqa: PLC0415  (as above)

    path = f"/api/v1/jobs/{quote(capture['job'], safe='')}"
    try:
        found = ask(url_of(args), "GET", path, schema=SUMMARY_SCHEMA)
        return jobs_of(found, capture["job"])[0]
    except PerfdError:
        # Servers are not jobs, and old jobs are forgotten: no MFU then.
        return None


@reads_answers
def _start(args: argparse.Namespace) -> int:
    asked = {
        "job": args.job,
        "profile": args.profile,
        "ranks": args.ranks,
        "steps": args.steps,
        "max_duration_s": args.duration,
        "id": args.id,
        "by": _person(),
    }
    body = {key: value for key, value in asked.items() if value is not None}
    document = _post(args, API_PATH, body)
    while args.wait and document["capture"]["state"] == "open":
        time.sleep(_POLL_S)
        document = ask(url_of(args), "GET", f"{API_PATH}/{document['capture']['id']}", schema=SCHEMA)
    _print(document, as_json=args.json)
    return 0 if document["capture"]["state"] in ("open", "done") else 1


def _person() -> str:
    """Who runs this command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # In containers a uid may have no name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:200]


@reads_answers
def _cancel(args: argparse.Namespace) -> int:
    path = f"{API_PATH}/{quote(args.id, safe='')}/cancel"
    _print(_post(args, path, {"reason": args.reason}), as_json=args.json)
    return 0


def _redact(args: argparse.Namespace) -> int:
    redacted_copy(args.export, args.copy)
    print(f"{args.copy} ({data_size(args.copy.stat().st_size)}) may leave this node.")
    return 0


def _plan(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.nsys:
        unfit = [name for name in _OF_NCU if getattr(args, name)]
        if unfit:
            raise PerfdError(f"--{unfit[0].replace('_', '-')} is an option of --ncu.")
        by_hand = NsysPlan(
            command=command,
            profiler_api=args.profiler_api,
            nvtx_range=args.nvtx,
            graph_nodes=args.graph_nodes,
            output=args.output or "perfd-nsys",
        )
        print(plan_nsys(by_hand), end="")
        return 0
    if args.graph_nodes:
        raise PerfdError("--graph-nodes is an option of --nsys.")
    wanted = NcuPlan(
        command=command,
        kernel=args.kernel,
        nvtx_range=args.nvtx,
        skip=args.skip,
        count=args.count,
        start_end=args.start_end,
        sections=args.section,
        replay_mode=args.replay_mode,
        profiler_api=args.profiler_api,
        output=args.output or "perfd-ncu",
        shared_gpu=args.shared_gpu,
    )
    print(plan_ncu(wanted), end="")
    return 0


def _post(args: argparse.Namespace, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **authorization_of(args)}
    return ask(url_of(args), "POST", path, schema=SCHEMA, body=json.dumps(body), headers=headers)


def _print(document: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document))
        return
    capture = document["capture"]
    # An aggregator of an older version has neither who asked nor what corrects a refusal.
    why = f"alert {capture['alert']}" if capture["alert"] else f"by {capture.get('asked_by') or 'hand'}"
    print(f"{capture['id']}: {capture['state']}")
    what = f"{capture['tool'] or 'no tool'} of {'server' if capture['server'] else 'job'} {capture['job']}"
    print(f"  {what}, {why}, {_when(capture['requested_unix_s'])} UTC")
    if capture["reason"]:
        print(f"  {capture['reason']}")
    if found := capture.get("correction"):
        print(f"  {found['words']} {found['command']}")
    if report := capture["report"]:
        print(f"  {report['words']}", *([f"    {report['path']}"] if report["path"] else []), sep="\n")
    for alike in _grouped(capture["ranks"]):
        who, target = alike[0], _target(alike, server=capture["server"])
        state = f"{who['state']}{_held(who.get('whole_steps'))}"
        print(f"  {target} on {who['node'] or 'no node'}: {state} {who['reason']}".rstrip())
        for file in who["files"]:
            print(f"    {file['path']} ({_size(file)})")


def _size(file: Mapping[str, Any]) -> str:
    """How large a file is, or that it is gone."""
    if removed := file.get("removed"):
        return f"gone since {_when(removed['unix_s'])} UTC: {removed['reason']}"
    return data_size(file["size_bytes"])


def _grouped(ranks: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Ranks that ended in one way and left no files of their own, as the page groups them."""
    groups: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for place, who in enumerate(ranks):
        key = (place,) if who["files"] else (who["node"], who["state"], who["reason"], who.get("whole_steps"))
        groups.setdefault(key, []).append(who)
    return list(groups.values())


def _held(whole_steps: int | None) -> str:
    """How many steps a trace holds, in parentheses; empty if unknown."""
    if whole_steps is None:
        return ""
    return f" ({whole_steps} whole step{'' if whole_steps == 1 else 's'})"


def _target(alike: Sequence[Mapping[str, Any]], *, server: bool) -> str:
    if server:
        return "the server"
    if any(who["rank"] is None for who in alike):
        return "every rank"
    named = ", ".join(str(who["rank"]) for who in alike[:_MOST_NAMED])
    more = f" and {len(alike) - _MOST_NAMED} more" if len(alike) > _MOST_NAMED else ""
    return f"{'rank' if len(alike) == 1 else 'ranks'} {named}{more}"


def _counts(capture: Mapping[str, Any]) -> str:
    states = [who["state"] for who in capture["ranks"]]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or capture["reason"]


def _when(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
