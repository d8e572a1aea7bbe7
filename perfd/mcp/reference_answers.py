"""What a metric means, and how two jobs differ, as answers; pure."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from perfd.errors import PerfdError
from perfd.mcp.quantities import NAME_CHARS, Json, plain, quantity, untrusted
from perfd.metrics.catalog import MetricInfo
from perfd.report.comparison import MeasuredRun, compare, jobs_of, measures_of_summary

_ALIKE = 8
"""Names that are suggested for an unknown one."""
_SAMPLE_ENDINGS = ("_bucket", "_count", "_sum")
_NO_SOURCE = "perfd.summary/2: medians over steady steps"


def metric(name: str, catalog: Mapping[str, MetricInfo]) -> dict[str, Any]:
    """The catalog's entry of a metric; raises `PerfdError` with names that are alike, if there is none."""
    base = next((name.removesuffix(end) for end in _SAMPLE_ENDINGS if name.endswith(end)), name)
    found = catalog.get(name) or catalog.get(base)
    if found is None:
        contained = [known for known in catalog if name in known]
        alike = (contained or get_close_matches(name, catalog, n=_ALIKE, cutoff=0.5))[:_ALIKE]
        hint = f"there are {', '.join(alike)}" if alike else "metrics of perfd begin with perfd_"
        raise PerfdError(f"The catalog has no metric {plain(name, NAME_CHARS)}; {hint}.")
    return {
        "name": found.name,
        "kind": found.kind.value,
        "unit": found.unit,
        "meaning": found.help,
        "labels": list(found.labels),
        "source": found.source,
        "absent": found.absent,
    }


def measured(document: Json, job: str) -> MeasuredRun:
    """The comparable numbers of a job's perfd.summary/2; raises `PerfdError`."""
    return measures_of_summary(jobs_of(document, job)[0], job)


def comparison(a: MeasuredRun, b: MeasuredRun, max_regression_ratio: float) -> dict[str, Any]:
    """What changed from one job to another; raises `PerfdError` when they have nothing in common."""
    found = compare(a, b, max_regression_ratio)
    sources_a = {measure.name: measure.source for measure in a.measures}
    sources_b = {measure.name: measure.source for measure in b.measures}
    changes = [
        {
            "name": change.name,
            "a": quantity(change.a, change.unit, sources_a[change.name] or _NO_SOURCE),
            "b": quantity(change.b, change.unit, sources_b[change.name] or _NO_SOURCE),
            "change": quantity(change.change_ratio, "ratio", "computed: (b - a) / a"),
            "better": change.better.value if change.better else None,
            "gate": change.gate,
            "verdict": change.verdict.value,
        }
        for change in found.changes
        if change.a is not None or change.b is not None
    ]
    return {
        "a": untrusted(found.a, NAME_CHARS),
        "b": untrusted(found.b, NAME_CHARS),
        "regressed": found.regressed,
        "max_regression": quantity(max_regression_ratio, "ratio", "argument max_regression_ratio"),
        "changes": changes,
    }
