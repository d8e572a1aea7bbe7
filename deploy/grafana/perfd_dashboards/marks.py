"""Alerts and captures, marked in every graph of a job, with links to what perfd says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfd_dashboards.panels import ONE_JOB, SOURCE, firing

_STATES = 'state!~"requested|armed|running"'


def marks() -> Sequence[Mapping[str, Any]]:
    """Entries of a dashboard's `annotations.list`; Grafana's SDK does not know those of Prometheus."""
    return (
        _annotation(
            "Alerts",
            _linked(firing(ONE_JOB), "/reports/jobs/"),
            title="{{alertname}}",
            tags="alertname",
            color="red",
        ),
        _annotation(
            "Captures",
            _linked(_grown(f"perfd_capture_ranks{{{ONE_JOB}, {_STATES}}}"), "/jobs/"),
            title="Capture {{state}}",
            tags="state",
            color="blue",
        ),
    )


def _linked(expr: str, path: str) -> str:
    # Variables are not replaced in an annotation's text, but in its query: the link travels as a label.
    return f'label_replace({expr}, "link", "${{perfd}}{path}${{job:percentencode}}", "", "")'


def _grown(series: str) -> str:
    """Where a count is above what it was a minute before, or began."""
    return f"({series} > {series} offset 1m or {series} unless {series} offset 1m)"


def _annotation(name: str, expr: str, *, title: str, tags: str, color: str) -> Mapping[str, Any]:
    return {
        "name": name,
        "datasource": SOURCE.to_json(),
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "step": "60s",
        "titleFormat": title,
        "textFormat": '<a href="{{link}}" target="_blank">Open in perfd</a>',
        "tagKeys": tags,
    }
