"""Values as families of prometheus_client, described by the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from prometheus_client import Metric

from perfd.collector import ColumnKind
from perfd.metrics.catalog.metric_info import MetricInfo

Value: TypeAlias = tuple[str, Mapping[str, str], float | None]
"""A metric's name, its labels and its value; None is absent."""


def families(values: Iterable[Value], describe: Callable[[str], MetricInfo]) -> list[Metric]:
    """One family per name, in the order of first values; empty labels are omitted."""
    found: dict[str, Metric] = {}
    for name, labels, value in values:
        if value is None:
            continue
        if name not in found:
            found[name] = empty_family(describe(name))
        present = {label: text for label, text in labels.items() if text}
        found[name].add_sample(name, present, float(value))
    return list(found.values())


def empty_family(info: MetricInfo) -> Metric:
    """A family of prometheus_client without samples; there a counter's name lacks `_total`."""
    name = info.name.removesuffix("_total") if info.kind is ColumnKind.COUNTER else info.name
    return Metric(name, info.help, info.kind.value)
