"""A report as one HTML file that needs no network: pictures are SVG within it, which its script zooms."""

from __future__ import annotations

import re
from html import escape

from perfd.analysis.findings import certainty_of
from perfd.formatting import escaped_controls, percent
from perfd.report.render import svg
from perfd.report.render.page_script import SCRIPT
from perfd.report.render.page_style import CSS
from perfd.report.render.roofline_svg import KINDS, PLOT_CSS, plot
from perfd.report.report_model import Bars, Figure, Report, ReportFinding, ReportTable, Roofline, StepLine

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
