"""Names of exported metrics, and the page of /metrics in the format that a client asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from perfd.collector import ColumnKind
from perfd.model import Scope, job_labels

_UNIT_WORDS = {
    "w": "watts",
    "j": "joules",
    "s": "seconds",
    "ns": "nanoseconds",
    "hz": "hertz",
}
_ENTITY_LABELS = {Scope.GPU: "gpu", Scope.NIC: "device", Scope.DISK: "device", Scope.SERVER: "server"}

_OPENMETRICS = "application/openmetrics-text"
_OTHER_VERSION = re.compile(r"version=(?!(?:0\.0\.1|0\.0\.4|1\.0\.0)\s*(?:;|$))")
_ESCAPING = re.compile(r";\s*escaping=[^;,]*")
"""perfd's names are valid in every scheme, and none of them needs escaping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    """The answer to one scrape."""

    body: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class MetricSource:
    """A function as a collector of prometheus_client."""

    collect: Callable[[], Iterable[Metric]]


def process_registry(*sources: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """A registry of this process, its interpreter, and whatever `sources` return at each scrape."""
    registry = CollectorRegistry()
    for source in sources:
        registry.register(MetricSource(source))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def metrics_page(
    registry: CollectorRegistry,
    headers: Mapping[str, str],
    rendered: Callable[[bool], bytes] = lambda _openmetrics: b"",
) -> MetricsPage:
    """Everything in `registry`, in the format of the client's `Accept`.

    Names of `headers` are in lower case. `rendered` returns further families that are text already, as
    OpenMetrics if its argument is true.
    """
    encode, content_type = choose_encoder(_supported(headers.get("accept", "")))
    body = rendered(content_type.startswith(_OPENMETRICS)) + encode(registry)
    return MetricsPage(body=body, content_type=content_type)


def _supported(accept: str) -> str:
    """The media types of an `Accept` header whose version perfd writes; prometheus_client repeats any."""
    return ",".join(
        _ESCAPING.sub("", media) for media in accept.split(",") if not _OTHER_VERSION.search(media)
    )


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
    """The labels for the GPU, device or rank of a sample, and its node, which is its `instance` too."""
    labels = {"node": node, "instance": node}
    if scope is Scope.RANK:
        job, _, rank = entity.rpartition("/")
        labels |= {**job_labels(job), "rank": rank}
    elif scope in _ENTITY_LABELS:
        labels[_ENTITY_LABELS[scope]] = entity
    return labels
