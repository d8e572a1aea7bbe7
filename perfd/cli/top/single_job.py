"""The screen of one job in `perfd top`: what limits it, then the numbers. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perfd.cli.tables.status_tables import Json, ending, get, layout, silent
from perfd.formatting import UNKNOWN, count, duration, flops_per_s, percent, power

_PARTS = (
    ("forward", "blue", ("breakdown", "forward_ratio")),
    ("backward", "cyan", ("breakdown", "backward_ratio")),
    ("communication", "yellow", ("communication", "share_ratio")),
    ("optimizer", "magenta", ("optimizer", "share_ratio")),
    ("outside timers", "bright_black", ("breakdown", "unattributed_ratio")),
)
_METRICS = (
    ("SM", "sm_active_ratio"),
    ("TENSOR", "tensor_active_ratio"),
    ("DRAM", "dram_active_ratio"),
    ("POWER", "power_w"),
    ("NCCL", "busy_ratio"),
    ("WAITS", "wait_ratio"),
    ("GAIN", "gain_ratio"),
)
_FAR = 0.05
_VERY_FAR = 0.2
_ALERTS = 3
_SENTENCES_FROM = 18
_RANKS_FROM = 3
"""Lines: a heading, a rank, and how many more there are."""


def job_screen(job: Json, alerts: Sequence[Json], width: int, room: int | None) -> RenderableType:
    """One job in `room` lines; what does not fit is left out from the end, the ranks that are usual first."""
    firing = [alert for alert in alerts if alert["state"] == "firing"]
    brief = room is not None and room < _SENTENCES_FROM
    parts = [
        _title(job),
        _verdict(job),
        *([] if brief else _sentences(job, width)),
        *_numbers(job, width),
        *_step(job, width),
        *_stages(job),
        *(_line(Text(f"ALERT {_alert(alert)}", style="bold red")) for alert in firing[:_ALERTS]),
    ]
    if room is None:
        return Group(*parts, *_ranks(job, width, None))
    return Group(*parts[: max(room, 1)], *_ranks(job, width, room - len(parts)))


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
    text = Text(f"limited by {finding['name']}", style="bold yellow")
    culprits = [f"{who['kind']} {who['id']}" for who in finding.get("culprits") or []]
    if culprits:
        text.append(f": {', '.join(culprits[:4])}{' ...' if len(culprits) > 4 else ''}")
    if finding.get("gain_ratio") is not None:
        text.append(f"  costs {percent(finding['gain_ratio'])} of each step", style="not bold")
    return _line(text)


def _sentences(job: Json, width: int) -> list[Text]:
    """The first piece of evidence and what to do: the page and `perfd diagnose` have all of it."""
    finding = job["bottleneck"]
    advice = finding.get("advice")
    said = [(line, "") for line in (finding.get("evidence") or [])[:1]]
    said += [(f"do: {advice}", "green")] if advice else []
    return [
        _line(Text(line, style=style))
        for text, style in said
        for line in textwrap.wrap(text, width, max_lines=2, placeholder=" ...")
    ]


def _numbers(job: Json, width: int) -> list[Text]:
    cells = [
        ("MFU", percent(get(job, "efficiency", "mfu_ratio"))),
        ("step", duration(get(job, "step_time_s", "median"))),
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
    shown = [f"{_stage(stage)} {percent(stage.get('stall_ratio'))}" for stage in stages[:8]]
    return [_line(Text(f"stall by stage  {'  '.join(shown)}  (theory {percent(theory)})"))]


def _stage(stage: Json) -> str:
    number = stage.get("stage")
    return str(stage.get("bound") or "?").replace("_", " ") if number is None else f"{number}:"


def _ranks(job: Json, width: int, room: int | None) -> list[RenderableType]:
    """Ranks by metric, the most unusual first when they do not all fit."""
    rows = _rank_rows(job)
    if not rows or (room is not None and room < _RANKS_FROM):
        return []
    metrics = [(name, key) for name, key in _METRICS if any(row.get(key) is not None for row in rows)]
    middle = {key: median(row[key] for row in rows if row.get(key) is not None) for _, key in metrics}
    metrics = metrics[: max(1, (width - 32) // 9)]
    space = len(rows) if room is None else room - 1
    if len(rows) > space:
        rows = sorted(rows, key=lambda row: (not row["culprit"], -_strangeness(row, middle)))
        rows = rows[: max(1, space - 1)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("RANK", no_wrap=True, max_width=28, overflow="ellipsis")
    for name, _ in metrics:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row.get(key), _far(row.get(key), middle[key], key), key) for _, key in metrics]
        table.add_row(_rank_name(row), *cells)
    left = len(_rank_rows(job)) - len(rows)
    return [table, _line(Text(f"and {left} more", style="dim"))] if left else [table]


def _rank_rows(job: Json) -> list[dict[str, Any]]:
    blamed = {f"{who['kind']} {who['id']}" for who in get(job, "bottleneck", "culprits") or []}
    rows: dict[str, dict[str, Any]] = {}
    for gpu in job.get("gpus") or []:
        where = f"{gpu['node']}/{gpu['gpu']}"
        name = where if gpu.get("rank") is None else f"rank {gpu['rank']}"
        who = {name, f"gpu {where}", f"node {gpu['node']}"}
        rows[name] = {**gpu, "name": name, "where": where, "culprit": bool(who & blamed)}
    for one in get(job, "nccl", "ranks") or []:
        name = f"rank {one['rank']}"
        rows[name] = {"name": name, "where": "", "culprit": name in blamed, **rows.get(name, {}), **one}
    return list(rows.values())


def _rank_name(row: Mapping[str, Any]) -> Text:
    text = Text(row["name"], style="bold red" if row["culprit"] else "")
    if row["where"] and row["where"] != row["name"]:
        text.append(f"  {row['where']}", style="not bold dim")
    return text


def _cell(value: float | None, far: float, key: str) -> Text:
    shown = power(value) if key == "power_w" else percent(value)
    style = "" if abs(far) < _FAR else "yellow" if abs(far) < _VERY_FAR else "bold yellow"
    return Text(shown, style=style)


def _strangeness(row: Mapping[str, Any], middle: Mapping[str, float]) -> float:
    return max((abs(_far(row.get(key), value, key)) for key, value in middle.items()), default=0.0)


def _far(value: float | None, middle: float, key: str) -> float:
    """Relative distance; shares near zero are not far apart because one is twice the other."""
    if value is None:
        return 0.0
    return (value - middle) / max(abs(middle), 0.1 if key.endswith("_ratio") else 1e-9)


def _alert(alert: Json) -> str:
    return f"{alert['name']}  {(alert.get('annotations') or {}).get('summary', '')}".strip()


def _line(text: Text) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text
