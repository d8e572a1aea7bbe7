"""`perfd nodes`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from rich.text import Text

from perfd.cli.aggregator_client import add_aggregator, get, reads_answers, url_of
from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.errors import PerfdError
from perfd.formatting import UNKNOWN, percent
from perfd.model import api_schemas

EXIT_CODES = "Exits with 0, with 1 when --suspects finds one, and with 2 when the aggregator cannot be asked."


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXIT_CODES
    add_aggregator(parser)
    parser.add_argument("--node", metavar="NAME", help="only this node, with its newest incidents")
    parser.add_argument("--suspects", action="store_true", help="only nodes that are worse than their peers")
    parser.add_argument("--kind", metavar="TEXT", help="only nodes whose GPUs have this in their name")
    parser.add_argument(
        "--incident", metavar="TEXT", help="only nodes with such an incident: straggler, hardware_error, ..."
    )
    parser.add_argument("--all", action="store_true", help="nodes that nothing blamed, too")
    parser.add_argument("--json", action="store_true", help="print the answer, schema perfd.nodes/1")


@reads_answers
def run(args: argparse.Namespace) -> int:
    """Print the nodes of an aggregator, the most suspect first."""
    query = {"all": "1"} if args.all else {}
    if args.node is not None:
        query["node"] = args.node
    document = get(url_of(args), f"/api/v1/nodes?{urlencode(query)}", api_schemas.NODES)
    nodes = [node for node in document["nodes"] if _wanted(node, args)]
    if args.node is not None and not document["nodes"]:
        raise PerfdError(f"Nothing is known of a node {args.node!r}; `perfd nodes --all` lists all.")
    if args.json:
        print(json.dumps({**document, "nodes": nodes}))
    else:
        _show(nodes, args)
    return int(args.suspects and any(node["suspect"] for node in nodes))


def _wanted(node: Mapping[str, Any], args: argparse.Namespace) -> bool:
    return (
        (node["suspect"] or not args.suspects)
        and (args.kind or "").lower() in (node["kind"] or "").lower()
        and (not args.incident or any(one["kind"] == args.incident for one in node["incident_list"]))
    )


def _show(nodes: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> None:
    console = Terminal()
    if not nodes:
        console.print(_none(args))
        return
    console.print(node_table(nodes))
    for node in nodes:
        if args.node is not None:
            console.print(incident_table(node["incident_list"]))
        for advice in node["advice"]:
            console.print(
                f"{node['node']} ({advice['scheduler']}):  {advice['command']}", markup=False, soft_wrap=True
            )
        if node["drain"] is not None:
            drain = node["drain"]
            when = _time(drain["unix_s"])
            console.print(f"{node['node']}: perfd drained it at {when}: {drain['outcome']}", markup=False)


def _none(args: argparse.Namespace) -> str:
    if args.all:
        return "No node yet."
    which = (
        "No such node was blamed" if args.suspects or args.kind or args.incident else "No node was blamed yet"
    )
    return f"{which}; `perfd nodes --all` lists the others, too."


def node_table(nodes: Sequence[Mapping[str, Any]]) -> TerminalTable:
    """One row per node, with what it is blamed for against what its peers would be."""
    table = TerminalTable()
    for name in ("NODE", "GPUS"):
        table.add_column(name, overflow="fold")
    for name in ("SUSPECT", "BLAMED", "EXPECTED", "GPU-HOURS", "LOST", "JOBS"):
        table.add_column(name, justify="right")
    table.add_column("FOR", overflow="fold")
    for node in nodes:
        sure = percent(node["suspect_ratio"], 0)
        style = "bold red" if node["suspect"] else ""
        table.add_row(
            Text(node["node"], style=style),
            Text(node["kind"] or UNKNOWN),
            Text(sure, style=style),
            f"{node['incidents']:.1f}",
            UNKNOWN if node["expected_incidents"] is None else f"{node['expected_incidents']:.1f}",
            f"{node['observed_gpu_h']:.1f}",
            f"{node['lost_gpu_h']:.2f}",
            str(node["jobs"]),
            Text((node["reason"] or UNKNOWN).removeprefix("perfd: ").rpartition(" in ")[0] or UNKNOWN),
        )
    return table


def incident_table(incidents: Sequence[Mapping[str, Any]]) -> TerminalTable:
    """One row per incident, the newest first."""
    table = TerminalTable()
    for name in ("LAST SEEN", "INCIDENT", "GPU", "JOB"):
        table.add_column(name, overflow="fold")
    table.add_column("LOST GPU-H", justify="right")
    table.add_column("EVIDENCE", overflow="fold")
    for one in incidents:
        times = f" x{one['count']}" if one["count"] > 1 else ""
        attempt = f" #{one['attempt']}" if (one["attempt"] or 1) > 1 else ""
        table.add_row(
            _time(one["last_unix_s"]),
            Text(one["kind"].replace("_", " ") + times),
            Text(one["gpu"] or UNKNOWN),
            Text((one["job"] or UNKNOWN) + attempt),
            f"{one['lost_gpu_h']:.2f}",
            Text(one["evidence"] or UNKNOWN),
        )
    return table


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M")
