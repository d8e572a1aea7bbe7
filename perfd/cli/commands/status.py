"""`perfd status`."""

from __future__ import annotations

import argparse
import json

from perfd.cli.aggregator_client import (
    NothingAtPathError,
    add_aggregator,
    get,
    get_jobs,
    reads_answers,
    url_of,
)
from perfd.cli.tables.status_tables import group_table, job_table, server_table
from perfd.cli.terminal import Terminal
from perfd.errors import PerfdError
from perfd.model import api_schemas


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_aggregator(parser)
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="list the aggregators of a group and the partitions that each holds (docs/scale.md); with"
        " --json, as perfd.group/1",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help=f'print {{"schema": "{api_schemas.STATUS}", "jobs", "alerts", "agents", "servers"}}: the lists'
        " of /api/v1",
    )


@reads_answers
def run(args: argparse.Namespace) -> int:
    """Print the jobs and serving engines of an aggregator."""
    url = url_of(args)
    if args.cluster:
        return _print_group(url, as_json=args.json)
    jobs = get_jobs(url)
    alerts = get(url, "/api/v1/alerts", api_schemas.ALERTS)["alerts"]
    agents = get(url, "/api/v1/agents", api_schemas.AGENTS)["agents"]
    servers = get(url, "/api/v1/servers", api_schemas.SERVERS)["servers"]
    if args.json:
        document = {
            "schema": api_schemas.STATUS,
            "jobs": jobs,
            "alerts": alerts,
            "agents": agents,
            "servers": servers,
        }
        print(json.dumps(document))
        return 0
    console = Terminal()
    if jobs:
        console.print(job_table(jobs, alerts))
        for job in jobs:
            for sentence in job["bottleneck"]["evidence"][:1]:
                console.print(f"{job['name']}: {sentence}", markup=False)
    elif not servers:
        console.print(
            "No job yet: an agent finds one in its log (`perfd agent --log FILE`).", highlight=False
        )
    if servers:
        console.print(server_table(servers))
    connected = sum(agent["connected"] for agent in agents)
    expected = sum(not agent.get("left") for agent in agents)
    console.print(f"{connected} of {expected} agents connected.")
    if problem := get(url, "/api/v1/status", api_schemas.STATUS).get("jobs_problem"):
        console.print(problem, highlight=False, markup=False)
    return 0


def _print_group(url: str, *, as_json: bool) -> int:
    """Returns 1 if a partition has no aggregator."""
    try:
        group = get(url, "/api/v1/group", api_schemas.GROUP)
    except NothingAtPathError as error:
        raise PerfdError(
            f"The aggregator at {url} is not in a group: its configuration has no nats.group (docs/scale.md)."
        ) from error
    without = [one["partition"] for one in group["partitions"] if one["member"] is None]
    if as_json:
        print(json.dumps(group))
    else:
        console = Terminal()
        console.print(group_table(group))
        if without:
            console.print(f"Partitions without an aggregator now: {', '.join(map(str, without))}.")
        if problem := get(url, "/api/v1/status", api_schemas.STATUS).get("stream_problem"):
            console.print(problem, highlight=False, markup=False)
    return 1 if without else 0
