"""Writes docs/metrics.md from the catalog and the columns of the installed collectors.

    python deploy/reference/make_metrics_reference.py [--check]

`--check` writes nothing and fails when the file is not what it would be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfd.collector_loading import collector_entry_points, load_collector
from perfd.metrics.catalog import (
    AGENT_METRICS,
    AGENT_PAGE_METRICS,
    AGGREGATOR_METRICS,
    GATEWAY_METRICS,
    JOB,
    JOB_METRICS,
    PROCESS_METRICS,
    MetricInfo,
    raw_metric,
)

PATH = Path(__file__).parents[2] / "docs" / "metrics.md"

_HEAD = """\
# Metrics

<!-- Made by `make docs` from perfd/metrics/catalog/ and the collectors; do not edit. -->

Every metric that perfd exports. Unknown values are absent, never 0. Units are base units, ratios go
from 0 to 1, and names follow Prometheus' conventions: the unit is the last word, and counters end in
`_total`. Empty labels are omitted.

Where labels begin with "job's", these are `perfd_job`, `cluster`, `namespace`, `user`, `account` and
`partition`. The first three identify a job: rules and dashboards join on them. `perfd_job` is the name
that perfd shows everywhere; of two jobs with one name, the second is `CLUSTER/NAMESPACE/NAME`, or
`NAME@OWNER`. The others are what scheduler and pod say, cut to 128 characters. Prometheus' own `job` and
`instance` are those of the scrape; with `honor_labels: true`, as in the shipped configuration, `instance`
of what a node reports is the node.

A GPU that several jobs share (MPS, time slicing) has one series, so that sums count it once: without
`perfd_job` and `rank`, and with the names of the jobs in `shared_by`. Each job's page and analysis use it.
"""
_SECTIONS = (
    (
        "Jobs",
        (
            "Derived, on the aggregator's page. Medians are over the newest steady steps: those after "
            "warm-up, without checkpoint, evaluation, profiler or outliers."
        ),
        JOB_METRICS,
    ),
    ("Agents, seen by the aggregator", "On the aggregator's page.", AGENT_METRICS),
    ("The aggregator", "On its own page.", AGGREGATOR_METRICS),
    ("An agent", "On the agent's own page.", AGENT_PAGE_METRICS),
    ("A gateway", "On the gateway's own page.", GATEWAY_METRICS),
    (
        "Processes",
        "About each process on its own page; from prometheus_client.",
        PROCESS_METRICS,
    ),
)


def document() -> str:
    """The whole of docs/metrics.md."""
    parts = [_HEAD]
    for title, text, metrics in _SECTIONS:
        parts.append(f"\n## {title}\n\n{text}\n\n{_table(metrics)}")
    for name in sorted(collector_entry_points()):
        columns = load_collector(name).columns
        if columns:
            parts.append(
                f"\n## Collector `{name}`\n\n"
                "On the pages of agent and aggregator.\n\n"
                f"{_table([raw_metric(column) for column in columns])}"
            )
    return "".join(parts)


def _table(metrics: Sequence[MetricInfo]) -> str:
    return "".join(f"{row}\n" for row in _rows(metrics))


def _rows(metrics: Sequence[MetricInfo]) -> Iterator[str]:
    yield "| metric | type | unit | labels | meaning | source | absent |"
    yield "|---|---|---|---|---|---|---|"
    for metric in metrics:
        labels = _labels(metric.labels)
        cells = (metric.help, metric.source, metric.absent)
        meaning, source, absent = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        yield (
            f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} "
            f"| {meaning} | {source} | {absent} |"
        )


def _labels(labels: Sequence[str]) -> str:
    of_job = tuple(labels[: len(JOB)]) == tuple(JOB)
    own = [f"`{label}`" for label in labels[len(JOB) if of_job else 0 :]]
    return ", ".join(["job's", *own] if of_job else own)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or compare it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when docs/metrics.md is out of date")
    args = parser.parse_args(arguments)
    text = document()
    if not args.check:
        PATH.write_text(text, encoding="utf-8")
        return 0
    if not PATH.is_file() or PATH.read_text(encoding="utf-8") != text:
        sys.stderr.write("docs/metrics.md is out of date: run `make docs`.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
