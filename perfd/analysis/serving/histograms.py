"""Prometheus histograms: sums over series, increases between two looks, and quantiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Cumulative counts by upper bound, as they are exposed; the last bound is infinite."""

    bounds: Sequence[float]
    counts: Sequence[float]
    sum: float | None = None

    @property
    def count(self) -> float:
        """All observations."""
        return self.counts[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Quantiles and mean of a quantity, None where nothing was observed. The unit is that of the name."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    mean: float | None = None


def merged(histograms: Iterable[Histogram]) -> Histogram | None:
    """The sum of histograms, on the bounds that all of them have; None when there are none.

    Counts are cumulative, so the counts at common bounds are exact whatever lies between them.
    """
    parts = list(histograms)
    if len(parts) <= 1:
        return parts[0] if parts else None
    common = set(parts[0].bounds).intersection(*(part.bounds for part in parts[1:]))
    bounds = sorted(common)
    tables = [dict(zip(part.bounds, part.counts, strict=True)) for part in parts]
    sums = [part.sum for part in parts if part.sum is not None]
    return Histogram(
        bounds=tuple(bounds),
        counts=tuple(math.fsum(table[bound] for table in tables) for bound in bounds),
        sum=math.fsum(sums) if len(sums) == len(parts) else None,
    )


def increase(before: Histogram | None, now: Histogram | None) -> Histogram | None:
    """What was observed between two looks; None when a count went back, as after a restart."""
    if before is None or now is None or tuple(before.bounds) != tuple(now.bounds):
        return None
    counts = tuple(b - a for a, b in zip(before.counts, now.counts, strict=True))
    # Buckets are read one after the other while the server counts, so only their total must not fall.
    if counts[-1] < 0 or any(count < 0 for count in counts):
        return None
    total = None if before.sum is None or now.sum is None else now.sum - before.sum
    return Histogram(bounds=now.bounds, counts=counts, sum=total)


def quantile(ratio: float, histogram: Histogram) -> float | None:
    """As `histogram_quantile` of Prometheus: linear within a bucket whose lower bound is the one before.

    The first bucket starts at 0 unless its bound is not positive; what falls into the last, open bucket
    is said to be its lower bound. Source: prometheus/promql/quantile.go, `bucketQuantile`.
    """
    if len(histogram.bounds) < 2 or not math.isinf(histogram.bounds[-1]) or histogram.count <= 0:
        return None
    counts = _monotonic(histogram.counts)
    rank = ratio * counts[-1]
    index = next(index for index, count in enumerate(counts) if count >= rank)
    if index == len(counts) - 1:
        return histogram.bounds[-2]
    upper = histogram.bounds[index]
    if index == 0:
        if upper <= 0:
            return upper
        start, below = 0.0, 0.0
    else:
        start, below = histogram.bounds[index - 1], counts[index - 1]
    inside = counts[index] - below
    return upper if inside <= 0 else start + (upper - start) * (rank - below) / inside


def distribution(histogram: Histogram | None) -> Distribution:
    """Quantiles and mean of a histogram; all None when it is None or empty."""
    if histogram is None or histogram.count <= 0:
        return Distribution()
    return Distribution(
        p50=quantile(0.5, histogram),
        p90=quantile(0.9, histogram),
        p99=quantile(0.99, histogram),
        mean=None if histogram.sum is None or histogram.sum < 0 else histogram.sum / histogram.count,
    )


def _monotonic(counts: Sequence[float]) -> list[float]:
    highest, result = 0.0, []
    for count in counts:
        highest = max(highest, count)
        result.append(highest)
    return result
