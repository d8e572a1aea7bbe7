"""The table of all jobs in `perfd top`: its columns by the width of the terminal, and their orders. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from perfd.analysis.findings import limits_job
from perfd.cli.tables.status_tables import Json, silent
from perfd.cli.top.screen_state import ScreenPosition
from perfd.cli.top.sparkline import sparkline
from perfd.formatting import UNKNOWN, count, duration, percent

_TREND = 24
"""Characters; the aggregator sends 30 points."""
_LEAST_NAME = 14
"""Columns of a job's name on a narrow terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetColumn:
    """A column of the table."""

    title: str
    cell: Callable[[Json], Text]
    least_width: int = 0
    """Of a terminal that has room for it."""
    sort: str | None = None
    """What /api/v1/fleet calls its order."""
    left: bool = False


def columns(width: int) -> list[FleetColumn]:
    """Those for which a terminal has room, the first with the name."""
    return [column for column in _COLUMNS if width >= column.least_width]


def orders(width: int) -> list[str]:
    """By which the table of such a terminal can be sorted."""
    return [column.sort for column in columns(width) if column.sort]


def job_table(rows: Sequence[tuple[Json, bool]], place: ScreenPosition, width: int) -> Table:
    """One line for each job; a true value marks the chosen one."""
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim", padding=(0, 2, 0, 0))
    # As much of the names as they need, but never more than a third of the line.
    name_width = min(max(len(job["name"]) for job, _ in rows) + 2, max(_LEAST_NAME, width // 3))
    table.add_column(f"JOB{_arrow('name', place)}", no_wrap=True, width=name_width)
    shown = columns(width)[1:]
    for column in shown:
        table.add_column(
            f"{column.title}{_arrow(column.sort, place)}",
            justify="left" if column.left else "right",
            no_wrap=True,
            ratio=1 if column.title == _LIMIT else None,
            overflow="ellipsis",
        )
    for job, chosen in rows:
        name = Text(marked(chosen) + short(job["name"], name_width - 2), style="bold" if chosen else "")
        table.add_row(name, *(column.cell(job) for column in shown), style="dim" if job["ended"] else "")
    return table


def order_at(heading: str, column: int, width: int) -> str | None:
    """The order of the column whose title is nearest to a character of the line of titles."""
    found = []
    for one in columns(width):
        title = re.search(rf"(^|\s){re.escape(one.title)}(?=\s|▴|▾|$)", heading)
        if title is not None:
            found.append((max(title.start() - column, column - title.end(), 0), one.sort))
    return min(found, key=lambda one: one[0])[1] if found else None


def marked(chosen: bool) -> str:
    """What is before a name in a list."""
    return "> " if chosen else "  "


def short(name: str, width: int) -> str:
    """A name cut to a width in its middle: its end matters as much as its start."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[-end:]}"


def _arrow(order: str | None, place: ScreenPosition) -> str:
    return "" if not order or order != place.sort else "▾" if place.down else "▴"


def _limit(job: Json) -> Text:
    worst = job["bottleneck"]
    text = Text()
    if silent(job):
        text.append(f"silent for {duration(job['silent_s'])}  ", style="bold yellow")
    text.append(str(worst["name"]), style="yellow" if limits_job(worst["kind"]) else "dim")
    names = [f"{who['kind']} {who['id']}" for who in worst["culprits"]]
    if names:
        more = worst["culprit_count"] - len(names)
        text.append(f": {', '.join(names)}{f' and {more} more' if more > 0 else ''}")
    if worst.get("gain_ratio") is not None:
        text.append(f"  {percent(worst['gain_ratio'])}", style="dim")
    return text


def _step(job: Json) -> Text:
    if job["step"] is None:
        return Text(UNKNOWN)
    return Text(f"{job['step']}/{job['train_steps']}" if job["train_steps"] else str(job["step"]))


def _alerts(job: Json) -> Text:
    firing = job["firing_alerts"]
    return Text(str(firing), style="bold red" if firing else "dim")


def _lost(job: Json) -> Text:
    hours = job.get("wasted_gpu_h")
    return Text(UNKNOWN if hours is None else count(hours, 1))


_LIMIT = "LIMITED BY"
_COLUMNS = (
    FleetColumn(title="JOB", cell=lambda job: Text(job["name"]), sort="name", left=True),
    FleetColumn(title="STEP", cell=_step, least_width=70, sort="step"),
    FleetColumn(title="TIME", cell=lambda job: Text(duration(job["step_time_s"])), sort="step_time"),
    FleetColumn(
        title="LAST HOUR",
        cell=lambda job: Text(sparkline(job.get("trend_step_time_s") or (), _TREND), style="cyan"),
        least_width=140,
        left=True,
    ),
    FleetColumn(title="MFU", cell=lambda job: Text(percent(job["mfu_ratio"])), sort="mfu"),
    FleetColumn(
        title="TOKENS/S", cell=lambda job: Text(count(job["tokens_per_s"])), least_width=110, sort="tokens"
    ),
    FleetColumn(
        title="COMM",
        cell=lambda job: Text(percent(job["communication_ratio"])),
        least_width=110,
        sort="communication",
    ),
    FleetColumn(title="STALL", cell=lambda job: Text(percent(job["stall_ratio"])), least_width=110),
    FleetColumn(title=_LIMIT, cell=_limit, sort="gain", left=True),
    FleetColumn(title="LOST GPU-H", cell=_lost, least_width=140, sort="wasted"),
    FleetColumn(
        title="OWNER",
        cell=lambda job: Text(job.get("owner") or UNKNOWN),
        least_width=170,
        sort="owner",
        left=True,
    ),
    FleetColumn(title="ALERTS", cell=_alerts, least_width=70, sort="alerts"),
)
