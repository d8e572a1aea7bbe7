"""A trace's analysis for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from perfd.analysis.findings import Finding
from perfd.cli.terminal_table import TerminalTable
from perfd.formatting import UNKNOWN, duration, flops_per_s, percent
from perfd.report.display_names import kernel_name
from perfd.report.sources.trace_notes import largest_part, notes_of
from perfd.trace.diagnosis import Diagnosis, PeerComparison, RankAnalysis, TraceAnalysis

_KERNELS = 10
"""Rows of the table; `perfd trace table kernels` has all."""
_COLLECTIVES = 12
"""Rows of the table, the costliest first; the JSON has all."""
_RANKS = 32
"""Rows of the table, the first ranks; the JSON has all."""
_PATH_ROWS = 8
"""Ranks, and classes of work, with the largest parts of the critical path."""
_CULPRITS = 4
"""Ranks that a heading names; the sentence below has more."""


def render(analysis: TraceAnalysis, diagnosis: Diagnosis) -> RenderableType:
    """What limits the capture, then the numbers behind it."""
    parts: list[RenderableType] = [
        _headline(analysis, diagnosis),
        *_comparison(diagnosis.comparison),
        _ranks(analysis),
    ]
    if analysis.collectives.by_rank and any(analysis.collectives.by_rank.values()):
        parts.append(_collectives(analysis))
    first = next(iter(analysis.complete), analysis.ranks[0])
    parts += [*_path(analysis), _kernels(first), *_findings(diagnosis), *_notes(analysis)]
    return Group(*parts)


def _headline(analysis: TraceAnalysis, diagnosis: Diagnosis) -> Text:
    found, bottleneck = diagnosis.first, diagnosis.bottleneck
    text = Text()
    if answer := diagnosis.answer:
        text.append(f"{answer}\n", style="bold yellow")
    if found is None:
        text.append("What limits this capture is not known: no rank has all its GPU records.", style="bold")
    else:
        text.append(f"{found.headline}.", style="bold yellow")
        text.append(f"  {found.evidence[0]}" if found.evidence else "")
    if bottleneck is not None and bottleneck is not found:
        text.append(f"\n{largest_part(bottleneck)}")
    costly = [finding for finding in diagnosis.findings if finding.gain_ratio is not None]
    if costly:
        most_first = sorted(costly, key=lambda one: -(one.gain_ratio or 0))
        costs = ", ".join(_cost(finding) for finding in most_first)
        text.append(f"\nWhat costs the most of the window: {costs}")
    if analysis.model_use:
        use = analysis.model_use
        unverified = ", unverified peak" if use.peak_unverified else ""
        text.append(
            f"\nMFU {percent(use.mfu_ratio)} of {flops_per_s(use.peak_flops_per_s)}"
            f" ({use.precision}{unverified}, {duration(use.step_time_s)} per step, {use.gpus} GPUs)"
        )
    return text


def _comparison(found: PeerComparison | None) -> list[TerminalTable]:
    if found is None or not found.differences:
        return []
    table = _table(
        f"Rank {found.rank} compared with its peers, in a window of {duration(found.span_s)}",
        ("what", "name", f"rank {found.rank}", "peers", "longer", "count", "peers"),
        left=2,
        keys=2,
    )
    for one in found.differences:
        longer = f"{'-' if one.cost_s < 0 else ''}{duration(abs(one.cost_s))}"
        counts = ("", "") if one.own_count is None else (str(one.own_count), f"{one.peers_count:.0f}")
        name = Text(kernel_name(one.name, 40))
        table.add_row(one.what, name, duration(one.own_s), duration(one.peers_s), longer, *counts)
    return [table]


def _cost(finding: Finding) -> str:
    ranks = ", ".join(map(str, finding.culprits[:_CULPRITS]))
    where = f" ({ranks})" if ranks else ""
    return f"{finding.kind.short_name}{where} {percent(finding.gain_ratio)}"


def _table(name: str, columns: Sequence[str], left: int = 1, keys: int = 1) -> TerminalTable:
    table = TerminalTable(name, keys=keys)
    table.add_columns(columns, left)
    return table


def _ranks(analysis: TraceAnalysis) -> TerminalTable:
    table = _table(
        "Where the time went, of each rank's window",
        ("rank", "window", "compute", "comm", "exposed", "copies", "idle", "launch", "sync", "other", "lost"),
    )
    for rank in analysis.ranks[:_RANKS]:
        whole, span = rank.whole, rank.whole.span_s or 1.0
        idle, lost = whole.idle, rank.timeline.losses
        table.add_row(
            str(rank.rank),
            duration(whole.span_s),
            percent(whole.compute_s / span),
            percent(whole.communication_s / span),
            percent(whole.exposed_communication_s / span),
            percent(whole.exposed_memory_s / span),
            UNKNOWN if whole.idle_s is None else percent(whole.idle_s / span),
            percent(idle.unlaunched_s / span) if idle else UNKNOWN,
            percent(idle.synchronizing_s / span) if idle else UNKNOWN,
            percent(idle.other_s / span) if idle else UNKNOWN,
            percent(lost.ratio) if lost and lost.lost else "",
        )
    return table


def _collectives(analysis: TraceAnalysis) -> TerminalTable:
    table = _table(
        "Communication, transfer and waiting (longest over ranks)",
        ("group", "operation", "rank", "count", "total", "exposed", "transfer", "waiting"),
        left=2,
        keys=3,
    )
    rows = [(row.total_s, rank, row) for rank, found in analysis.collectives.by_rank.items() for row in found]
    for _, rank, row in sorted(rows, key=lambda item: -item[0])[:_COLLECTIVES]:
        table.add_row(
            (row.group or UNKNOWN).removesuffix("_GROUP"),
            row.operation + (" (no data)" if row.barrier and row.operation != "barrier" else ""),
            str(rank),
            str(row.count),
            duration(row.total_s),
            duration(row.exposed_s),
            duration(row.transfer_s),
            duration(row.wait_s),
        )
    return table


def _path(analysis: TraceAnalysis) -> list[TerminalTable]:
    path = analysis.path
    if path is None or not path.length_s:
        return []
    table = _table(
        f"Critical path ({duration(path.length_s)})",
        ("rank", "on the path", "share", "class", "on the path", "share"),
        keys=0,
    )
    ranks, classes = list(path.by_rank().items())[:_PATH_ROWS], list(path.by_class().items())[:_PATH_ROWS]
    for rank, part in zip_longest(ranks, classes):
        cells = [
            (str(name).replace("_", " "), duration(seconds), percent(seconds / path.length_s))
            for name, seconds in (one or ("", None) for one in (rank, part))
            if seconds is not None
        ]
        blank = [("", "", "")]
        table.add_row(*(cells[0] if rank else blank[0]), *(cells[-1] if part else blank[0]))
    return [table]


def _kernels(rank: RankAnalysis) -> TerminalTable:
    columns = ("kernel", "class", "tensor cores", "count", "total", "share")
    table = _table(f"Kernels of rank {rank.rank}", columns, left=2, keys=1)
    span = rank.whole.span_s or 1.0
    for row in rank.kernels[:_KERNELS]:
        table.add_row(
            Text(kernel_name(row.name, 46)),
            row.kernel_class,
            "yes" if row.tensor_cores else "",
            str(row.count),
            duration(row.total_s),
            percent(row.total_s / span),
        )
    return table


def _findings(diagnosis: Diagnosis) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for found in diagnosis.findings:
        name = found.kind.short_name.capitalize()
        head = Text(f"\n{name}" if parts else name, style="bold")
        if found.gain_ratio is not None:
            head.append(f"  {percent(found.gain_ratio)} of the window", style="not bold yellow")
        parts += [head, *(_indented(Text(sentence)) for sentence in found.evidence)]
        for effect in found.effects:
            parts += [_indented(Text(f"Explains {effect.summary}."))]
            parts += [_indented(Text(sentence), 4) for sentence in effect.evidence]
        if found.advice:
            parts.append(_indented(Text(f"What to do: {found.advice}", style="green")))
    return parts


def _indented(text: Text, columns: int = 2) -> Padding:
    return Padding(text, (0, 0, 0, columns), expand=False)


def _notes(analysis: TraceAnalysis) -> list[Text]:
    notes = notes_of(analysis)
    return [Text(f"\n{chr(10).join(notes)}", style="dim")] if notes else []
