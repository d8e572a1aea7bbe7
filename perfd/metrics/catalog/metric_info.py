"""The description of an exported metric, and its derivation from a collector's column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import Metric

from perfd.collector import Column, ColumnKind
from perfd.metrics.exposition import exported_name
from perfd.model import JOB_LABELS, OWNER_LABELS, Scope

_NEVER = "Never."
JOB: Sequence[str] = (*JOB_LABELS, *OWNER_LABELS)
"""The labels of every series about a job."""
NODE: Sequence[str] = ("node", "instance")
"""Those of every series about a part of a node."""
_RAW_LABELS: Mapping[Scope, Sequence[str]] = {
    Scope.GPU: (*JOB, "rank", *NODE, "gpu", "pod", "container", "shared_by"),
    Scope.NODE: NODE,
    Scope.NIC: (*NODE, "device"),
    Scope.DISK: (*NODE, "device"),
    Scope.RANK: (*JOB, "rank", *NODE),
    Scope.SERVER: (*NODE, "server"),
}
_UNIT_ENDINGS = (
    ("bytes_per_second", "bytes per second"),
    ("seconds", "seconds"),
    ("bytes", "bytes"),
    ("ratio", "ratio, 0 to 1"),
    ("watts", "watts"),
    ("joules", "joules"),
    ("hertz", "hertz"),
    ("celsius", "degrees Celsius"),
    ("per_second", "per second"),
)
Value: TypeAlias = tuple[str, Mapping[str, str], float | None]
"""A metric's name, its labels and its value; None is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """One exported metric."""

    name: str
    kind: ColumnKind
    unit: str
    """A base unit, or `1` for numbers without a unit."""
    labels: Sequence[str]
    """Its possible labels; those without a value are omitted."""
    help: str
    source: str
    absent: str


def raw_metric(column: Column) -> MetricInfo:
    """The exported metric of a collector's column, the same on agent and aggregator."""
    name = exported_name(column.scope, column.name, column.kind)
    return MetricInfo(
        name=name,
        kind=column.kind,
        unit=_unit(name),
        labels=_RAW_LABELS[column.scope],
        help=column.help,
        source=column.source,
        absent=column.absent,
    )


def _unit(name: str) -> str:
    base = name.removesuffix("_total")
    return next((unit for ending, unit in _UNIT_ENDINGS if base.endswith("_" + ending)), "1")


def metric(
    name: str, help_text: str, *, labels: Sequence[str] = (), source: str, absent: str = _NEVER
) -> MetricInfo:
    """A row of the catalog; unit and kind follow from the name."""
    kind = ColumnKind.COUNTER if name.endswith("_total") else ColumnKind.GAUGE
    return MetricInfo(
        name=name, kind=kind, unit=_unit(name), labels=labels, help=help_text, source=source, absent=absent
    )


def of_job(
    name: str, help_text: str, *, labels: Sequence[str] = (), source: str, absent: str = _NEVER
) -> MetricInfo:
    """A row about a job, with those labels besides the job's own."""
    return metric(name, help_text, labels=(*JOB, *labels), source=source, absent=absent)


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
