"""Aggregates the series of a metric family, counting each replica once, for the labels of all versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from perfd.analysis.serving import Histogram, ReplicaLoad, merged
from perfd_collectors.serving.exposition_reader import LabelItems, Labels, Page, PageState

_REPLICA_LABELS = ("engine", "dp_rank", "engine_type")
_SHARD_LABELS = ("pp_rank", "tp_rank", "moe_ep_rank", "attn_cp_rank", "moe_dp_rank")
"""Labels of ranks that share one replica and repeat its values."""
_MAX_RANK_DIGITS = 9
"""Longer rank labels are not parsed as numbers."""
_IGNORED_LABELS = frozenset({"pid", "worker_pid"})
"""Labels of the multi-process registry, with one series per process that ever ran."""
_PRIORITY = "priority"
"""SGLang 0.5.12 and later: for a gauge, the series without a priority is the sum of the others; for a
counter, it counts only requests without one."""
_MIN_VALUE, _MAX_VALUE = 1e-12, 1e30
"""Smaller and larger values are corrupt, as are infinity and NaN."""

Where = Callable[[Labels], bool]


def replica(labels: Labels) -> str:
    """The data-parallel rank or engine of a series; empty when there is only one."""
    return "/".join(labels[name] for name in _REPLICA_LABELS if labels.get(name))


def by_replica(page: Page, name: str, where: Where | None = None) -> Mapping[str, float]:
    """The value of a gauge or counter by replica, summed over the labels of its first shard."""
    shards: dict[str, dict[tuple[int, ...], dict[LabelItems, float]]] = {}
    gauge = page.types.get(name) == "gauge"
    for series in page.series.get(name, ()):
        if not _is_plausible(series.value) or not (where is None or where(series.labels)):
            continue
        if gauge and series.labels.get(_PRIORITY):
            continue
        values = shards.setdefault(replica(series.labels), {}).setdefault(_shard(series.labels), {})
        identity = _identity(series.labels.items())
        # Ended processes keep their series, so the maximum is used, not the sum.
        values[identity] = max(series.value, values.get(identity, -math.inf))
    return {key: math.fsum(parts[min(parts)].values()) for key, parts in shards.items()}


def total(page: Page, names: Iterable[str], where: Where | None = None) -> float | None:
    """The sum over replicas of the first of `names` on the page; None without any."""
    for name in names:
        values = by_replica(page, name, where)
        if values:
            return math.fsum(values.values())
    return None


def mean(page: Page, names: Iterable[str]) -> float | None:
    """The mean over replicas of the first of `names` on the page; None without any."""
    for name in names:
        values = by_replica(page, name)
        if values:
            return math.fsum(values.values()) / len(values)
    return None


def histogram(page: Page, names: Iterable[str]) -> Histogram | None:
    """The sum of all series of the first of `names` with data on the page; None without any."""
    for name in names:
        if page.is_histogram(name):
            found = merged(_histograms(page, name))
            if found is not None:
                return found
    return None


def histograms(page: Page, names: Mapping[str, Iterable[str]]) -> Mapping[str, Histogram]:
    """By key, those whose families the page has, as `histogram` finds them."""
    found = {key: histogram(page, of_key) for key, of_key in names.items()}
    return {key: one for key, one in found.items() if one is not None}


def label(page: Page, names: Iterable[str], key: str) -> Sequence[str]:
    """The distinct values of a label over some families, in order of appearance."""
    found = (series.labels.get(key, "") for name in names for series in page.series.get(name, ()))
    return tuple(dict.fromkeys(value for value in found if value))


def first_label(page: Page, key: str) -> str | None:
    """The first value of a label on the page; None without any."""
    found = (value for series in page.series.values() for one in series if (value := one.labels.get(key)))
    return next(found, None)


def loads(
    running: Mapping[str, float], queued: Mapping[str, float], used: Mapping[str, float]
) -> tuple[ReplicaLoad, ...]:
    """The load of each replica with a value in any of the three."""
    return tuple(
        ReplicaLoad(
            replica=name,
            running_requests=running.get(name),
            queued_requests=queued.get(name),
            kv_cache_used_ratio=used.get(name),
        )
        for name in sorted({*running, *queued, *used})
    )


def notes(page: Page) -> tuple[str, ...]:
    """Problems of a page, as sentences."""
    found = []
    if page.state is PageState.CUT:
        found.append("The page ends within a line; its last metric was skipped.")
    if page.duplicates:
        found.append(f"{page.duplicates} series are duplicated; the first of each was used.")
    if page.bad_lines:
        found.append(f"{page.bad_lines} lines of the page could not be parsed.")
    return tuple(found)


def _histograms(page: Page, name: str) -> list[Histogram]:
    """One per label set of each replica's first shard; skipped without a +Inf bucket."""
    buckets: dict[int, tuple[LabelItems, dict[float, float]]] = {}
    for _, value, others, bound in page.series.get(f"{name}_bucket", ()):
        # Buckets hold counts: values between 0 and 1 are corrupt.
        if bound is None or not (1 <= value < _MAX_VALUE or value == 0):
            continue
        # All buckets of a histogram share one `others` object, so its labels need not be compared.
        found = buckets.get(id(others))
        if found is None:
            found = buckets[id(others)] = (others, {})
        found[1].setdefault(bound, value)
    sums = {
        _identity(series.others): series.value
        for series in page.series.get(f"{name}_sum", ())
        if _is_plausible(series.value)
    }
    parts: dict[str, dict[tuple[int, ...], dict[LabelItems, Histogram]]] = {}
    for others, counts in buckets.values():
        if math.inf in counts and all(map(_is_plausible, counts.keys() - {math.inf})):
            labels, identity = dict(others), _identity(others)
            shard = parts.setdefault(replica(labels), {}).setdefault(_shard(labels), {})
            shard.setdefault(identity, _histogram(counts, sums.get(identity)))
    return [histogram for shards in parts.values() for histogram in shards[min(shards)].values()]


def _histogram(counts: Mapping[float, float], total: float | None) -> Histogram:
    bounds = tuple(sorted(counts))
    return Histogram(bounds=bounds, counts=tuple(map(counts.__getitem__, bounds)), sum=total)


def _identity(items: Iterable[tuple[str, str]]) -> LabelItems:
    return tuple(item for item in items if item[0] not in _IGNORED_LABELS)


def _shard(labels: Labels) -> tuple[int, ...]:
    return tuple(_number(labels.get(name, "")) for name in _SHARD_LABELS)


def _is_plausible(value: float) -> bool:
    return value == 0 or _MIN_VALUE <= abs(value) < _MAX_VALUE


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= _MAX_RANK_DIGITS else 0
