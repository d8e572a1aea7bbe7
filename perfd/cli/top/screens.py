"""The screens of `perfd top` for a terminal of any size: pure, from the answers of /api/v1."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from perfd.cli.tables.status_tables import Json, silent
from perfd.cli.top.fleet_table import job_table, marked, order_at, short
from perfd.cli.top.screen_state import KEYS, ScreenPosition, press, sorted_by, window
from perfd.formatting import UNKNOWN, count, duration, percent

_NARROW = 70
"""Columns from which each figure has its own column."""
_ROOMY = 96
"""Columns from which servers have one for their engine."""
_WIDE = 110
"""Columns from which servers show throughput and time to first token."""
_NAMES = 140
"""So wide that a model's name has a place in the table."""
_MODEL_CHARS = 32
"""Of a model's name; longer ones are cut."""
_ALERTS = 2
"""Of those that belong to no job."""


def fleet_screen(fleet: Json, place: ScreenPosition, width: int, room: int | None) -> RenderableType:
    """All jobs, as many lines as there is room for; None for all."""
    jobs, page = fleet["jobs"], fleet["page"]
    above = _above(fleet, place)
    if not page["total"]:
        return Group(*above, Text("No jobs yet: agents send data about once per second.", style="dim"))
    if not jobs:
        return Group(*above, Text(f"No job matches {place.words!r}; escape shows all.", style="dim"))
    shown = _shown(fleet, place, room)
    chosen = None if room is None else min(place.row, len(jobs) - 1)
    table = job_table([(jobs[number], number == chosen) for number in shown], place, width)
    left = page["matched"] - len(shown)
    more = f"{shown.start + 1} to {shown.stop} of {page['matched']} jobs"
    return Group(*above, table, *([Text(more, style="dim")] if left else []))


def fleet_click(
    fleet: Json, place: ScreenPosition, width: int, room: int, at: tuple[int, int]
) -> ScreenPosition:
    """The state after a click at a column and line of the list of jobs, both counted from 0."""
    column, line = at
    row = line - len(_above(fleet, place)) - 1
    if not fleet["jobs"]:
        return place
    shown = _shown(fleet, place, room)
    if row == -1:
        table = job_table([(fleet["jobs"][number], False) for number in shown], place, width)
        console = Console(width=width, file=StringIO(), force_terminal=False)
        with console.capture() as drawn:
            console.print(table)
        order = order_at(drawn.get().splitlines()[0], column, width)
        return place if order is None else sorted_by(place, order)
    if not 0 <= row < len(shown):
        return place
    if shown[row] == place.row:
        return press(place, "enter", [job["name"] for job in fleet["jobs"]])
    return replace(place, row=shown[row])


def _shown(fleet: Json, place: ScreenPosition, room: int | None) -> range:
    jobs = fleet["jobs"]
    if room is None:
        return range(len(jobs))
    return window(len(jobs), min(place.row, len(jobs) - 1), room - 2 - len(_above(fleet, place)))


def _above(fleet: Json, place: ScreenPosition) -> list[Text]:
    """The lines above the table."""
    agents, servers, counts = fleet["agents"], fleet["servers"], fleet["counts"]
    going, held = counts["running"] + counts["silent"], counts["held_up"]
    running = f"{held} of {going} active jobs have a bottleneck" if going else "no active jobs"
    head = Text(running, style="bold" if held else "")
    head.append(f"  {agents['connected']} of {agents['count']} agents connected", style="not bold dim")
    if servers["count"]:
        head.append(f"  {servers['up']} of {servers['count']} serving engines up", style="not bold dim")
    words = [Text(f"/{place.words}{'_' if place.typing else ''}", style="bold cyan")]
    alerts = [
        Text(f"ALERT {one['name']}  {one['summary']}", style="bold red") for one in fleet["alerts"][-_ALERTS:]
    ]
    return [one_line(text) for text in (head, *(words if place.words or place.typing else []), *alerts)]


def server_order(servers: Sequence[Json]) -> list[Json]:
    """Entries of perfd.servers/2 as the page has them: what is down or has findings first."""
    return sorted(servers, key=lambda one: (one["up"] is not False, not silent(one), -len(one["findings"])))


def server_screen(servers: Sequence[Json], row: int, width: int, room: int | None) -> RenderableType:
    """All serving engines: latencies compared with theory, and the findings of the selected one."""
    if not servers:
        return Text("No serving engines yet: agents discover SGLang and vLLM on their node.", style="dim")
    servers = server_order(servers)
    chosen = min(row, len(servers) - 1)
    shown = range(len(servers)) if room is None else window(len(servers), row, room - 4)
    table = _table()
    table.add_column("SERVER", no_wrap=True, ratio=1, overflow="ellipsis")
    if width >= _ROOMY:
        table.add_column("ENGINE", no_wrap=True)
    if width >= _NAMES:
        table.add_column("MODEL", no_wrap=True)
    names = ["RUN", "WAIT", "KV", "TTFT p50", "TPOT p50"]
    if width >= _NARROW:
        names += ["p99", "THEORY"]
    if width >= _WIDE:
        names += ["TOKENS/S", "TTFT p99", "FLOOR"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for number in shown:
        table.add_row(*_server(servers[number], chosen=number == chosen, width=width))
    findings = [
        one_line(Text(f"{finding['name']}  {finding['summary']}", style="yellow"))
        for finding in servers[chosen]["findings"][:2]
    ]
    identity = server_words(servers[chosen])
    return Group(table, *([one_line(Text(identity))] if identity else []), *findings)


def server_words(server: Json) -> str:
    """What an entry of perfd.servers/2 says of the engine: `sglang 0.5.9, Qwen/Qwen3-32B, decode, tp 8`."""
    sizes = " ".join(f"{name} {size}" for name, size in server["parallel"].items() if (size or 1) > 1)
    role = server["role"] if server["role"] != "both" else None
    engine = " ".join(filter(None, [server["engine"], server["version"]]))
    return ", ".join(filter(None, [engine, server["model"], role, sizes]))


def _server(server: Json, *, chosen: bool, width: int) -> list[RenderableType]:
    style = "bold red" if server["up"] is False else "bold yellow" if silent(server) else ""
    state = "down " if server["up"] is False else "silent " if silent(server) else ""
    name = Text(f"{marked(chosen)}{state}{server['node']} {server['server']}", style=style)
    theory = server["theory"] or {}
    cells: list[RenderableType] = [name]
    if width >= _ROOMY:
        cells.append(Text(server["engine"] or UNKNOWN))
    if width >= _NAMES:
        cells.append(Text(short(server["model"] or UNKNOWN, _MODEL_CHARS)))
    cells += [
        count(server["running_requests"]),
        count(server["queued_requests"]),
        percent(server["kv_cache_used_ratio"]),
        duration(server["ttft_s"]["p50"]),
        duration(server["tpot_s"]["p50"]),
    ]
    if width >= _NARROW:
        cells += [duration(server["tpot_s"]["p99"]), duration(theory.get("tpot_theory_s"))]
    if width >= _WIDE:
        cells += [
            count(server["generation_tokens_per_s"]),
            duration(server["ttft_s"]["p99"]),
            duration(theory.get("ttft_floor_s")),
        ]
    return cells


def help_screen() -> RenderableType:
    """The keys."""
    table = _table()
    table.expand = False
    table.add_column("KEY")
    table.add_column("")
    for key, says in KEYS:
        table.add_row(key, says)
    return table


def framed(
    screen: RenderableType, *, head: str, width: int, problem: str | None = None, hint: str = ""
) -> RenderableType:
    """A screen with a line above and below it, and what is wrong now."""
    title = Text(head[:width].ljust(width), style="reverse")
    problems = [one_line(Text(line, style="bold red")) for line in textwrap.wrap(problem or "", width)]
    return Group(one_line(title), *problems, screen, one_line(Text(hint, style="dim")))


def one_line(text: Text) -> Text:
    """Text that is cut off at the edge of the terminal."""
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


def _table() -> Table:
    return Table(box=None, pad_edge=False, expand=True, header_style="dim", padding=(0, 2, 0, 0))
