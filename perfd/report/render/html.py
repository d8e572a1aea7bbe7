"""A report as one HTML file that needs no network: pictures are SVG within it, which its script zooms.

Its style is for light and dark screens and for paper.
"""

from __future__ import annotations

import re
from html import escape

from perfd.analysis.findings import certainty_of
from perfd.formatting import escaped_controls, percent
from perfd.report.render import svg
from perfd.report.render.page_script import SCRIPT
from perfd.report.render.roofline_svg import KINDS, PLOT_CSS, plot
from perfd.report.report_model import Bars, Figure, Report, ReportFinding, ReportTable, Roofline, StepLine

CSS = """
:root { color-scheme: light dark; --page: #f7f6f2; --surface: #fff; --ink: #1c1c1a; --muted: #6a6963;
  --line: #e4e2da; --lane: #f0eee8; --compute: #2a78d6; --communication: #eb6834; --memory: #1a9c73;
  --launch: #a09e95; --sync: #6f6d66; --other: #cfcdc4; --unknown: #e3e1d9; --on: #fff; --on-light: #1c1c1a;
  --accent: #b4450f; --bar: #dfeaf8; }
@media (prefers-color-scheme: dark) { :root { --page: #161614; --surface: #1f1f1d; --ink: #f2f1ec;
  --muted: #a3a199; --line: #37362f; --lane: #2a2925; --compute: #4b90e2; --communication: #e2743f;
  --memory: #24a97f; --launch: #8c8a81; --sync: #66645d; --other: #4c4b45; --unknown: #35342f; --on: #fff;
  --on-light: #f2f1ec; --accent: #f0905c; --bar: #22344b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 0 0 6px; }
.subtitle { color: var(--muted); margin: 0 0 24px; }
section { background: var(--surface); border: 1px solid var(--line); border-radius: 8px; padding: 18px 20px;
  margin: 0 0 16px; }
.headline { font-size: 22px; font-weight: 650; margin: 0 0 8px; color: var(--accent); }
ul, ol { margin: 0; padding-left: 20px; }
li { margin: 3px 0; }
ol li { margin: 7px 0; }
code { font: 0.92em ui-monospace, "DejaVu Sans Mono", monospace; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(225px, 1fr)); gap: 12px; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; }
.tile .name { color: var(--muted); font-size: 13px; }
.tile .value { font-size: 20px; font-weight: 600; margin: 1px 0 3px; }
.source, figcaption { color: var(--muted); font-size: 12px; line-height: 1.4; font-weight: 400; }
p.source { margin: 8px 0 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 10px; font-size: 13px;
  color: var(--muted); }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
figure { margin: 0; }
figcaption { margin-top: 8px; }
figure > svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: var(--ink); }
svg .tick { fill: var(--muted); font-size: 11px; }
svg .on { fill: var(--on); }
svg .on.other-text, svg .on.unknown-text, svg .on.idle-text { fill: var(--on-light); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .lane { fill: var(--lane); }
svg .line { fill: none; stroke: var(--compute); stroke-width: 2; vector-effect: non-scaling-stroke; }
svg .chosen { fill: var(--compute); opacity: 0.2; }
svg[tabindex] { touch-action: pan-y; user-select: none; cursor: crosshair; }
svg[tabindex]:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.zoom { color: var(--muted); font-size: 12px; margin: 6px 0 0; }
.zoom button { font: inherit; color: var(--ink); background: var(--page); border: 1px solid var(--line);
  border-radius: 4px; padding: 2px 8px; cursor: pointer; }
.compute { fill: var(--compute); background: var(--compute); }
.communication { fill: var(--communication); background: var(--communication); }
.memory { fill: var(--memory); background: var(--memory); }
.launch { fill: var(--launch); background: var(--launch); }
.sync { fill: var(--sync); background: var(--sync); }
.other, .idle { fill: var(--other); background: var(--other); }
.unknown { fill: var(--unknown); background: var(--unknown); }
article { border-top: 1px solid var(--line); padding: 12px 0 4px; }
article:first-of-type { border-top: 0; padding-top: 0; }
.share { float: right; color: var(--accent); }
.who { font-weight: 400; color: var(--muted); font-size: 13px; margin-left: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; font-weight: 600; color: var(--muted); border-bottom: 1px solid var(--line);
  padding: 4px 10px 4px 6px; vertical-align: bottom; }
td { padding: 4px 10px 4px 6px; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { overflow-wrap: anywhere; min-width: 9ch; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
td.bar { background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)); }
.notes { color: var(--muted); font-size: 13px; }
@media print { .zoom { display: none; }
  .scroll { overflow: visible; } table { font-size: 11px; } th, td { padding: 3px 5px 3px 3px; }
  body { background: #fff; } section { break-inside: avoid; border-color: #ccc; } }
"""


_CODE = re.compile(r"`([^`\n]+)`")


def to_html(report: Report) -> str:
    """The whole page."""
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="subtitle">{escape(report.subtitle)}</p>',
        _summary(report),
        _metrics(report),
        *(_figure(figure) for figure in report.figures),
        _findings(report),
        _recommendations(report),
        *(_table(table) for table in report.tables),
        _notes(report),
    ]
    return escaped_controls(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{CSS}{PLOT_CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n"
        # Without a chart that zooms a report has no script.
        + (f'<script type="module">{SCRIPT}</script>\n' if any(map(svg.zooms, report.figures)) else "")
        + "</body>\n</html>\n"
    )


def _summary(report: Report) -> str:
    sentences = "".join(f"<li>{_words(sentence)}</li>" for sentence in report.summary)
    return (
        f'<section class="summary"><h2>Summary</h2><p class="headline">{escape(report.headline)}</p>'
        f"<ul>{sentences}</ul></section>"
    )


def _metrics(report: Report) -> str:
    if not report.metrics:
        return ""
    tiles = "".join(
        f'<div class="tile"><div class="name">{escape(metric.name)}</div>'
        f'<div class="value">{escape(metric.value)}</div>'
        f'<div class="source">{escape(metric.source)}</div></div>'
        for metric in report.metrics
    )
    return f'<section><h2>Metrics</h2><div class="tiles">{tiles}</div></section>'


def _figure(figure: Figure) -> str:
    picture, names = _picture(figure)
    legend = "".join(
        f'<span><i class="swatch {kind}"></i>{escape(name)}</span>' for kind, name in names.items()
    )
    return (
        f'<section><h2>{escape(figure.title)}</h2><div class="legend">{legend}</div>'
        f"<figure>{picture}<figcaption>Source: {escape(figure.source)}.</figcaption></figure></section>"
    )


def _picture(figure: Figure) -> tuple[str, dict[str, str]]:
    """The image, and the meaning of its colors."""
    if isinstance(figure, Roofline):
        drawn = {point.kind for point in figure.points}
        return plot(figure), {kind: name for kind, name in KINDS.items() if kind in drawn}
    if isinstance(figure, StepLine):
        return svg.step_line(figure), {}
    picture = svg.bars(figure) if isinstance(figure, Bars) else svg.timeline(figure)
    return picture, {kind: svg.NAMES[kind] for kind in svg.kinds(figure)}


def _findings(report: Report) -> str:
    if not report.findings:
        return ""
    return "<section><h2>Findings</h2>" + "".join(_finding(found) for found in report.findings) + "</section>"


def _finding(found: ReportFinding) -> str:
    share = f'<span class="share">{percent(found.gain_ratio)}</span>' if found.gain_ratio is not None else ""
    culprits = f' <span class="who">{escape(found.culprits)}</span>' if found.culprits else ""
    evidence = "".join(f"<li>{_words(sentence)}</li>" for sentence in found.evidence)
    evidence += "".join(
        f"<li>{_words(said)}<ul>{''.join(f'<li>{_words(sentence)}</li>' for sentence in why)}</ul></li>"
        for said, why in found.effects
    )
    # An unknown finding has none.
    sure = (
        f'<p class="source">Certainty: {certainty}</p>'
        if (certainty := certainty_of(found.confidence))
        else ""
    )
    return f"<article><h3>{escape(found.title)}{culprits}{share}</h3><ul>{evidence}</ul>{sure}</article>"


def _recommendations(report: Report) -> str:
    items = "".join(
        f"<li>{_words(found.advice)}"
        + (f' <span class="source">{escape(gain)}</span>' if (gain := report.gain_words(found)) else "")
        + "</li>"
        for found in report.recommendations()
    )
    return f"<section><h2>Recommendations</h2><ol>{items}</ol></section>" if items else ""


def _table(table: ReportTable) -> str:
    head = "".join(f"<th{_class(at, table)}>{escape(column)}</th>" for at, column in enumerate(table.columns))
    rows = []
    for number, row in enumerate(table.rows):
        share = table.shares[number] if number < len(table.shares) else None
        cells = "".join(
            f"<td{_bar(share) if at == 0 and share is not None else _class(at, table)}>{escape(cell)}</td>"
            for at, cell in enumerate(row)
        )
        rows.append(f"<tr>{cells}</tr>")
    # What scrolls on a narrow screen must be within reach of the keyboard.
    scroll = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
    return (
        f"<section><h2>{escape(table.title)}</h2>{scroll}<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="source">Source: {escape(table.source)}.</p></section>'
    )


def _words(sentence: str) -> str:
    """A sentence whose commands and names stand between backticks, which a page sets in another font."""
    return _CODE.sub(r"<code>\1</code>", escape(sentence))


def _class(column: int, table: ReportTable) -> str:
    return "" if column < table.text_columns else ' class="number"'


def _bar(share: float) -> str:
    return f' style="--share:{100 * share:.1f}%" class="bar"'


def _notes(report: Report) -> str:
    if not report.notes:
        return ""
    return (
        '<section><h2>Notes</h2><ul class="notes">'
        + "".join(f"<li>{_words(note)}</li>" for note in report.notes)
        + "</ul></section>"
    )
