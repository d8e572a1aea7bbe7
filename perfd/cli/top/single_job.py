"""The screen of one job in `perfd top`: what limits it, then the numbers. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perfd.cli.tables.status_tables import Json, ending, get, layout, silent, stage_name
from perfd.cli.top.sparkline import sparkline
from perfd.formatting import UNKNOWN, count, duration, flops_per_s, percent, power

_PARTS = (
    ("forward", "blue", ("breakdown", "forward_ratio")),
    ("backward", "cyan", ("breakdown", "backward_ratio")),
    ("communication", "yellow", ("communication", "share_ratio")),
    ("optimizer", "magenta", ("optimizer", "share_ratio")),
    ("outside timers", "bright_black", ("breakdown", "unattributed_ratio")),
)
_METRICS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("SM", "sm_active_ratio", percent),
    ("TENSOR", "tensor_active_ratio", percent),
    ("DRAM", "dram_active_ratio", percent),
    ("POWER", "power_w", power),
    ("NCCL", "busy_ratio", percent),
    ("WAITS", "wait_ratio", percent),
    ("GAIN", "gain_ratio", percent),
    ("MEMORY", "memory_used_ratio", percent),
    ("TEMP", "temperature_celsius", lambda value: UNKNOWN if value is None else f"{value:.0f} °C"),
    ("CLOCK", "sm_clock_hz", lambda value: UNKNOWN if value is None else f"{value / 1e6:.0f} MHz"),
)
"""The first are shown in any terminal, the last where it is wide."""
_WIDE = 110
"""Columns from which sparklines and stages are shown next to the figures."""
_LEAST_POINTS = 2
"""Of a trend."""
_MOST_POINTS = 120
"""Of a sparkline, also in wider terminals: the API averages steps into as many."""
_TREND_WORDS = 60
"""Characters beside a trend."""
_FAR = 0.05
"""Deviation of a rank from the typical one, as a ratio, from which its number is yellow."""
_VERY_FAR = 0.2
"""Deviation from which it is bold, too."""
_ALERTS = 3
"""The newest; the rest would leave no lines for ranks. Chosen."""
_SENTENCES_FROM = 18
"""Lines of the terminal: with fewer, trends and advice are left out. Chosen."""
_RANKS_FROM = 3
"""Lines: a heading, a rank, and how many more there are."""


def job_screen(
    job: Json,
    alerts: Sequence[Json],
    width: int,
    room: int | None,
    *,
    ranks: Json | None = None,
    series: Json | None = None,
) -> RenderableType:
    """One job in `room` lines; what does not fit is left out from the end, the ranks that are usual first.

    `ranks` is perfd.ranks/1 and `series` perfd.series/1; None where the aggregator has none of the job.
    """
    firing = [alert for alert in alerts if alert["state"] == "firing"]
    brief = room is not None and room < _SENTENCES_FROM
    parts = [
        _title(job),
        _verdict(job),
        *([] if brief else _sentences(job, width)),
        *_numbers(job, width),
        *_step(job, width),
        *_stages(job),
        *([] if brief else _trends(series, width)),
        *(_line(Text(f"ALERT {_alert(alert)}", style="bold red")) for alert in firing[:_ALERTS]),
    ]
    if room is None:
        return Group(*parts, *_ranks(ranks, width, None))
    return Group(*parts[: max(room, 1)], *_ranks(ranks, width, room - len(parts)))


def _title(job: Json) -> Text:
    state = ending(job) if job.get("ended") else "running"
    text = Text.assemble((job["name"], "bold"), "  ")
    if silent(job):
        text.append(f"silent for {duration(job['silent_s'])}: numbers are old", style="bold yellow")
    else:
        text.append(state, style="dim")
    last, planned = get(job, "steps", "last"), job.get("train_steps")
    step = UNKNOWN if last is None else f"{last}/{planned}" if planned else str(last)
    what = ", ".join(filter(None, [job.get("framework") or "unknown framework", layout(job)]))
    text.append(f"  {what}  step {step}", style="dim")
    return _line(text)


def _verdict(job: Json) -> Text:
    finding = job["bottleneck"]
    possible = finding.get("certainty") == "possible"
    text = Text(f"{'may be ' if possible else ''}limited by {finding['name']}", style="bold yellow")
    culprits = [f"{who['kind']} {who['id']}" for who in finding.get("culprits") or []]
    if culprits:
        text.append(f": {', '.join(culprits[:4])}{' ...' if len(culprits) > 4 else ''}")
    if finding.get("gain_ratio") is not None:
        costs = "may cost up to" if possible else "costs"
        text.append(f"  {costs} {percent(finding['gain_ratio'])} of the time", style="not bold")
    if finding.get("may_be_over"):
        text.append("  may be over", style="not bold")
    return _line(text)


def _sentences(job: Json, width: int) -> list[Text]:
    """The first piece of evidence and what to do: the page and `perfd diagnose` have all of it."""
    finding = job["bottleneck"]
    advice = finding.get("advice")
    sentences = [(line, "") for line in (finding.get("evidence") or [])[:1]]
    # A job that is over can no longer be captured or looked into.
    sentences += (
        [(f"{'for the next run' if job.get('ended') else 'do'}: {advice}", "green")] if advice else []
    )
    return [
        _line(Text(line, style=style))
        for text, style in sentences
        for line in textwrap.wrap(text, width, max_lines=2, placeholder=" ...")
    ]


def _numbers(job: Json, width: int) -> list[Text]:
    # What else a step may be is on the page and in `perfd diagnose`.
    step = "step" if get(job, "steps", "doubt") is None else "step?"
    cells = [
        ("MFU", percent(get(job, "efficiency", "mfu_ratio"))),
        (step, duration(get(job, "step_time_s", "median"))),
        ("tokens/s", count(get(job, "efficiency", "tokens_per_s"))),
        ("GPU", flops_per_s(get(job, "efficiency", "model_flops_per_s_per_gpu"))),
        ("comm", percent(get(job, "communication", "share_ratio"))),
        ("stall", percent(get(job, "pipeline", "stall_ratio"))),
        ("data", percent(get(job, "data", "share_ratio"))),
        ("memory", percent(get(job, "memory", "max_used_ratio"))),
    ]
    lines = []
    columns = 4 if width >= 70 else 2
    for start in range(0, len(cells), columns):
        text = Text()
        for name, value in cells[start : start + columns]:
            cell = Text.assemble((f"{name} ", "dim"), (value, "bold"))
            cell.pad_right(max(0, width // columns - cell.cell_len))
            text.append_text(cell)
        lines.append(_line(text))
    return lines


def _step(job: Json, width: int) -> list[Text]:
    """A step as one bar, and what its colors mean."""
    parts = [(name, color, get(job, *path)) for name, color, path in _PARTS]
    known = [(name, color, ratio) for name, color, ratio in parts if ratio]
    if not known:
        return []
    rest = 1.0 - sum(ratio for _, _, ratio in known)
    if rest > 0.02:
        stages = (get(job, "parallel", "pp") or 1) > 1
        known.append(("waiting for other stages" if stages else "unaccounted", "red", rest))
    whole = sum(ratio for _, _, ratio in known)
    bar, legend = Text(), [Text()]
    for name, color, ratio in known:
        bar.append("█" * round(width * ratio / whole), style=color)
        entry = Text.assemble(("█ ", color), f"{name} {percent(ratio)}  ")
        if legend[-1].cell_len + entry.cell_len > width + 2:
            legend.append(Text())
        legend[-1].append_text(entry)
    bar.truncate(width)
    return [_line(line) for line in (bar, *legend)]


def _stages(job: Json) -> list[Text]:
    stages, theory = get(job, "pipeline", "stages") or [], get(job, "pipeline", "bubble_theory_ratio")
    if not stages or not theory:
        return []
    shown = [f"{stage_name(stage)} {percent(stage.get('stall_ratio'))}" for stage in stages[:8]]
    return [_line(Text(f"stall by stage  {'  '.join(shown)}  (theory {percent(theory)})"))]


def _trends(series: Json | None, width: int) -> list[Text]:
    """Step time and MFU over the newest steps, on a terminal that has room for a line of them."""
    if series is None or width < _WIDE:
        return []
    lines = []
    for title, key, show in (("step", "step_time_s", duration), ("MFU", "mfu_ratio", percent)):
        known = [value for value in series[key] if value is not None]
        if len(known) < _LEAST_POINTS:
            continue
        drawn = sparkline(series[key], min(width - _TREND_WORDS, _MOST_POINTS))
        span = (
            f"{show(min(known))} to {show(max(known))} over steps {series['step'][0]} to {series['step'][-1]}"
        )
        lines.append(_line(Text.assemble((f"{title:<5}", "dim"), (drawn, "cyan"), (f"  {span}", "dim"))))
    return lines


def _ranks(ranks: Json | None, width: int, room: int | None) -> list[RenderableType]:
    """Ranks by metric, the most unusual first when they do not all fit."""
    rows = ranks["rows"] if ranks else []
    if not ranks or not rows or (room is not None and room < _RANKS_FROM):
        return []
    metrics = [(name, key, show) for name, key, show in _METRICS if key in ranks["metrics"]]
    metrics = metrics[: max(1, (width - 32) // 9)]
    space = ranks["count"] if room is None else room - 1
    if len(rows) > space or ranks["count"] > len(rows):
        rows = sorted(rows, key=_strangeness)[: max(1, space - 1)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("RANK", no_wrap=True, max_width=28, overflow="ellipsis")
    stages = ranks["stages"] > 1 and width >= _WIDE
    if stages:
        table.add_column("STAGE", justify="right", no_wrap=True)
    for name, _, _ in metrics:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row, key, show) for _, key, show in metrics]
        stage = [Text(UNKNOWN if row["stage"] is None else str(row["stage"]))] if stages else []
        table.add_row(_rank_name(row), *stage, *cells)
    left = ranks["count"] - len(rows)
    return [table, _line(Text(f"and {left} more", style="dim"))] if left else [table]


def _rank_name(row: Json) -> Text:
    where = None if row["node"] is None else f"{row['node']}/{row['gpu']}"
    text = Text(
        str(where) if row["rank"] is None else f"rank {row['rank']}",
        style="bold red" if row["culprit"] else "",
    )
    if where and row["rank"] is not None:
        text.append(f"  {where}", style="not bold dim")
    return text


def _cell(row: Json, key: str, show: Callable[[float | None], str]) -> Text:
    far = abs(row["deviation"].get(key) or 0.0)
    style = "" if far < _FAR else "yellow" if far < _VERY_FAR else "bold yellow"
    return Text(show(row["values"].get(key)), style=style)


def _strangeness(row: Json) -> tuple[bool, float]:
    """For order: culprits first, then what is farthest from the median."""
    return not row["culprit"], -max(map(abs, row["deviation"].values()), default=0.0)


def _alert(alert: Json) -> str:
    return f"{alert['name']}  {(alert.get('annotations') or {}).get('summary', '')}".strip()


def _line(text: Text) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text
