"""Steps that became longer while the job ran, and what its GPUs do in the added time.

The multiprocessors of a GPU are active for so long in each step: their activity times the step's length is
the work of a step. Where steps become longer and this does not, the GPU got no more to do: it idles, or it
waits in a kernel of NCCL, which fills few multiprocessors. NVML's share of time with any kernel separates
these two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfd.analysis.data.job_data import Bools, Floats, GpuTable, Ints, StepTable
from perfd.analysis.data.robust_stats import MAD_TO_SIGMA, mean, median
from perfd.analysis.steps.steady_steps import SteadySteps, lines_are_means
from perfd.model import GpuColumn
from perfd.thresholds import THRESHOLDS

_FEWEST_SINCE, _MOST_SINCE = 6, 50
"""Lines of the log since the change; later those before are another time."""
_CLEAR_SINCE, _CLEAR_RATIO, _CLEAR_SIGMAS, _CLEAR_S = 3, 0.2, 6.0, 2.0
"""Or so many lines, where they are longer by far more than they scatter, and take so many seconds. Chosen: a
fault is to be known after three steps where these are long."""
_MOST_SINCE_S = 15.0
"""More short lines, up to this: GPUs take some seconds to show what they do. Chosen."""
_BEFORE = 8
"""Lines of the log before the change, whose median was the pace. Chosen."""
_LEAST_RATIO = 0.08
"""By which steps must be longer: by less they scatter."""
_SIGMAS = 3.0
"""And by this many of their robust standard deviations before."""
_MOSTLY = 0.85
"""Of the lines since that are nearer to the new time of a step, and of those before to the old one."""
_NEWEST = 2
"""Lines that must all be: the change lasts."""
_PAUSE = 5.0
"""Times the new time of a step: a row that is longer holds a pause, such as to compile or to save. Chosen."""
_FEWEST_WAITING = 2
"""Ranks that wait for one: of two, either may do something else."""
_FEWEST_SAMPLES = 3
"""Of each GPU since the change: NVML's share of time with a kernel is coarse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongerSteps:
    """How much longer steps are since one of them, and what GPUs do then."""

    since_step: int
    before_s: float
    """A step before, and since."""
    since_s: float
    longer_for_s: float
    """The total time of the steps since then."""
    lines: int
    """Of the log since then, or steps where these are known one by one."""
    ranks: Ints
    """(g,): of each GPU; -1 where unknown."""
    computing_ratio: Floats
    """(g,): the share of the added time in which multiprocessors are active; near 1 for more work, near
    0 for a GPU that idles, and a little more for one that waits in NCCL. NaN is unknown."""
    running_ratio: Floats
    """(g,): the share of the added time with any kernel on the GPU, those of NCCL included."""
    active_before_ratio: Floats
    """(g,): the share of the time before in which multiprocessors were active; NaN is unknown."""

    @property
    def gain_ratio(self) -> float:
        """The share of a step that the job would gain if steps were as before."""
        return 1 - self.before_s / self.since_s

    @property
    def idle_while_others_wait(self) -> tuple[int, ...]:
        """Ranks whose GPUs run no kernel in the added time, while those of all others wait: half at most."""
        idle = self.running_ratio <= THRESHOLDS.late_hosts_idle_ratio
        waiting = self.running_ratio >= THRESHOLDS.late_hosts_waiting_ratio
        all_others_wait = 0 < idle.sum() <= waiting.sum() == len(idle) - idle.sum()
        return tuple(sorted(self.ranks[idle].tolist())) if all_others_wait else ()

    @property
    def awaited_ranks(self) -> tuple[int, ...]:
        """The same where two at least wait: of two one idles alike if loaders or hosts of both are slow."""
        found = self.idle_while_others_wait
        return found if len(self.ranks) - len(found) >= _FEWEST_WAITING else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSince:
    """The newest lasting change to longer steps, by their times alone."""

    since_step: int
    steps: int
    """Since it."""
    before_s: float
    """A step before, and since."""
    since_s: float

    @property
    def gain_ratio(self) -> float:
        """The share of a step that the job would gain if steps were as before."""
        return 1 - self.before_s / self.since_s

    @property
    def lasted_s(self) -> float:
        """How long the steps since it took."""
        return self.steps * self.since_s


def longer_since(steps: StepTable, rows: Ints) -> StepsSince | None:
    """Since when steps are longer, by the given rows of the log; None where they are not."""
    found = _lines_of_change(steps, rows)
    if found is None:
        return None
    times, (before, since) = steps.step_time_s[rows], found
    change = len(rows) - since
    return StepsSince(
        since_step=int(steps.step[rows[change]]),
        steps=int(steps.steps_covered[rows[change:]].sum()),
        before_s=float(np.median(times[change - before : change])),
        since_s=float(np.median(times[change:])),
    )


def _lines_of_change(steps: StepTable, rows: Ints) -> tuple[int, int] | None:
    """How many lines before the newest lasting change show the pace, and how many there are since."""
    times = steps.step_time_s[rows]
    before, fewest_since = lines_needed(steps, rows)
    line_s = median(times[-_MOST_SINCE:] * steps.steps_covered[rows[-_MOST_SINCE:]])
    most_since = max(_MOST_SINCE, int(np.nan_to_num(_MOST_SINCE_S / line_s))) if len(rows) else _MOST_SINCE
    since = lines_since(
        times,
        before=before,
        fewest_since=fewest_since,
        most_since=most_since,
        clear_since=min(_CLEAR_SINCE, fewest_since),
    )
    return None if since is None else (before, since)


def longer_steps(gpu: GpuTable, steps: StepTable, rows: Ints) -> LongerSteps | None:
    """The newest lasting change to longer steps, by the given rows of the log, and GPUs since then.

    None without such a change, and where too few samples of GPUs lie before or after it.
    """
    found = _lines_of_change(steps, rows)
    metrics = [gpu.metrics.get(name) for name in (GpuColumn.SM_ACTIVE, GpuColumn.BUSY)]
    if found is None or metrics[0] is None or metrics[1] is None:
        return None
    times, (before, since) = steps.step_time_s[rows], found
    first, change = len(rows) - since - before, len(rows) - since
    before_s, since_s = float(np.median(times[first:change])), float(np.median(times[change:]))
    interval_s = _interval_s(gpu.time_unix_s[np.isfinite(metrics[0]).any(axis=1)])
    changed, newest = (steps.time_unix_s[rows[at]] for at in (change - 1, -1))
    # Short steps have few samples: those before them at the same pace count, too.
    slower = np.flatnonzero(times[:first] >= (before_s + since_s) / 2)
    of_pace = steps.time_unix_s[rows[slower[-1] + 1 if len(slower) else 0 : first + 1]]
    began = min(of_pace[-1], max(of_pace[0], changed - (_FEWEST_SAMPLES + 1) * interval_s))
    sampled = (gpu.time_unix_s > began) & (gpu.time_unix_s <= newest)
    # Each is a mean since the sample before it, so that only whole ones belong to one of both times.
    earlier = sampled & (gpu.time_unix_s <= changed) & (gpu.time_unix_s - interval_s >= began)
    later = sampled & (gpu.time_unix_s - interval_s >= changed)
    training = rows[change - 1 :][times[change - 1 :] < _PAUSE * since_s]
    later &= ~_in_pauses(gpu.time_unix_s, interval_s, steps, training)
    if not earlier.any():
        return None
    longer_s = since_s - before_s
    added = [
        (mean(values[later], axis=0) * since_s - mean(values[earlier], axis=0) * before_s) / longer_s
        for values in metrics
        if values is not None
    ]
    seen = np.isfinite(metrics[0][later]).sum(axis=0) >= _FEWEST_SAMPLES
    computing, running = (np.where(seen, ratio, np.nan) for ratio in added)
    return LongerSteps(
        since_step=int(steps.step[rows[change]]),
        before_s=before_s,
        since_s=since_s,
        longer_for_s=float((times[change:] * steps.steps_covered[rows[change:]]).sum()),
        lines=since,
        ranks=np.array([-1 if key.rank is None else key.rank for key in gpu.gpus], dtype=np.int64),
        computing_ratio=computing,
        running_ratio=running,
        active_before_ratio=mean(metrics[0][earlier], axis=0),
    )


def _in_pauses(sampled_unix_s: Floats, interval_s: float, steps: StepTable, rows: Ints) -> Bools:
    """Which samples hold some of a pause: of time between these rows that is longer than a sample."""
    begin = steps.time_unix_s[rows][:-1]
    end = (steps.time_unix_s[rows] - steps.step_time_s[rows] * steps.steps_covered[rows])[1:]
    pauses = end - begin > interval_s
    inside = (sampled_unix_s[:, None] > begin[pauses]) & (sampled_unix_s[:, None] - interval_s < end[pauses])
    return np.asarray(inside.any(axis=1))


def _interval_s(sampled_unix_s: Floats) -> float:
    """From one sample to the next; 0 of fewer than two."""
    return float(np.median(np.diff(sampled_unix_s))) if len(sampled_unix_s) > 1 else 0.0


def rows_of_pace(steps: StepTable, rows: Ints) -> Ints:
    """Of the given rows, those since the newest lasting change to longer or to shorter steps; else all."""
    times = steps.step_time_s[rows]
    before, fewest_since = lines_needed(steps, rows)
    # Half as many lines do: by mistake, findings only wait for more samples of GPUs.
    fewest_since = max(_NEWEST, fewest_since // 2)
    since = [lines_since(one, before=before, fewest_since=fewest_since) for one in (times, 1 / times)]
    return rows[-min((one for one in since if one is not None), default=len(rows)) :]


def leaves_pace(steps: StepTable, steady: SteadySteps) -> bool:
    """Whether the newest line, a mean over several steps, is of another pace than those before.

    GPUs were seen at the pace before only.
    """
    rows = rows_of_pace(steps, steady.rows)
    if not len(rows):
        return False
    usual_s = float(np.median(steps.step_time_s[rows]))
    return bool(abs(np.log(steps.step_time_s[steady.unmarked[-1]] / usual_s)) > np.log1p(_LEAST_RATIO))


def lines_needed(steps: StepTable, rows: Ints) -> tuple[int, int]:
    """How many lines before and since a change show it: half as many where they are means over steps."""
    part = 2 if lines_are_means(steps, rows) else 1
    return _BEFORE // part, _FEWEST_SINCE // part


def lines_since(
    times: Floats,
    *,
    before: int = _BEFORE,
    fewest_since: int = _FEWEST_SINCE,
    most_since: int = _MOST_SINCE,
    clear_since: int | None = None,
) -> int | None:
    """How many of the newest lines are longer than those before; None where they are not, or not all.

    `clear_since` lines do where the change is clear by itself.
    """
    fewest = fewest_since if clear_since is None else clear_since
    if len(times) < fewest + before:
        return None
    newest = times[-(most_since + before) :]
    if newest.max() * (1 - _LEAST_RATIO) < newest.min():
        # The usual case: no two lines are far enough apart.
        return None
    earlier = sliding_window_view(newest, before)[: 1 - fewest]
    usual_s = median(earlier)
    scatter_s = MAD_TO_SIGMA * median(np.abs(earlier - usual_s[:, None]))
    # One row for each moment at which it may have begun: the lines from then on.
    since_s = newest[before:]
    place = np.arange(len(since_s))
    now_s = median(np.where(place >= np.arange(len(earlier))[:, None], since_s, np.nan))
    middle_s = (usual_s + now_s) / 2
    may = since_s[: len(earlier)] > middle_s
    longer_s = now_s - usual_s
    may &= longer_s >= np.maximum(_LEAST_RATIO * now_s, _SIGMAS * scatter_s)
    clear = longer_s >= np.maximum(_CLEAR_RATIO * now_s, _CLEAR_SIGMAS * scatter_s)
    clear &= np.cumsum(since_s[::-1])[::-1][: len(earlier)] >= _CLEAR_S
    may &= clear | (len(since_s) - np.arange(len(earlier)) >= fewest_since)
    # The earliest moment from which on it holds: a few lines later it does, too.
    for first in np.flatnonzero(may[:-1]).tolist():
        own, since = earlier[first], since_s[first:]
        longer, shorter = since > middle_s[first], own < middle_s[first]
        if longer.mean() >= _MOSTLY and shorter.mean() >= _MOSTLY and longer[-_NEWEST:].all():
            return len(since)
    return None
