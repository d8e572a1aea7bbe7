"""Whether a rank may only be the last of ranks that all wait for something else: then it is not named.

Whoever is done last keeps the others in NCCL, whatever all of them wait for, and it may be the same rank for
many steps. So a cause that is common to all ranks comes first, and it must have had the time to show: what
the rank costs is seen after a few steps, and what hosts and GPUs do only with their next readings.
"""

from __future__ import annotations

import math

import numpy as np

from perfd.analysis.collectives import NcclRank
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.diagnosis.own_past_findings import working_more
from perfd.analysis.findings import Finding
from perfd.model import GpuColumn, StepDoubt

_ALIKE = 0.1
"""Of what hosts of all ranks cost, by which what their last one seems to cost differs from that. Chosen."""
_HOST_NOISE = 0.25
"""Of the time in which hosts leave the idlest GPU idle, by so much one may be slower by chance. Chosen: 0.21
in a healthy loop that samples a graph on its hosts (2 H100, 2026-11-25)."""
_LITTLE_WORK = 0.2
"""Of the time in which no GPU computes, the same. Chosen: 0.13 to 0.19 in two loops of FSDP (4 H100,
2026-11-26)."""
_LASTS_S, _NOTABLE = 10.0, 0.1
"""A rank that costs a tenth of a step for longer is not slower by chance; one that costs less may be, as
hosts differ: by 0.05 to 0.07 for all of a run of 18 s (2 H200, 2026-11-26). Chosen."""
_LITTLE, _BRIEF_S = 0.06, 2.0
"""Healthy hosts are late by this share of a step for this long: 5% for 7 steps, 1 s (4 H200, 2026-11-26).
Chosen."""
_SIGMAS, _MANY_ROWS = 12.0, 30
"""Standard errors that a rank must cost in more rows than this that may be micro-batches: those of one step
have their cause in common. Chosen: healthy ranks had 3 to 11.4 for up to 10 s (4 H100); slow ones 12.1 and
more in 40 jobs, and 8 to 12 in one."""
_BRIEF_SIGMAS, _BRIEF_ROWS_S = 20.0, 1.5
"""The same while it is late for less than this. Chosen: 15 for 1.1 s while all ranks read slowly (4 H100,
2026-11-28); slow ones had 21 and more."""
_LASTING_ROWS_S = 20.0
"""For less, a rank in such rows costs at most its own extra work; later, what rows grew by. Chosen: rows grew
by twice the extra work of healthy ranks that were late for up to 17 s (4 H100)."""
_CONTENDED = 0.5
"""Of what the last rank seems to cost, that hosts of all ranks wait for CPUs at least. Chosen."""
_EXPLAINS = 1 / 3
"""Of what steps became longer by, that a rank must explain which is late since then. Chosen: of two that are
late, the later one may explain half."""
_SAME_CHANGE_STEPS = 4
"""Steps between which a rank becomes late and steps become longer by one change. Chosen."""


def last_by_chance(facts: JobEvidence, found: Finding, starved: Finding | None) -> bool:
    """Whether the rank that a finding names may be the last by chance.

    `starved` is the finding that hosts of all ranks wait for their input. A GPU with more work is not last by
    chance.
    """
    if working_more(facts) in found.concerned_ranks:
        return False
    gain = found.gain_ratio or 0.0
    if facts.cpu_wait_of_all >= _CONTENDED * gain > 0:
        return True
    if _awaits_input(facts, _within_change(facts, found), starved):
        return True
    if found.longer_for_s is not None or all(one.kind != "rank" for one in found.culprits):
        # Compared with its own past, or no rank is named.
        return False
    return (
        _awaits_hosts(facts, found)
        or _of_slow_hosts(facts, found)
        or _of_micro_batches(facts, found)
        or _is_part_of_change(facts, found)
    )


def _awaits_hosts(facts: JobEvidence, found: Finding) -> bool:
    """Whether hosts may show in a moment that ranks only began in this order.

    Not where the GPU of the last one has more work than those of the others, nor of what repeats at equal
    distances.
    """
    awaited = facts.awaits_hosts and not _stalls(facts, found)
    return awaited and facts.computing_more.isdisjoint(found.concerned_ranks)


def _stalls(facts: JobEvidence, found: Finding) -> bool:
    """Whether the finding is of what repeats at equal distances."""
    return facts.nccl.stalling is not None and facts.nccl.stalling.gain_ratio == found.gain_ratio


def _awaits_input(facts: JobEvidence, gain: float, starved: Finding | None) -> bool:
    """Whether all ranks wait for their input, and for as long as for the one that comes last."""
    if starved is not None and (1 + _ALIKE) * (starved.gain_ratio or 0.0) >= gain:
        return True
    return facts.data.share_ratio is None and gain < (facts.asleep_together or 0.0)


def _of_slow_hosts(facts: JobEvidence, found: Finding) -> bool:
    """Whether hosts limit the job, and that of the last rank is slower by little, or by less and briefly.

    There what a host takes longer makes a step longer by as much, whichever it is. While GPUs are read, but
    none in these steps yet, hosts may limit it, and without GPUs while hosts never sleep.
    """
    otherwise = (*facts.stragglers_by_timers, *facts.stragglers_by_activity)
    if facts.step_time.median is None or any(one.rank in found.concerned_ranks for one in otherwise):
        return False
    slow, gain = _named(facts, found), found.gain_ratio or 0.0
    late_s = 0.0 if slow is None else (slow.late_for_steps or 0.0) * facts.step_time.median
    if gain < _LITTLE and late_s < _BRIEF_S and not _stalls(facts, found):
        return True
    if gain >= _NOTABLE and late_s >= _LASTS_S:
        return False
    return gain < max(_HOST_NOISE * _idle_ratio(facts), _LITTLE_WORK * _not_computing_ratio(facts))


def _of_micro_batches(facts: JobEvidence, found: Finding) -> bool:
    """Whether rows may be micro-batches, and it costs little beside their errors, without more GPU work."""
    slow = _named(facts, found)
    if facts.step_doubt is not StepDoubt.MICRO_BATCHES or slow is None or _stalls(facts, found):
        return False
    if facts.computing_more == {slow.rank}:
        return False
    rows = slow.late_for_steps
    late_s = math.inf if rows is None else rows * (slow.step_s or 0.0)
    usual = _SIGMAS if rows is None or rows > _MANY_ROWS else 0.0
    least = _BRIEF_SIGMAS if late_s < _BRIEF_ROWS_S else usual
    gain = slow.gain_ratio or 0.0
    if slow.slowdown_ratio is not None and late_s < _LASTING_ROWS_S:
        # Rows also grow by what lies between steps.
        gain = min(gain, 1 - 1 / max(1.0, slow.slowdown_ratio))
    return gain < least * (slow.gain_doubt_ratio or 0.0)


def _idle_ratio(facts: JobEvidence) -> float:
    """The share of time in which the idlest GPU runs no kernel."""
    running = facts.activity.of_gpus(facts.activity.kernel_metric)
    idle = 1 - running[np.isfinite(running)]
    return float(idle.max()) if len(idle) else float(facts.hosts_may_limit or len(running) > 0)


def _not_computing_ratio(facts: JobEvidence) -> float:
    """The share of time in which no GPU computes; 0 if unknown. One that waits in NCCL runs a kernel."""
    computing = facts.activity.of_gpus(GpuColumn.SM_ACTIVE)
    known = computing[np.isfinite(computing)]
    return 1 - float(known.max()) if len(known) else 0.0


def _is_part_of_change(facts: JobEvidence, found: Finding) -> bool:
    """Whether steps became longer when the rank became late, by far more than it costs."""
    longer = facts.longer_since
    if longer is None or (found.gain_ratio or 0.0) >= _EXPLAINS * longer.gain_ratio:
        return False
    return _became_late_with(facts, found)


def _within_change(facts: JobEvidence, found: Finding) -> float:
    """What the rank costs: at most the growth of steps if it became late with it."""
    gain, longer = found.gain_ratio or 0.0, facts.longer_since
    return min(gain, longer.gain_ratio) if longer and _became_late_with(facts, found) else gain


def _became_late_with(facts: JobEvidence, found: Finding) -> bool:
    """Whether the one rank of the finding became late when steps became longer, or later."""
    longer, slow = facts.longer_since, _named(facts, found)
    if longer is None or slow is None or slow.late_for_steps is None:
        return False
    return slow.late_for_steps <= longer.steps + _SAME_CHANGE_STEPS


def _named(facts: JobEvidence, found: Finding) -> NcclRank | None:
    if len(found.concerned_ranks) != 1:
        return None
    return next((one for one in facts.nccl.ranks if one.rank == found.concerned_ranks[0]), None)
