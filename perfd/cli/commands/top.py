"""`perfd top`."""

from __future__ import annotations

import argparse
import textwrap
import time
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from rich.console import ConsoleDimensions, RenderableType
from rich.live import Live
from rich.text import Text

from perfd.cli.aggregator_client import add_aggregator, get, reads_answers, url_of
from perfd.cli.arguments import positive
from perfd.cli.tables.status_tables import Json
from perfd.cli.terminal import Terminal
from perfd.cli.top import (
    KEYS,
    Screen,
    ScreenPosition,
    Wait,
    fleet_click,
    fleet_screen,
    framed,
    help_screen,
    job_screen,
    keys,
    orders,
    press,
    server_order,
    server_screen,
)
from perfd.errors import PerfdError
from perfd.model import api_schemas

_HINT = "up/down choose  enter open  h jobs  s serving  ? keys  q leave"
_HINT_JOBS = "up/down choose  enter open  < > sort  / find  s serving  ? keys  q leave"
_MOST_JOBS = 1000
"""That one request asks for, the most that a page of the API has."""
_POINTS = 120
"""Points requested per sparkline, the most that are drawn."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_aggregator(parser)
    parser.add_argument(
        "--interval", type=positive, default=1.0, metavar="S", help="refresh interval in seconds"
    )
    parser.add_argument("--once", action="store_true", help="print once and exit")
    parser.epilog = "Keys: " + "; ".join(f"{key}: {says}" for key, says in KEYS) + "."


@reads_answers
def run(args: argparse.Namespace) -> int:
    """Show the jobs of an aggregator until `q` or Ctrl-C."""
    url = url_of(args)
    console = Terminal()
    answers = _first(url)
    # No keys without a terminal, or on one that cannot move its cursor.
    if args.once or not console.is_terminal or console.is_dumb_terminal:
        console.print(_screen(answers.place, answers, console.width, None))
        return 0
    with keys() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        _follow(url, answers, max(0.1, args.interval), wait, live)
    return 0


def _follow(url: str, answers: _Answers, interval_s: float, wait: Wait, live: Live) -> None:
    """Draw, wait for a key or the next look, and again."""
    place, problem = answers.place, None
    due_s = time.monotonic() + interval_s
    while not place.leaving:
        live.update(_drawn(live.console.size, url, place, answers, problem), refresh=True)
        key = wait(max(0.0, due_s - time.monotonic()))
        if key is not None:
            place = _moved(place, key, answers, live.console.size, problem)
        if time.monotonic() < due_s and place.same_view(answers.place):
            continue
        due_s = time.monotonic() + interval_s
        try:
            answers, problem = _ask(url, place), None
        except PerfdError as error:
            problem = str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """What a screen is made of."""

    place: ScreenPosition
    at: str = ""
    fleet: Json = field(default_factory=dict)
    servers: list[Json] = field(default_factory=list)
    job: Json | None = None
    ranks: Json | None = None
    series: Json | None = None
    alerts: list[Json] = field(default_factory=list)


def _first(url: str) -> _Answers:
    """An aggregator with one job shows that job; one that cannot be asked is a `PerfdError`."""
    answers = _ask(url, ScreenPosition())
    jobs = answers.fleet["jobs"]
    return answers if len(jobs) != 1 else _ask(url, ScreenPosition(screen=Screen.JOB, job=jobs[0]["name"]))


def _ask(url: str, place: ScreenPosition) -> _Answers:
    at = time.strftime("%H:%M:%S")
    if place.screen is Screen.SERVERS:
        return _Answers(
            place=place, at=at, servers=get(url, "/api/v1/servers", api_schemas.SERVERS)["servers"]
        )
    if place.screen is Screen.JOB and place.job is not None:
        asked = quote(place.job, safe="")
        jobs = get(url, f"/api/v1/jobs?short=1&job={asked}", api_schemas.JOBS)["jobs"]
        if not jobs:
            return _Answers(place=place, at=at)
        return _Answers(
            place=place,
            at=at,
            job=jobs[0],
            alerts=get(url, f"/api/v1/alerts?job={asked}", api_schemas.ALERTS)["alerts"],
            ranks=_known(url, f"/api/v1/jobs/{asked}/ranks", api_schemas.RANKS),
            series=_known(url, f"/api/v1/jobs/{asked}/series?points={_POINTS}", api_schemas.SERIES),
        )
    query = {"limit": _MOST_JOBS, "trend": 1, "sort": place.sort, "down": int(place.down), "q": place.words}
    asked = urlencode({name: value for name, value in query.items() if value})
    fleet = get(url, f"/api/v1/fleet?{asked}", api_schemas.FLEET)
    return _Answers(place=place, at=at, fleet=fleet)


def _known(url: str, path: str, schema: str) -> Json | None:
    """Optional data of a job; without it the screen shows the rest."""
    try:
        return get(url, path, schema)
    except PerfdError:
        return None


def _lines(answers: _Answers) -> list[str]:
    if answers.servers:
        return [server["server"] for server in server_order(answers.servers)]
    return [job["name"] for job in answers.fleet.get("jobs", ())]


def _moved(
    place: ScreenPosition, key: str, answers: _Answers, size: ConsoleDimensions, problem: str | None
) -> ScreenPosition:
    """The state after a key or a click."""
    if not key.startswith("click"):
        return press(place, key, _lines(answers), orders(size.width))
    if place.screen is not Screen.JOBS or not place.same_view(answers.place):
        return place
    column, line = map(int, key.split()[1:])
    room = _room(size, _said(problem, answers))
    # The hint is the last line; lines above the screen move it down.
    at = column, line - (size.height - 1 - room)
    return fleet_click(answers.fleet, place, size.width, room, at)


def _said(problem: str | None, answers: _Answers) -> str | None:
    return problem and f"{problem} Data from {answers.at}; retrying."


def _room(size: ConsoleDimensions, problem: str | None) -> int:
    """Lines between the title, with what is wrong, and the hint."""
    return size.height - 2 - len(textwrap.wrap(problem or "", size.width))


def _drawn(
    size: ConsoleDimensions, url: str, place: ScreenPosition, answers: _Answers, problem: str | None
) -> RenderableType:
    problem = _said(problem, answers)
    # Until another view can be loaded, the current one stays.
    shown = place if place.same_view(answers.place) or place.screen is Screen.HELP else answers.place
    screen = _screen(shown, answers, size.width, _room(size, problem))
    head = f"perfd top  {url.removeprefix('http://')}  {answers.at}"
    return framed(
        screen,
        head=head,
        width=size.width,
        problem=problem,
        hint=_HINT_JOBS if shown.screen is Screen.JOBS else _HINT,
    )


def _screen(place: ScreenPosition, answers: _Answers, width: int, room: int | None) -> RenderableType:
    if place.screen is Screen.HELP:
        return help_screen()
    if place.screen is Screen.SERVERS:
        return server_screen(answers.servers, place.row, width, room)
    if place.screen is Screen.JOB:
        if answers.job is None:
            return Text(f"{place.job} is no longer in the aggregator's memory; h shows all jobs.")
        return job_screen(
            answers.job, answers.alerts, width, room, ranks=answers.ranks, series=answers.series
        )
    return fleet_screen(answers.fleet, place, width, room)
