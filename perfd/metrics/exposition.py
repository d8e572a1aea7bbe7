"""Prometheus's text format, written by hand: small enough for the agent, pure, and free of a client library.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfd.collector import ColumnKind
from perfd.model import Scope

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNIT_WORDS = {
    "w": "watts",
    "j": "joules",
    "s": "seconds",
    "ns": "nanoseconds",
    "hz": "hertz",
}
_ENTITY_LABELS = {Scope.GPU: "gpu", Scope.NIC: "device", Scope.DISK: "device", Scope.SERVER: "server"}
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of a family; labels with an empty value are left out, as Prometheus reads them."""

    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """All samples of one metric name."""

    name: str
    help: str
    kind: ColumnKind
    samples: Sequence[Sample]


def render(families: Iterable[MetricFamily]) -> bytes:
    """A whole exposition; a family without samples is left out, and NaN samples are written as NaN."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(header(family.name, family.help, family.kind))
            lines.extend(
                f"{series(family.name, sample.labels)} {number(sample.value)}\n" for sample in family.samples
            )
    return "".join(lines).encode()


def header(name: str, help_text: str, kind: ColumnKind) -> str:
    """The HELP and TYPE lines of a family."""
    return f"# HELP {name} {help_text.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind.value}\n"


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as it stands before its value; constant as long as the labels are, so it can be cached."""
    inner = ",".join(f'{key}="{value.translate(_LABEL_ESCAPES)}"' for key, value in labels.items() if value)
    return f"{name}{{{inner}}}" if inner else name


def number(value: float) -> str:
    """A value as Prometheus parses it: the shortest text that reads back as the same number."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    if math.isnan(value):
        return "NaN"
    whole = int(value)
    # Integers read better without `.0`, and doubles hold them exactly below 2**53.
    return str(whole) if whole == value and abs(whole) < 1 << 53 else repr(float(value))


def exported_name(scope: Scope, column: str, kind: ColumnKind) -> str:
    """The exported name of a raw column: its units spelled out, `_total` at the end of a counter.

    `power_w` of a GPU becomes `perfd_gpu_power_watts`, and the counter `energy_j` becomes
    `perfd_gpu_energy_joules_total`. Values keep their unit: all of them are base units already.
    """
    words = column.split("_")
    last = words[-1]
    words[-1] = "second" if words[-2:] == ["per", "s"] else _UNIT_WORDS.get(last, last)
    total = "_total" if kind is ColumnKind.COUNTER and last != "total" else ""
    return f"perfd_{scope.value}_{'_'.join(words)}{total}"


def entity_labels(scope: Scope, entity: str, node: str) -> dict[str, str]:
    """The labels that say which GPU, device or rank a sample is about, and on which node."""
    labels = {"node": node}
    if scope is Scope.RANK:
        job, _, rank = entity.rpartition("/")
        labels |= {"job": job, "rank": rank}
    elif scope in _ENTITY_LABELS:
        labels[_ENTITY_LABELS[scope]] = entity
    return labels
