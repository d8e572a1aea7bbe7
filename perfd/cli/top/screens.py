"""The screens of `perfd top` for a terminal of any size: pure, from the answers of /api/v1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perfd.analysis.findings import limits_job
from perfd.cli.tables.status_tables import Json, silent
from perfd.cli.top.screen_state import KEYS, window
from perfd.formatting import UNKNOWN, count, duration, percent

_NARROW = 70
_ROOMY = 96
_WIDE = 110
_NAMES = 140
"""So wide that a model's name has a place in the table."""
_MODEL_CHARS = 32
_ALERTS = 2
"""Of those that belong to no job."""


def order(jobs: Sequence[Json]) -> list[Json]:
    """Rows of perfd.fleet/2 as the page has them: running jobs first, and of those what costs most."""
    return sorted(jobs, key=_urgency)


def _urgency(job: Json) -> tuple[int, bool, float, str]:
    worst = job["bottleneck"]
    state = 2 if job["ended"] else 1 if silent(job) else 0
    return state, not limits_job(worst["kind"]), -(worst.get("gain_ratio") or 0.0), job["name"]


def fleet_screen(fleet: Json, row: int, width: int, room: int | None) -> RenderableType:
    """All jobs, as many lines as there is room for; None for all."""
    jobs = order(fleet["jobs"])
    agents, servers = fleet["agents"], fleet["servers"]
    going = [job for job in jobs if not job["ended"]]
    held = sum(limits_job(job["bottleneck"]["kind"]) for job in going)
    running = f"{held} of {len(going)} active jobs have a bottleneck" if going else "no active jobs"
    head = Text(running, style="bold" if held else "")
    head.append(f"  {agents['connected']} of {agents['count']} agents connected", style="not bold dim")
    if servers["count"]:
        head.append(f"  {servers['up']} of {servers['count']} serving engines up", style="not bold dim")
    alerts = [
        _line(Text(f"ALERT {alert['name']}  {alert['summary']}", style="bold red"))
        for alert in fleet["alerts"][-_ALERTS:]
    ]
    if not jobs:
        return Group(head, *alerts, Text("No jobs yet: agents send data about once per second.", style="dim"))
    shown = range(len(jobs)) if room is None else window(len(jobs), row, room - 3 - len(alerts))
    chosen = None if room is None else min(row, len(jobs) - 1)
    table = _job_table([(jobs[number], number == chosen) for number in shown], width)
    left = len(jobs) - len(shown)
    more = [Text(f"{shown.start + 1} to {shown.stop} of {len(jobs)} jobs", style="dim")] if left else []
    return Group(_line(head), *alerts, table, *more)


def _job_table(rows: Sequence[tuple[Json, bool]], width: int) -> Table:
    table = _table()
    # As much of the names as they need, but never more than a third of the line.
    name_width = min(max(len(job["name"]) for job, _ in rows) + 2, max(14, width // 3))
    table.add_column("JOB", no_wrap=True, width=name_width)
    if width >= _NARROW:
        table.add_column("STEP", justify="right", no_wrap=True)
    table.add_column("TIME", justify="right", no_wrap=True)
    table.add_column("MFU", justify="right", no_wrap=True)
    if width >= _WIDE:
        table.add_column("TOKENS/S", justify="right", no_wrap=True)
        table.add_column("COMM", justify="right", no_wrap=True)
        table.add_column("STALL", justify="right", no_wrap=True)
    table.add_column("LIMITED BY", no_wrap=True, ratio=1, overflow="ellipsis")
    if width >= _NARROW:
        table.add_column("ALERTS", justify="right", no_wrap=True)
    for job, chosen in rows:
        name = Text(_mark(chosen) + _short(job["name"], name_width - 2), style="bold" if chosen else "")
        cells: list[RenderableType] = [name]
        if width >= _NARROW:
            cells.append(_step(job))
        cells += [duration(job["step_time_s"]), percent(job["mfu_ratio"])]
        if width >= _WIDE:
            cells += [
                count(job["tokens_per_s"]),
                percent(job["communication_ratio"]),
                percent(job["stall_ratio"]),
            ]
        cells.append(_limit(job))
        if width >= _NARROW:
            alerts = job["firing_alerts"]
            cells.append(Text(str(alerts), style="bold red" if alerts else "dim"))
        table.add_row(*cells, style="dim" if job["ended"] else "")
    return table


def _limit(job: Json) -> Text:
    worst = job["bottleneck"]
    text = Text()
    if silent(job):
        text.append(f"silent for {duration(job['silent_s'])}  ", style="bold yellow")
    text.append(_kind(worst), style="yellow" if limits_job(worst["kind"]) else "dim")
    names = [f"{who['kind']} {who['id']}" for who in worst["culprits"]]
    if names:
        more = worst["culprit_count"] - len(names)
        text.append(f": {', '.join(names)}{f' and {more} more' if more > 0 else ''}")
    if worst.get("gain_ratio") is not None:
        text.append(f"  {percent(worst['gain_ratio'])}", style="dim")
    return text


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
        _line(Text(f"{finding['name']}  {finding['summary']}", style="yellow"))
        for finding in servers[chosen]["findings"][:2]
    ]
    identity = server_words(servers[chosen])
    return Group(table, *([_line(Text(identity))] if identity else []), *findings)


def server_words(server: Json) -> str:
    """What an entry of perfd.servers/2 says of the engine: `sglang 0.5.9, Qwen/Qwen3-32B, decode, tp 8`."""
    sizes = " ".join(f"{name} {size}" for name, size in server["parallel"].items() if (size or 1) > 1)
    role = server["role"] if server["role"] != "both" else None
    engine = " ".join(filter(None, [server["engine"], server["version"]]))
    return ", ".join(filter(None, [engine, server["model"], role, sizes]))


def _server(server: Json, *, chosen: bool, width: int) -> list[RenderableType]:
    style = "bold red" if server["up"] is False else "bold yellow" if silent(server) else ""
    state = "down " if server["up"] is False else "silent " if silent(server) else ""
    name = Text(f"{_mark(chosen)}{state}{server['node']} {server['server']}", style=style)
    theory = server["theory"] or {}
    cells: list[RenderableType] = [name]
    if width >= _ROOMY:
        cells.append(Text(server["engine"] or UNKNOWN))
    if width >= _NAMES:
        cells.append(Text(_short(server["model"] or UNKNOWN, _MODEL_CHARS)))
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
    problems = [Text(problem, style="bold red")] if problem is not None else []
    return Group(_line(title), *problems, screen, _line(Text(hint, style="dim")))


def _mark(chosen: bool) -> str:
    return "> " if chosen else "  "


def _short(name: str, width: int) -> str:
    """A name cut to a width in its middle: its end matters as much as its start."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[-end:]}"


def _line(text: Text) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


def _table() -> Table:
    return Table(box=None, pad_edge=False, expand=True, header_style="dim", padding=(0, 2, 0, 0))


def _kind(finding: Mapping[str, Any]) -> str:
    return str(finding["name"])


def _step(job: Json) -> str:
    if job["step"] is None:
        return UNKNOWN
    return f"{job['step']}/{job['train_steps']}" if job["train_steps"] else str(job["step"])
