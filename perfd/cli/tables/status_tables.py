"""Jobs and serving engines as tables for a terminal: pure, from the entries of /api/v1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perfd.cli.terminal_table import TerminalTable
from perfd.formatting import UNKNOWN, count, duration, flops_per_s, percent, power

Json = Mapping[str, Any]

_STALE_S = 30.0
"""A job of which no agent spoke for so long is shown as silent."""
_BAR_WIDTH = 12
"""Columns of a bar, each of which shows eighths."""
_WIDE = 10_000
"""Wider than any table, to find out how wide it wants to be."""
_MAX_GPUS = 16
"""Rows of one server; the others are counted."""
_BARS = " ▏▎▍▌▋▊▉█"


def render(
    jobs: Sequence[Json], alerts: Sequence[Json] = (), *, played: tuple[float, float] | None = None
) -> RenderableType:
    """Everything about the jobs that fits on a screen of 80 columns.

    `jobs` and `alerts` are the lists of /api/v1/jobs and /api/v1/alerts; `played` is how many
    seconds of how many of a recording were played, for a progress bar.
    """
    parts: list[RenderableType] = []
    if played is not None:
        parts.append(_progress(*played))
    if not jobs:
        parts.append(Text("No jobs yet: agents send data about once per second.", style="dim"))
    for job in jobs:
        parts += [_numbers(job), *_stages(job), *_gpus(job), _bottleneck(job)]
    firing = [alert for alert in alerts if alert.get("state") == "firing"]
    parts += [Text(f"ALERT {_alert(alert)}", style="bold red") for alert in firing]
    return Group(*parts)


def ending(job: Json) -> str:
    """How a job ended, in words: `ended: out of memory`, or `ended` if unknown."""
    outcome = str(job.get("outcome") or "unknown")
    return "ended" if outcome == "unknown" else f"ended: {outcome.replace('_', ' ')}"


def job_table(jobs: Sequence[Json], alerts: Sequence[Json] = ()) -> TerminalTable:
    """One row per job with its bottleneck, for `perfd status`."""
    table = TerminalTable()
    table.add_column("JOB", overflow="fold")
    for name in ("STEP", "STEP TIME", "TOKENS/S", "MFU", "COMM", "STALL"):
        table.add_column(name, justify="right")
    table.add_column("LIMITED BY", overflow="fold")
    for job in jobs:
        firing = sum(a.get("job") == job["name"] and a.get("state") == "firing" for a in alerts)
        kind = str(get(job, "bottleneck", "name") or "unknown")
        table.add_row(
            Text(
                job["name"]
                + (f" ({ending(job)})" if job.get("ended") else " (silent)" if silent(job) else "")
            ),
            _step(job),
            duration(get(job, "step_time_s", "median")),
            count(get(job, "efficiency", "tokens_per_s")),
            percent(get(job, "efficiency", "mfu_ratio")),
            percent(get(job, "communication", "share_ratio")),
            percent(get(job, "pipeline", "stall_ratio")),
            Text(kind) + (f", {firing} alert{'s' if firing > 1 else ''}" if firing else ""),
        )
    return table


def group_table(group: Json) -> Table:
    """A table of a group's aggregators and their partitions, from a perfd.group/1 document."""
    table = Table("aggregator", "address", "partitions", box=box.SIMPLE)
    for member in group["members"]:
        own = [str(one["partition"]) for one in group["partitions"] if one["member"] == member["member"]]
        table.add_row(Text(member["member"]), Text(member["address"]), ", ".join(own) or "none")
    return table


def server_table(servers: Sequence[Json]) -> TerminalTable:
    """One row per serving engine, for `perfd status`."""
    table = TerminalTable()
    for name in ("SERVER", "ENGINE", "MODEL"):
        table.add_column(name, overflow="fold")
    for name in ("RUN", "WAIT", "TTFT p50", "TPOT p50", "ALERTS"):
        table.add_column(name, justify="right")
    for server in servers:
        down = " (down)" if server["up"] is False else ""
        table.add_row(
            Text(f"{server['node']} {server['server']}{down}"),
            Text(server["engine"] or UNKNOWN),
            Text(server["model"] or UNKNOWN),
            count(server["running_requests"]),
            count(server["queued_requests"]),
            duration(server["ttft_s"]["p50"]),
            duration(server["tpot_s"]["p50"]),
            count(len(server["findings"])),
        )
    return table


def _numbers(job: Json) -> RenderableType:
    title = Text.assemble((job["name"], "bold"), f"  {job.get('framework') or 'unknown framework'}")
    title.append(f"  {layout(job)}", style="dim")
    numbers = _Numbers(
        [
            ("step", _step(job)),
            ("step time", duration(get(job, "step_time_s", "median"))),
            ("tokens/s", count(get(job, "efficiency", "tokens_per_s"))),
            ("MFU", percent(get(job, "efficiency", "mfu_ratio"))),
            ("comm", percent(get(job, "communication", "share_ratio"))),
            ("stall", percent(get(job, "pipeline", "stall_ratio"))),
            ("per GPU", flops_per_s(get(job, "efficiency", "model_flops_per_s_per_gpu"))),
            ("data loading", percent(get(job, "data", "share_ratio"))),
            ("optimizer", percent(get(job, "optimizer", "share_ratio"))),
        ]
    )
    return Group(title, numbers)


class _Numbers:
    """Numbers with their names, as many beside each other as the terminal is wide, at most three."""

    def __init__(self, cells: Sequence[tuple[str, str]]) -> None:
        self._cells = cells

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The widest table that fits."""
        for beside in (3, 2, 1):
            table = self._table(beside)
            if beside == 1 or Measurement.get(console, options.update(max_width=_WIDE), table).maximum <= (
                options.max_width
            ):
                yield table
                return

    def _table(self, beside: int) -> Table:
        table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
        for _ in range(beside):
            table.add_column(justify="left", style="dim", no_wrap=True)
            table.add_column(justify="right", min_width=9, no_wrap=True)
        for start in range(0, len(self._cells), beside):
            table.add_row(*(text for cell in self._cells[start : start + beside] for text in cell))
        return table


def _stages(job: Json) -> list[RenderableType]:
    stages = get(job, "pipeline", "stages") or []
    shown = [f"{stage_name(stage)} {percent(stage.get('stall_ratio'))}" for stage in stages]
    theory = get(job, "pipeline", "bubble_theory_ratio")
    if not shown or not theory:
        return []
    text = f"stall by stage  {'  '.join(shown[:8])}  (theory {percent(theory)})"
    return [Text(text, style="dim", overflow="ellipsis", no_wrap=True)]


def stage_name(stage: Json) -> str:
    """What a pipeline stage of a job's summary is called before its stall."""
    number = stage.get("stage")
    return str(stage.get("bound") or "?").replace("_", " ") if number is None else f"{number}:"


def _gpus(job: Json) -> list[RenderableType]:
    gpus = job.get("gpus") or []
    if not gpus:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("GPU", "RANK"):
        table.add_column(name, no_wrap=True)
    table.add_column("SM ACTIVE", no_wrap=True)
    table.add_column("TENSOR", no_wrap=True)
    table.add_column("DRAM", justify="right", no_wrap=True)
    table.add_column("POWER", justify="right", no_wrap=True)
    for gpu in gpus[:_MAX_GPUS]:
        table.add_row(
            Text(f"{gpu['node']}/{gpu['gpu']}"[-20:]),
            UNKNOWN if gpu.get("rank") is None else str(gpu["rank"]),
            bar(gpu.get("sm_active_ratio")),
            bar(gpu.get("tensor_active_ratio")),
            percent(gpu.get("dram_active_ratio")),
            power(gpu.get("power_w")),
        )
    left = len(gpus) - _MAX_GPUS
    return [table, Text(f"and {left} more GPUs", style="dim")] if left > 0 else [table]


def _bottleneck(job: Json) -> RenderableType:
    kind = str(get(job, "bottleneck", "name") or "unknown")
    culprits = [f"{who['kind']} {who['id']}" for who in get(job, "bottleneck", "culprits") or []]
    evidence = get(job, "bottleneck", "evidence") or []
    text = Text("limited by ", style="dim").append(kind, style="bold not dim yellow")
    if culprits:
        text.append(f" ({', '.join(culprits[:4])})", style="not dim")
    if evidence:
        text.append(f"  {evidence[0]}")
    return text


def _alert(alert: Json) -> str:
    annotations = alert.get("annotations") or {}
    return f"{alert['name']}  {annotations.get('summary', '')}".strip()


def _progress(done: float, total: float) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=max(total, 1e-9), completed=min(done, total), width=50),
        f"{duration(done)} of {duration(total)}",
    )
    return line


def silent(entry: Json) -> bool:
    """Whether a job or server has sent no data for too long."""
    return not entry.get("ended") and (entry.get("silent_s") or 0.0) > _STALE_S


def layout(job: Json) -> str:
    """How many GPUs a job has, and how it is spread over them."""
    parallel = job.get("parallel") or {}
    sizes = [
        f"{name.upper()} {parallel[name]}" for name in ("tp", "pp", "dp", "cp", "ep") if parallel.get(name)
    ]
    world = parallel.get("world_size")
    return ", ".join(
        [*([f"{count(world)} ranks"] if world else []), *(size for size in sizes if not size.endswith(" 1"))]
    )


def _step(job: Json) -> str:
    last, planned = get(job, "steps", "last"), job.get("train_steps")
    if last is None:
        return UNKNOWN
    return f"{last}/{planned}" if planned else str(last)


def bar(ratio: float | None) -> str:
    """A ratio as a bar with its figure."""
    if ratio is None:
        return UNKNOWN
    eighths = round(min(max(ratio, 0.0), 1.0) * _BAR_WIDTH * 8)
    full, rest = divmod(eighths, 8)
    return f"{'█' * full}{_BARS[rest] if rest else ''}".ljust(_BAR_WIDTH) + f"{ratio:4.0%}"


def get(entry: Json, *path: str) -> Any:  # noqa: ANN401  (JSON)
    """What an answer has at a path of keys; None where it has nothing."""
    value: Any = entry
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
