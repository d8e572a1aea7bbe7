"""`perfd agent`."""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import msgspec

from perfd import logs
from perfd.agent.agent import Agent
from perfd.agent.collection import CollectorTask, create_tasks
from perfd.agent.job_end_message import read_job_end
from perfd.cli.signals import set_by_signals
from perfd.collector import UNNAMED_JOB, LocalJobs, Settings
from perfd.config import AgentConfig, CollectorConfig, load
from perfd.model import CollectorHealth, JobOrigin, Record, SampleTable, job_origin

log = logging.getLogger("perfd.agent")

ONCE_SCHEMA = "perfd.agent_once/1"
_EPILOG = """\
With --once --json it prints one object: {"schema": "perfd.agent_once/1", "node", "job",
"collectors": [{"name", "success", "message", "duration_s"}], "samples": [{"scope", "entity",
"values"}], "records": [...]}, each record with its "kind"; and ends with 1 when a collector
fails.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration in YAML (deploy/agent.yaml)"
    )
    parser.add_argument(
        "--aggregator", metavar="HOST:PORT", help="aggregator's address; overrides uplink.address"
    )
    parser.add_argument("--node", help="node name (default: the host name)")
    parser.add_argument("--job", help="job name for sources that do not have one")
    parser.add_argument(
        "--log",
        action="append",
        metavar="FILE",
        help="training log or glob; overrides collectors.training_log.options.paths",
    )
    parser.add_argument(
        "--job-output",
        metavar="NUMBER",
        help="follow the files that processes of this SLURM job on this node have as output",
    )
    parser.add_argument(
        "--job-user",
        type=int,
        metavar="UID",
        help="the only user whose processes may describe the job (default: the user of the ranks here)",
    )
    parser.add_argument(
        "--job-end",
        type=Path,
        metavar="FILE",
        help="at SIGTERM, send how the job ended: FILE has `outcome=NAME exit_code=N`, or one of them",
    )
    parser.add_argument("--once", action="store_true", help="collect twice, print the result and exit")
    parser.add_argument("--json", action="store_true", help=f"with --once: print JSON ({ONCE_SCHEMA})")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    parser.add_argument("--log-json", action="store_true", help="log JSON lines")


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; what is in the spool is sent before it ends."""
    # What `--once` prints says of each collector how it fares; logging that too would be noise.
    logs.configure("error" if args.once else args.log_level, json_lines=args.log_json)
    config = effective_config(args, os.environ, socket.gethostname())
    settings = Settings(
        node=config.node or "",
        job=config.job or "",
        proc=Path(config.proc),
        sys=Path(config.sys),
        local_jobs=LocalJobs({} if args.job_user is None else {config.job or "": args.job_user}),
        sandboxed=os.geteuid() == 0 if config.sandbox is None else config.sandbox,
    )
    tasks = create_tasks(config, settings)
    for path, problem in problems_of_logs(args.log or ()):
        log.log(logging.ERROR if args.once else logging.WARNING, problem, extra={"path": path})
    if args.once:
        return _once(tasks, config, as_json=args.json)
    stop = set_by_signals(signal.SIGTERM, signal.SIGINT)
    agent = Agent(
        config,
        node=settings.node,
        spool_directory=Path(config.spool.directory or ""),
        tasks=tasks,
        search_path=os.environ.get("PATH"),
        origin=_origin(settings.job),
    )
    agent.start()
    stop.wait()
    agent.stop("The agent was stopped by a signal.", _end_of_job(args.job_end, settings))
    return 0


def _origin(job: str) -> JobOrigin | None:
    """Whose job the agent was started for; root may be started for anyone's."""
    if job == UNNAMED_JOB:
        return None
    uid = os.geteuid()
    return job_origin(job, os.environ, owner=f"uid:{uid}" if uid != 0 else "")


def _end_of_job(path: Path | None, settings: Settings) -> Sequence[Record]:
    """How the job ended, if --job-end has it."""
    job = None if settings.job == UNNAMED_JOB else settings.job
    event = read_job_end(path, job, time.time_ns()) if path is not None else None
    return () if event is None else (event,)


def effective_config(args: argparse.Namespace, environ: Mapping[str, str], host_name: str) -> AgentConfig:
    """The configuration file with the arguments over it, and every default that the machine decides."""
    config = load(args.config, AgentConfig) if args.config else AgentConfig()
    node = args.node or config.node or environ.get("SLURMD_NODENAME") or host_name
    uplink = config.uplink
    if args.aggregator:
        uplink = msgspec.structs.replace(uplink, address=args.aggregator)
    spool = config.spool
    if spool.directory is None:
        spool = msgspec.structs.replace(spool, directory=str(state_directory(environ) / node))
    job = args.job or config.job or environ.get("SLURM_JOB_ID") or UNNAMED_JOB
    collectors = _following(config.collectors, args)
    return msgspec.structs.replace(
        config, node=node, job=job, uplink=uplink, spool=spool, collectors=collectors
    )


def may_read(path: str) -> bool:
    """Whether this user may."""
    return os.access(path, os.R_OK)


def problems_of_logs(
    patterns: Iterable[str], readable: Callable[[str], bool] = may_read
) -> Iterator[tuple[str, str]]:
    """What cannot be read now, with a sentence: a wrong name or owner would stay silent for ever."""
    for pattern in patterns:
        paths = glob(pattern, recursive=True)  # noqa: PTH207  (it may be absolute)
        if not paths:
            yield pattern, "The training log does not exist yet; it is read once it does."
        for path in paths:
            if not readable(path):
                yield path, "This user may not read the training's log; it is read when that changes."


def _following(
    collectors: Mapping[str, CollectorConfig], args: argparse.Namespace
) -> dict[str, CollectorConfig]:
    """The collectors with the one for training logs reading what the arguments name."""
    user = None if args.job_output is None else args.job_user
    named = {"paths": args.log, "job_output": args.job_output, "job_output_uid": user}
    options: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if not options:
        return dict(collectors)
    reader = collectors.get("training_log", CollectorConfig())
    options = {**reader.options, **options}
    return {**collectors, "training_log": msgspec.structs.replace(reader, options=options)}


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where perfd keeps state: https://specifications.freedesktop.org/basedir-spec/."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/") / ".local" / "state")
    return Path(base) / "perfd"


def _once(tasks: Sequence[CollectorTask], config: AgentConfig, *, as_json: bool) -> int:
    records: list[Record] = []
    # Rates need two readings, so the second round is the one that says most.
    for round_number in range(2):
        if round_number:
            time.sleep(max((task.interval_s for task in tasks if task.interval_s <= 1.0), default=1.0))
        for task in tasks:
            task.open()
            records.extend(task.run_once(time.monotonic()))
    for task in tasks:
        task.close()
    document = once_document(records, tasks, config)
    if as_json:
        print(msgspec.json.encode(document).decode())
    else:
        _print_document(document)
    return 0 if all(task.state.success is not False for task in tasks) else 1


def once_document(
    records: Sequence[Record], tasks: Sequence[CollectorTask], config: AgentConfig
) -> dict[str, Any]:
    """What `--once` prints; as JSON, NaN becomes null."""
    newest: dict[tuple[str, str], dict[str, float]] = {}
    others: list[dict[str, Any]] = []
    for record in records:
        if isinstance(record, SampleTable):
            for row, entity in enumerate(record.entities):
                values = newest.setdefault((record.scope.value, entity), {})
                for name, column in record.columns.items():
                    values[name] = column[row]
        elif not isinstance(record, CollectorHealth):
            others.append({"kind": type(record).__name__, **msgspec.to_builtins(record, str_keys=True)})
    return {
        "schema": ONCE_SCHEMA,
        "node": config.node,
        "job": config.job,
        "collectors": [
            {
                "name": task.name,
                "success": task.state.success,
                "message": task.state.message,
                "duration_s": task.state.duration_s,
            }
            for task in tasks
        ],
        "samples": [
            {"scope": scope, "entity": entity, "values": values} for (scope, entity), values in newest.items()
        ],
        "records": others,
    }


def _print_document(document: Mapping[str, Any]) -> None:
    from rich.table import Column, Table  # noqa: PLC0415  (an agent that runs has no need of it)
    from rich.text import Text  # noqa: PLC0415

    from perfd.cli.terminal import Terminal  # noqa: PLC0415

    console = Terminal()
    print(f"node {document['node']}")
    for collector in document["collectors"]:
        verdict = {True: "works", False: "fails: ", None: "left out: "}[collector["success"]]
        print(f"collector {collector['name']}: {verdict}{collector['message']}")
    for sample in document["samples"]:
        print(f"{sample['scope']} {sample['entity']}".rstrip())
        table = Table.grid("", "", Column(justify="right"), padding=(0, 2))
        for name, value in sample["values"].items():
            if not math.isnan(value):
                table.add_row("", Text(name), f"{value:g}")
        console.print(table)
    if document["records"]:
        print(f"{len(document['records'])} other records; --json shows them")
    sys.stdout.flush()
