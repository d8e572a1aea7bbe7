"""Two rules that others use, on the same compute times: what perfd's verdicts are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfd.analysis.data.job_data import Floats

_RELATIVE = 0.75
_WINDOW_STEPS = 10
_SLOWER = 1.1


def min_median(compute_s: Floats) -> set[int]:
    """Ranks whose median is over that of the fastest rank by more than 1 / 0.75, of all ranks at once.

    The rule of NVIDIA's resiliency extension for relative scores, with its default threshold.
    """
    typical = np.median(compute_s, axis=0)
    return {int(rank) for rank in np.flatnonzero(typical.min() / typical < _RELATIVE)}


def sliding_mean(compute_s: Floats) -> set[int]:
    """Ranks whose mean over any ten steps is 10% over the mean of all ranks in these steps."""
    found: set[int] = set()
    for start in range(max(1, len(compute_s) - _WINDOW_STEPS + 1)):
        means = compute_s[start : start + _WINDOW_STEPS].mean(axis=0)
        found |= {int(rank) for rank in np.flatnonzero(means > _SLOWER * means.mean())}
    return found


RULES: Mapping[str, Callable[[Floats], set[int]]] = {
    "min-median of all ranks, 0.75": min_median,
    "sliding mean of ten steps": sliding_mean,
}
"""By name; compute times are (steps, ranks)."""
