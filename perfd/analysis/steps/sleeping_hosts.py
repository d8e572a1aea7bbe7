"""Whether the hosts of all ranks sleep, or only their GPUs do: they wait for their input, or are late.

A host that launches too slowly is busy, and one that waits for its GPU is ahead of it. Where the threads that
launch work sleep on every rank, and the GPUs idle as long, hosts wait for something else; between two steps
of a training loop that is the next batch. Of ranks that all wait for a batch, one gets it last, and GPUs of
the others wait for it in NCCL. Their own hosts wait for a batch, too, if they sleep now and never did while
they waited for GPUs that were busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfd.analysis.data.job_data import (
    Floats,
    GpuTable,
    Ints,
    JobData,
    LaunchTable,
    OperationPace,
    StepTable,
)
from perfd.analysis.data.launch_windows import (
    AWAKE,
    SETTLED,
    asleep_alike,
    loaders,
    loaders_all_busy,
    slept_before_change,
)
from perfd.analysis.data.robust_stats import known, median
from perfd.analysis.steps.activity_by_gpu import TRAINING_TIME, GpuActivity
from perfd.analysis.steps.fallen_activity import activity_fell
from perfd.analysis.steps.longer_steps import LongerSteps, lines_needed, lines_since
from perfd.thresholds import THRESHOLDS

_LATEST_S = 0.5
"""A window that is so much longer than the time since a change still is of that time."""
_STEPS = 3
"""A window covers so many at least."""
_USUAL = 2
"""The window that is long enough to be what is usual."""
_USUAL_S = 8.0
"""How long the usual window is at least where nothing shows steps: several of most jobs. Chosen."""
_BEFORE = 8
"""Steps or windows before a change, whose median is what was usual. Chosen."""
_MOST_KNOWN = 0.5
"""Of the time since a change, whose steps must be known to say that they did not become longer."""
_FEWEST_SAMPLES = 3
"""Of GPUs since a change: one a second, each a mean over that second. As many as show it without hosts, which
must have slept meanwhile, too. A line of a log may be one step."""
_FEWEST_BEFORE = 5
"""Samples before, in a job that has no more yet. Chosen: hosts that sleep show the change as well."""
_LESS_AWAKE = 0.75
"""Of what a host was awake in a step: up to this it spun before to wait for its GPU, and does not. Chosen."""
_DUE_LINES = 2.0
"""Times what a line takes, after which the next one is overdue. Chosen."""
_BUSY = 0.75
"""Of the time, from which on a GPU's activity shows that its host waits for it. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingHosts:
    """All ranks' hosts sleep, and their GPUs have nothing to do."""

    asleep_ratio: float
    """Of the time, the least of all ranks."""
    gain_ratio: float
    """The share of a step that the job would gain without."""
    since_step: int | None = None
    """None where it is not known to have been otherwise, or at which step it changed."""
    before_s: float | None = None
    since_s: float | None = None
    active_ratios: tuple[float, float] | None = None
    """Where only GPUs show a change: how active multiprocessors were before it, and since."""
    longer_for_s: float | None = None
    """The time since then, for steps their total."""
    at_begin: bool | None = None
    """Whether the time lies between a step's last reduction and the next one's first; None if unknown."""
    lead_lost: bool = False
    """Whether hosts are less ahead of their GPUs than before."""
    waiting_ranks: tuple[int, ...] = ()
    """Whose GPUs wait in NCCL meanwhile, for the rank that comes last."""
    idle_ratio: float | None = None
    """The share of time in which GPUs run no kernel, the least of all; None where a change shows it."""
    idlest_ratio: float | None = None
    """The same, the most of all."""
    loader_workers: int | None = None
    """Of each rank; 0 where none is seen on any."""
    loader_busy_ratio: float | None = None
    step_s: float | None = None
    """The mean of the steps in which they slept, long ones included; None where a change shows it."""


@dataclass(frozen=True, slots=True)
class EachStep:
    """Steps, as finely as they are known."""

    steps: StepTable
    rows: Ints
    """The steady ones."""
    unmarked: Ints
    """These and the outliers."""
    pace: OperationPace | None
    """Which operations show them, if any do."""


def launches_of_training(job: JobData) -> LaunchTable | None:
    """What hosts did while the job trained: after its last step, they wait for others to end, too.

    Of a job whose last step is not known silence counts beyond two lines of a log, since the next may be due.
    """
    table, steps = job.launches, job.steps
    left = _steps_without_line(job)
    if table is None or not len(steps) or (job.operation_pace is not None and left is None):
        return table
    due_steps = _DUE_LINES * steps.steps_covered[-1] if left is None else left
    due_s = float(due_steps * steps.step_time_s[-1])
    silent_s = job.now_unix_s - table.age_s - float(steps.time_unix_s[-1]) - due_s
    silent_s = np.nan_to_num(np.maximum(silent_s, 0.0))
    left_s = np.maximum(table.span_s - silent_s, 0.0)
    asleep_s = np.maximum(table.asleep_ratio * table.span_s - silent_s, 0.0)
    asleep = np.divide(asleep_s, left_s, out=np.full(left_s.shape, np.nan), where=left_s > 0)
    return replace(table, asleep_ratio=np.where(silent_s > 0, asleep, table.asleep_ratio))


def _steps_without_line(job: JobData) -> int | None:
    """How many steps follow the last line that the log will have; None while another line will come."""
    last_step = job.description.train_steps if job.description else None
    if last_step is None or not len(job.steps):
        return None
    left = max(0, last_step - int(job.steps.step[-1]))
    return left if left < job.steps.steps_covered[-1] else None


def sleeping_hosts(
    job: JobData,
    each: EachStep,
    activity: GpuActivity,
    longer: LongerSteps | None,
    world: int | None,
    *,
    lasts: bool = True,
) -> SleepingHosts | None:
    """What is seen of all ranks; None where one is not seen, or does not sleep.

    `lasts`: whether the newest line is of the pace at which GPUs were seen.
    """
    table = job.launches
    if table is None or not world or len(table.rank) != world:
        return None
    waiting_ranks = _waiting_in_nccl(longer)
    change = _longer(each, waiting_ranks)
    if change is None and waiting_ranks is not None:
        change = _less_active(job.gpu, each)
    since = None if change is None else _asleep_since(table, change, job.now_unix_s)
    return since or (_all_along(table, each, activity) if lasts else None)


def asleep_together(table: LaunchTable | None, activity: GpuActivity, world: int | None) -> float | None:
    """The least share of time that a rank's host sleeps while hosts of all ranks wait for their data.

    They do while loader workers of all ranks are busy, until GPUs have been seen for long enough to say more,
    and where all sleep for as long as each other while a GPU idles. Then a rank may come last by chance:
    whichever has its data first waits for the others in NCCL, and its host, which waits for no GPU, sleeps
    all the same.
    """
    if table is None or not world or len(table.rank) != world:
        return None
    alike = asleep_alike(table, SETTLED)
    if activity.usual(activity.metrics.get(activity.kernel_metric)):
        running = activity.of_gpus(activity.kernel_metric), activity.lately(activity.kernel_metric)
        idlest = 1 - float(np.min(running))
        waits = alike and idlest >= THRESHOLDS.idle_ratio
    else:
        waits = alike or loaders_all_busy(table)
    if not waits:
        return None
    return known(float(np.min(table.asleep_ratio[SETTLED])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Less work per second than before."""

    began_unix_s: float
    lasts_s: float
    gain_ratio: float
    lead_lost: bool = False
    waiting_ranks: frozenset[int] | None = frozenset()
    """Whose GPUs wait in NCCL in the added time; None where GPUs may do more in it than wait."""
    shown: Mapping[str, Any]
    """Fields of `SleepingHosts` that say what changed."""


def _longer(each: EachStep, waiting_ranks: frozenset[int] | None) -> _Change | None:
    """Steps that became longer."""
    steps, rows = each.steps, each.unmarked
    times = steps.step_time_s[rows]
    before, fewest_since = lines_needed(steps, rows)
    since = lines_since(times, before=before, fewest_since=fewest_since)
    if since is None:
        return None
    before_s = float(np.median(times[len(times) - since - before : len(times) - since]))
    newest = rows[len(rows) - since :]
    since_s = float(np.median(steps.step_time_s[newest]))
    since_step = int(steps.step[newest[0]])
    at_begin, lead_lost = _pauses(each.pace, since_step, since_s - before_s)
    first_s = steps.step_time_s[newest[0]] * steps.steps_covered[newest[0]]
    return _Change(
        began_unix_s=float(steps.time_unix_s[newest[0]] - first_s),
        lasts_s=float((steps.step_time_s[newest] * steps.steps_covered[newest]).sum()),
        gain_ratio=1 - before_s / since_s,
        lead_lost=lead_lost,
        waiting_ranks=waiting_ranks,
        shown={"since_step": since_step, "before_s": before_s, "since_s": since_s, "at_begin": at_begin},
    )


def _waiting_in_nccl(longer: LongerSteps | None) -> frozenset[int] | None:
    """Ranks whose GPUs run kernels in the added time; None where these may be more than waiting.

    Before it their hosts must have waited for these GPUs, which were busy: how they wait for them is known.
    """
    if longer is None:
        return frozenset()
    running = longer.running_ratio > THRESHOLDS.sleeping_hosts_kernels_ratio
    working = longer.computing_ratio > THRESHOLDS.late_hosts_compute_ratio
    were_busy = longer.active_before_ratio >= _BUSY
    if (running.all() and len(running)) or (running & (working | ~were_busy)).any():
        return None
    return frozenset(longer.ranks[running].tolist())


def _less_active(gpu: GpuTable, each: EachStep) -> _Change | None:
    """GPUs that became less active, where nothing shows single steps, such as on one GPU.

    The work of a step keeps multiprocessors active for as long as before, so that the inverse of their
    activity is proportional to the time of a step. Of several GPUs the most active one counts.
    """
    if each.pace is not None:
        return None
    fell = activity_fell(gpu, _FEWEST_SAMPLES) or activity_fell(gpu, _FEWEST_SAMPLES, before=_FEWEST_BEFORE)
    if fell is None:
        return None
    began_unix_s = float(gpu.time_unix_s[fell.since[0] - 1])
    lasts_s = float(gpu.time_unix_s[fell.since[-1]]) - began_unix_s
    if _steps_as_short(each, began_unix_s, lasts_s):
        return None
    return _Change(
        began_unix_s=began_unix_s,
        lasts_s=lasts_s,
        gain_ratio=fell.ratio,
        shown={"active_ratios": (fell.before_ratio, fell.now_ratio)},
    )


def _steps_as_short(each: EachStep, began_unix_s: float, lasts_s: float) -> bool:
    """Whether steps of most of that time are known, and take no longer than those before it.

    Then GPUs have less to do: none waits any more in a kernel of NCCL for a rank that was late.
    """
    steps, rows = each.steps, each.unmarked
    total_s = steps.step_time_s[rows] * steps.steps_covered[rows]
    since = steps.time_unix_s[rows] - total_s >= began_unix_s
    earlier = steps.step_time_s[rows][~since][-_BEFORE:]
    if not len(earlier) or total_s[since].sum() < _MOST_KNOWN * lasts_s:
        return False
    return bool(np.median(steps.step_time_s[rows][since]) <= np.median(earlier))


def _asleep_since(table: LaunchTable, change: _Change, now_unix_s: float) -> SleepingHosts | None:
    gain = change.gain_ratio
    spans = median(table.span_s, axis=1)
    within = np.flatnonzero(spans <= change.lasts_s + _LATEST_S)
    if not len(within):
        return None
    window = int(within[-1])
    asleep = table.asleep_ratio[window]
    if not bool((asleep >= THRESHOLDS.sleeping_hosts_asleep_ratio * gain).all()):
        return None
    slept_before = slept_before_change(table, window, now_unix_s - change.began_unix_s - table.age_s)
    more = slept_before is not None and bool(
        (asleep - slept_before >= THRESHOLDS.sleeping_hosts_more_ratio * gain).all()
    )
    if not (more or change.lead_lost):
        return None
    if not _for_no_gpu(change, table.rank, slept_before, asleep):
        return None
    workers, busy = loaders(table, window)
    return SleepingHosts(
        asleep_ratio=float(asleep.min()),
        gain_ratio=gain,
        longer_for_s=change.lasts_s,
        lead_lost=change.lead_lost,
        waiting_ranks=tuple(sorted(change.waiting_ranks or ())),
        loader_workers=workers,
        loader_busy_ratio=busy,
        **change.shown,
    )


def _for_no_gpu(change: _Change, ranks: Ints, slept_before: Floats | None, asleep: Floats) -> bool:
    """Whether no host sleeps now because its GPU waits in NCCL, or has more to do.

    One that waits for longer is awake in a step for as long as before; far less shows that it spun then to
    wait for its GPU, and does not now. Of GPUs that wait in NCCL it is also enough that hosts never slept.
    """
    waiting = change.waiting_ranks
    doubted = np.ones(len(ranks), dtype=np.bool_) if waiting is None else np.isin(ranks, list(waiting))
    if not doubted.any():
        return True
    if slept_before is None:
        return False
    for_other = 1 - asleep <= _LESS_AWAKE * (1 - slept_before) * (1 - change.gain_ratio)
    if waiting is not None:
        for_other |= slept_before <= AWAKE
    return bool(for_other[doubted].all())


def _all_along(table: LaunchTable, each: EachStep, activity: GpuActivity) -> SleepingHosts | None:
    if not activity.usual(activity.metrics.get(activity.kernel_metric)):
        return None
    running = dict(
        zip(
            [key.rank for key in activity.gpus],
            activity.of_gpus(activity.kernel_metric).tolist(),
            strict=True,
        )
    )
    idle = np.array([1 - running.get(rank, np.nan) for rank in table.rank.tolist()])
    rows = each.rows[-_BEFORE:]
    enough = int(each.steps.steps_covered[rows].sum()) >= _BEFORE
    step_s = known(float(median(each.steps.step_time_s[rows]))) if enough else None
    # Where nothing shows steps, the window that is usual has several of most jobs'.
    least_s = (
        _STEPS * step_s if step_s is not None else _USUAL_S if activity.source == TRAINING_TIME else np.inf
    )
    long_enough = np.flatnonzero(median(table.span_s, axis=1) >= least_s)
    if not len(long_enough):
        return None
    window = min(max(int(long_enough[0]), _USUAL), len(table.span_s) - 1)
    # While workers of all ranks are too slow, a GPU without work is one of whoever gets its data last: the
    # others run a kernel that waits for it.
    counted = np.full(len(idle), idle.max()) if loaders_all_busy(table) else idle
    lost = np.minimum(counted, table.asleep_ratio[window])
    if not bool((lost >= THRESHOLDS.idle_ratio).all()):
        return None
    gain = float(median(lost))
    pauses = each.pace.pauses if each.pace is not None else None
    at_begin = None
    if step_s is not None and pauses is not None and len(pauses.step) >= _BEFORE:
        at_begin = bool(
            float(np.mean(pauses.pause_s[-_BEFORE:])) >= THRESHOLDS.sleeping_hosts_pause_ratio * gain * step_s
        )
    workers, busy = loaders(table, window)
    return SleepingHosts(
        asleep_ratio=float(table.asleep_ratio[window].min()),
        gain_ratio=gain,
        at_begin=at_begin,
        idle_ratio=float(idle.min()),
        idlest_ratio=float(idle.max()),
        loader_workers=workers,
        loader_busy_ratio=busy,
        step_s=_mean_step_s(each, float(median(table.span_s[window]))),
    )


def _mean_step_s(each: EachStep, span_s: float) -> float | None:
    """Of the newest steps that lasted so long together, and of the newest line at least."""
    rows = each.unmarked[::-1]
    covered = each.steps.steps_covered[rows]
    lasted_s = each.steps.step_time_s[rows] * covered
    newest = slice(0, max(1, int((np.cumsum(lasted_s) <= span_s).sum())))
    return known(float(lasted_s[newest].sum() / covered[newest].sum())) if len(rows) else None


def _pauses(pace: OperationPace | None, since_step: int, longer_s: float) -> tuple[bool | None, bool]:
    """Whether the added time is at the begin of steps, and whether the host's lead is lost."""
    pauses = pace.pauses if pace is not None else None
    if pauses is None:
        return None, False
    # The pause after a step's last reduction belongs to the next one.
    later = pauses.step + 1 >= since_step
    before = np.flatnonzero(~later)[-_BEFORE:]
    if len(before) < _BEFORE or not later.any():
        return None, False
    grown_s = float(np.median(pauses.pause_s[later]) - np.median(pauses.pause_s[before]))
    lead_s = float(np.median(pauses.lead_s[before]))
    lost = (
        lead_s > 0 and float(np.median(pauses.lead_s[later])) <= THRESHOLDS.sleeping_hosts_lead_ratio * lead_s
    )
    return grown_s >= THRESHOLDS.sleeping_hosts_pause_ratio * longer_s, lost
