"""Statistics that bear outliers and absent values; NaN is absent and never counts as a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Floats, Ints

MAD_TO_SIGMA = 1.4826
"""Scales the median absolute deviation to the standard deviation of a normal distribution."""
MEDIAN_ERROR = 1.2533
"""The standard error of a median by that of a mean, for a normal distribution."""
_SHORT, _MANY = 16, 4096
"""Up to so long rows are sorted column by column, from so many on."""


def median(values: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """The median over one axis of what is known; NaN where nothing is."""
    length = values.shape[axis]
    if not length:
        return np.full(np.delete(values.shape, axis), np.nan)
    if values.ndim == 1:
        return _median_of_column(values)
    if length <= _SHORT and values.size >= _MANY * length:
        columns = np.array(np.moveaxis(values, axis, 0), dtype=np.result_type(values, np.float16), order="C")
        if not np.isnan(np.minimum.reduce(columns, axis=None)):
            return _median_of_few(columns)
    # Sorting whole rows in memory's order is several times faster than numpy's own
    # median, and puts NaN last, so that the known values are a prefix of known length.
    others = [one for one in range(values.ndim) if one != axis % values.ndim]
    rows = np.array(values.transpose(*others, axis), order="C")
    rows.sort(axis=-1)
    if not np.isnan(rows[..., -1]).any():
        return _middle(rows[..., (length - 1) // 2], rows[..., length // 2])
    every, known = rows.reshape(-1, length), (~np.isnan(rows)).sum(axis=-1)
    # By places in all rows: `np.take_along_axis` takes several times as long for some hundred numbers.
    row, count = np.arange(len(every)), known.ravel()
    low, high = every[row, np.maximum(count - 1, 0) // 2], every[row, np.minimum(count // 2, length - 1)]
    return np.asarray(np.where(count > 0, _middle(low, high), np.nan)).reshape(known.shape)


def _median_of_column(values: NDArray[Any]) -> NDArray[Any]:
    """The same of one column. Most have some hundred values: numpy takes three times as long for them."""
    ordered = np.sort(values)
    known = len(ordered)
    if math.isnan(ordered[-1]):
        known -= int(np.isnan(ordered).sum())
        if not known:
            return np.asarray(ordered[-1])
    return _middle(ordered[(known - 1) // 2], ordered[known // 2])


def plain_median(values: NDArray[Any]) -> float:
    """The median of one column as numpy has it, bit by bit, in a third of its time; NaN if any is unknown."""
    if not len(values):
        return math.nan
    ordered = np.sort(values)
    if math.isnan(ordered[-1]):
        return math.nan
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def plain_quantile(values: NDArray[Any], share: float) -> float:
    """A quantile of one column as numpy has it, bit by bit, in a tenth of its time; all values are known."""
    ordered = np.sort(values).tolist()
    first, beyond = divmod(share * (len(ordered) - 1), 1)
    low, high = ordered[int(first)], ordered[min(int(first) + 1, len(ordered) - 1)]
    return float(low + (high - low) * beyond if beyond < 0.5 else high - (high - low) * (1 - beyond))


def median_error(values: Floats) -> Floats:
    """The standard error of the median over the last axis, from the median absolute deviation."""
    known = np.maximum(np.isfinite(values).sum(axis=-1), 1)
    spread = median(np.abs(values - median(values)[..., None]))
    return np.asarray(MEDIAN_ERROR * MAD_TO_SIGMA * spread / np.sqrt(known))


def _median_of_few(columns: NDArray[Any]) -> NDArray[Any]:
    """The same of many short rows of which all is known: `columns` are sorted in place, all rows at once."""
    rows, spare = list(columns), np.empty_like(columns[0])
    for first, second, least, most in _to_middle(len(rows)):
        lower, higher = rows[first], rows[second]
        if least and most:
            np.minimum(lower, higher, out=spare)
            rows[first], spare = spare, lower
        elif least:
            np.minimum(lower, higher, out=lower)
        if most:
            np.maximum(lower, higher, out=higher)
    return _middle(rows[(len(rows) - 1) // 2], rows[len(rows) // 2])


def _middle(low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(low + (high - low) / 2)


@lru_cache(maxsize=_SHORT)
def _to_middle(length: int) -> Sequence[tuple[int, int, bool, bool]]:
    """Of a sorting network what the median follows from: pairs, and which of both values it needs."""
    needed = {(length - 1) // 2, length // 2}
    found = []
    for first, second in reversed(list(_sorting_network(length))):
        if first in needed or second in needed:
            found.append((first, second, first in needed, second in needed))
            needed |= {first, second}
    return found[::-1]


def _sorting_network(length: int) -> Iterator[tuple[int, int]]:
    """Pairs to put in order, one after the other (Batcher 1968; Knuth, TAOCP 3, 5.2.2, algorithm M)."""
    top = 1 << max(0, (length - 1).bit_length() - 1)
    stride = top
    while stride:
        distance, remainder, step = stride, 0, top
        while True:
            yield from (
                (place, place + distance) for place in range(length - distance) if place & stride == remainder
            )
            if step == stride:
                break
            distance, remainder, step = step - stride, stride, step // 2
        stride //= 2


def mean(values: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """The mean over one axis of what is known; NaN where nothing is."""
    absent = np.isnan(values)
    known = values.shape[axis] - absent.sum(axis=axis)
    total = np.where(absent, 0.0, values).sum(axis=axis)
    return np.asarray(np.where(known > 0, total / np.maximum(known, 1), np.nan))


def over_last(reduction: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
    """`reduction.reduce` over the last axis, which may be short: there numpy spends its time between rows."""
    last_first = values.transpose(values.ndim - 1, *range(values.ndim - 1))
    return np.asarray(reduction.reduce(np.ascontiguousarray(last_first)))


def highest(values: Floats, count: int) -> Ints:
    """Places of the largest values, the largest first and the earlier one of equals; none is absent."""
    if count < len(values):
        least = np.partition(values, len(values) - count)[len(values) - count]
        places = np.flatnonzero(values >= least)
    else:
        places = np.arange(len(values))
    return places[np.argsort(-values[places], kind="stable")[:count]]


def median_of(values: Floats) -> float | None:
    """The median of one column, or None when nothing in it is known."""
    return known(float(median(values))) if len(values) else None


def percentile_of(values: Floats, percent: float) -> float | None:
    """A percentile of one column (linear between neighbors), or None when nothing is known."""
    finite = values[np.isfinite(values)]
    return float(np.percentile(finite, percent)) if len(finite) else None


def sigma_of(values: Floats) -> float | None:
    """The spread of one column as a robust standard deviation, or None when nothing is known."""
    return known(MAD_TO_SIGMA * float(median(np.abs(values - median(values))))) if len(values) else None


def near_sigma_of(values: Floats, most_apart: int) -> float:
    """The same by differences of values up to so many places apart, which a change of level hardly widens.

    There must be more values than that.
    """
    differences = [np.abs(values[apart:] - values[:-apart]) for apart in range(1, most_apart + 1)]
    return MAD_TO_SIGMA * max(float(median(one)) for one in differences) / math.sqrt(2)


def known(value: float | None) -> float | None:
    """The value, or None when it is absent or not finite."""
    return float(value) if value is not None and math.isfinite(value) else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """One known number by another; None when either is unknown or the second is not positive."""
    if numerator is None or denominator is None or not denominator > 0:
        return None
    return known(numerator / denominator)


def newest_by_chance(newest: int, as_extreme: int, steps: int) -> float:
    """How likely the newest of so many steps are the most extreme but for so many others, by chance alone.

    If nothing has changed, steps could have any order. (Ranks of exchangeable observations as evidence
    of change, asked at any time: Vovk, Nouretdinov and Gammerman 2003, "Testing exchangeability on-line".)
    """
    return math.comb(newest + as_extreme, newest) / math.comb(steps, newest)


def peers_of(roles: Ints) -> Sequence[Ints]:
    """The places of each role's ranks, (roles, ranks) if all have as many; those of -1 are left out."""
    places = np.flatnonzero(roles >= 0)
    places = places[np.argsort(roles[places], kind="stable")]
    starts = np.flatnonzero(np.diff(roles[places], prepend=-1))
    # Roles are of as many ranks each, as nearly always, or are looked at one by one.
    alike = len(set(np.diff(starts, append=len(places)).tolist())) == 1
    return [places.reshape(len(starts), -1)] if alike else np.split(places, starts[1:])


def by_peers(own: Floats, peers: Sequence[Ints], compared: np.ufunc) -> Floats:
    """(n,): each value compared with the usual one of its `peers_of`, as by `np.subtract`.

    NaN where there are none; and with `np.divide`, where the usual one is 0.
    """
    result = np.full(len(own), np.nan)
    for places in peers:
        values = own[places]
        # Of two, the other one.
        usual = values[..., ::-1] if places.shape[-1] == 2 else median(values, axis=-1)[..., None]
        usual = np.where((usual > 0) | (compared is not np.divide), usual, np.nan)
        result[places] = compared(values, usual)
    return result
