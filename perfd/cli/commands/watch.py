"""`perfd watch`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from difflib import get_close_matches

from perfd.cli.aggregator_client import add_aggregator, get, reads_answers, url_of
from perfd.cli.arguments import positive
from perfd.cli.tables.status_tables import Json, ending
from perfd.errors import PerfdError
from perfd.formatting import count, duration, percent
from perfd.model import api_schemas

_SILENT_S = 30.0
"""A job that no agent reports for so long is shown as silent; its numbers are old."""
_WELL = ("completed", "unknown", None)
EXIT_CODES = """\
Exit codes: 0 the job ended well, or --once; 1 it failed, was canceled or ran out of time; 2 the job
is unknown or no aggregator answers; 130 interrupted."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("job", metavar="JOB", nargs="?", help="its name; not needed if there is only one")
    add_aggregator(parser)
    parser.add_argument(
        "--interval", type=positive, default=10.0, metavar="S", help="seconds between lines (default: 10)"
    )
    parser.add_argument("--once", action="store_true", help="print one line and exit, as for tmux")


@reads_answers
def run(args: argparse.Namespace) -> int:
    """Print a line about a job each interval until it ends, for CI logs; or one line, for tmux."""
    url = url_of(args)
    return watch(
        lambda: job_row(get(url, "/api/v1/fleet", api_schemas.FLEET)["jobs"], args.job),
        time.sleep,
        interval_s=args.interval,
        once=args.once,
    )


def watch(row: Callable[[], Json], sleep: Callable[[float], None], *, interval_s: float, once: bool) -> int:
    """The loop; returns the exit code."""
    while True:
        job = row()
        print(line_of(job), flush=True)
        if once:
            return 0
        if job.get("ended"):
            return 0 if job.get("outcome") in _WELL else 1
        sleep(interval_s)


def job_row(jobs: list[Json], name: str | None) -> Json:
    """The job of that name, or the only one; raises `PerfdError` with those that there are."""
    known = [str(job["name"]) for job in jobs]
    if name is None and len(jobs) == 1:
        return jobs[0]
    if name in known:
        return jobs[known.index(name)]
    if not jobs:
        raise PerfdError("The aggregator knows no job yet.")
    if name is None:
        raise PerfdError(f"There are {len(jobs)} jobs; name one of them: {', '.join(known[:8])}.")
    alike = get_close_matches(name, known, 1)
    hint = f"did you mean {alike[0]}?" if alike else f"known: {', '.join(known[:8])}."
    raise PerfdError(f"No job is named {name}; {hint}")


def line_of(job: Json) -> str:
    """What matters of a row of perfd.fleet/2 in one line; what is unknown is left out."""
    step, last = job.get("step"), job.get("train_steps")
    parts = [
        str(job["name"]),
        None if step is None else f"step {step}" + (f" of {last}" if last else ""),
        _shown(job.get("step_time_s"), duration, ""),
        _shown(job.get("tokens_per_s"), count, " tokens/s"),
        _shown(job.get("mfu_ratio"), percent, " MFU"),
        _shown(job.get("communication_ratio"), percent, " communication"),
        _limit(job["bottleneck"]),
        _alerts(int(job.get("firing_alerts") or 0)),
        ending(job) if job.get("ended") else _silence(job.get("silent_s")),
    ]
    return ", ".join(part for part in parts if part)


def _shown(value: float | None, words: Callable[[float], str], unit: str) -> str | None:
    return None if value is None else f"{words(value)}{unit}"


def _limit(bottleneck: Json) -> str:
    """`straggler (rank 2, 8.8% of a step)`."""
    culprits = [f"{one['kind']} {one['id']}" for one in bottleneck.get("culprits") or []]
    more = int(bottleneck.get("culprit_count") or 0) - len(culprits)
    if more > 0:
        culprits.append(f"{more} more")
    gain = bottleneck.get("gain_ratio")
    details = [*culprits, *([] if gain is None else [f"{percent(gain)} of a step"])]
    return f"{bottleneck.get('name')}" + (f" ({', '.join(details)})" if details else "")


def _alerts(firing: int) -> str | None:
    return f"{firing} alert{'s' if firing > 1 else ''}" if firing else None


def _silence(silent_s: float | None) -> str | None:
    return None if silent_s is None or silent_s <= _SILENT_S else f"silent for {duration(silent_s)}"
