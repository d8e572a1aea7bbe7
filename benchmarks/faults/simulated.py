"""The simulated fault benchmark: many made jobs, what was said of them, and how sure the figures are."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.faults.judge import Verdict, judge
from benchmarks.faults.noise import held_out_world, tuning_world
from benchmarks.faults.scenario import Fault, scenarios
from benchmarks.faults.score import wilson

SCHEMA = "perfd.bench.faults.simulated/1"
LEAST_COST = 0.10
"""Of a step: what a fault must really cost before it has to be found."""
LEAST_FOUND, MOST_FALSE_ALARMS = 0.95, 0.02
STEADY_FAULTS = frozenset(Fault) - {Fault.FORCED_SYNC}
"""A stall in every fifth step is reported apart: five steps cannot show it."""
_COSTS = (0.0, 0.02, 0.05, 0.1, 0.2, float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """So many of so many, with Wilson's 95 % interval."""

    hits: int
    of: int

    def __str__(self) -> str:
        low, high = wilson(self.hits, self.of)
        share = "-" if not self.of else f"{self.hits / self.of:.1%}"
        return f"{self.hits:4} of {self.of:4}  {share:>6}  (95 %: {low:.1%} to {high:.1%})"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        low, high = wilson(self.hits, self.of)
        return {"hits": self.hits, "of": self.of, "low_ratio": low, "high_ratio": high}


def run(
    *, world: str, rounds: int, seed: int, most_ranks: int, on_verdict: Callable[[Verdict], None]
) -> list[Verdict]:
    """Simulate and judge all faults so many times; `world` is `tuning` or `held-out`."""
    chosen = {"tuning": tuning_world, "held-out": held_out_world}[world]()
    verdicts = []
    for scenario in scenarios(chosen, rounds=rounds, seed=seed, most_ranks=most_ranks):
        verdicts.append(judge(scenario))
        on_verdict(verdicts[-1])
    return verdicts


def figures(verdicts: Sequence[Verdict]) -> dict[str, Ratio]:
    """What counts, by name."""
    costly = [one for one in verdicts if one.scenario.truth and one.cost_ratio >= LEAST_COST]
    steady = [one for one in costly if one.scenario.fault in STEADY_FAULTS]
    now_and_then = [one for one in costly if one.scenario.fault not in STEADY_FAULTS]
    named = [one for one in steady if one.blamed]
    innocent = [one for one in verdicts if not one.scenario.truth]
    clean = [one for one in innocent if one.scenario.fault is Fault.NONE]
    return {
        "found, of faults that cost 10 % and more": _ratio(steady, lambda one: one.found),
        "and within 10 s or 5 steps": _ratio(steady, lambda one: one.in_time),
        "the right rank, where one is named": _ratio(named, lambda one: one.found),
        "found, a stall in every fifth step": _ratio(now_and_then, lambda one: one.found),
        "false alarms at the end of clean runs": _ratio(clean, lambda one: bool(_innocent(one))),
        "false alarms at the end of blameless runs": _ratio(innocent, lambda one: bool(_innocent(one))),
        "clean runs with any in one look a second": _ratio(clean, lambda one: bool(one.wrongly)),
        "wrong ranks in faulty runs at the end": _ratio(
            [one for one in verdicts if one.scenario.truth], lambda one: bool(_innocent(one))
        ),
    }


def curve(verdicts: Iterable[Verdict]) -> dict[str, Ratio]:
    """What is found, by what the fault really costs."""
    blameful = [one for one in verdicts if one.scenario.truth and one.scenario.fault in STEADY_FAULTS]
    return {
        f"{low:.0%} to {high:.0%}" if high < _COSTS[-1] else f"{low:.0%} and more": _ratio(
            [one for one in blameful if low <= one.cost_ratio < high or one.cost_ratio == high],
            lambda one: one.found,
        )
        for low, high in pairwise(_COSTS)
    }


def baselines(verdicts: Sequence[Verdict]) -> dict[str, tuple[Ratio, Ratio]]:
    """Of each simpler rule, what it finds and where it blames somebody innocent."""
    counted = [
        one
        for one in verdicts
        if one.cost_ratio >= LEAST_COST
        and one.scenario.truth
        and one.scenario.fault in STEADY_FAULTS - {Fault.HANG}
    ]
    innocent = [one for one in verdicts if not one.scenario.truth]
    return {
        name: (
            _ratio(counted, lambda one, name=name: one.baselines[name] == one.scenario.truth),  # type: ignore[misc]
            _ratio(
                innocent,
                lambda one, name=name: bool(one.baselines[name] - one.scenario.may_be_blamed),  # type: ignore[misc]
            ),
        )
        for name in (verdicts[0].baselines if verdicts else {})
    }


def estimate_errors(verdicts: Iterable[Verdict]) -> list[float]:
    """How far the share of the step that is said to be lost is from what was lost, of what was found."""
    return [
        abs(one.lost_ratio - one.cost_ratio / (1 + one.cost_ratio))
        for one in verdicts
        if one.found and one.lost_ratio is not None and one.scenario.fault is not Fault.HANG
    ]


def failures(verdicts: Sequence[Verdict]) -> list[str]:
    """Which bounds were missed, in words."""
    found = figures(verdicts)
    missed = []
    ratio = found["found, of faults that cost 10 % and more"]
    if ratio.of and ratio.hits < LEAST_FOUND * ratio.of:
        missed.append(f"Only {ratio.hits} of {ratio.of} faults were found, less than {LEAST_FOUND:.0%}.")
    ratio = found["false alarms at the end of clean runs"]
    if ratio.hits:
        missed.append(f"{ratio.hits} of {ratio.of} clean runs ended with a false alarm.")
    ratio = found["false alarms at the end of blameless runs"]
    if ratio.hits > MOST_FALSE_ALARMS * ratio.of:
        missed.append(f"{ratio.hits} of {ratio.of} blameless runs ended with a false alarm.")
    return missed


def show(verdicts: Sequence[Verdict]) -> str:
    """All figures as text."""
    lines = [f"  {name:<44} {ratio}" for name, ratio in figures(verdicts).items()]
    lines += ["", "  found, by what the fault costs (of a step):"]
    lines += [f"    {name:<42} {ratio}" for name, ratio in curve(verdicts).items()]
    times = sorted(one.detected_after_s for one in verdicts if one.found and one.detected_after_s is not None)
    if times:
        late = times[min(len(times) - 1, round(0.95 * len(times)))]
        lines += ["", f"  time to detect: {statistics.median(times):.1f} s (median), 95 % below {late:.1f} s"]
    errors = sorted(estimate_errors(verdicts))
    if errors:
        late = errors[min(len(errors) - 1, round(0.9 * len(errors)))]
        lines.append(
            f"  lost share of a step, error: {statistics.median(errors):.1%} (median), 90 % below {late:.1%}"
        )
    lines += ["", "  simpler rules, given the true compute times of every rank:"]
    for name, (found, false) in baselines(verdicts).items():
        lines += [
            f"    {name + ': found':<42} {found}",
            f"    {'  false alarms in blameless runs':<42} {false}",
        ]
    return "\n".join(lines)


def document(verdicts: Sequence[Verdict], world: str) -> dict[str, Any]:
    """The same as JSON, with each run."""
    return {
        "schema": SCHEMA,
        "world": world,
        "figures": {name: ratio.document() for name, ratio in figures(verdicts).items()},
        "curve": {name: ratio.document() for name, ratio in curve(verdicts).items()},
        "baselines": {
            name: {"found": found.document(), "false_alarms": false.document()}
            for name, (found, false) in baselines(verdicts).items()
        },
        "estimate_errors": estimate_errors(verdicts),
        "failures": failures(verdicts),
        "runs": [_run(one) for one in verdicts],
    }


def describe(one: Verdict) -> str:
    """One run on one line, marked when something is wrong with it."""
    missed = one.scenario.truth and not one.found and one.cost_ratio >= LEAST_COST
    mark = "MISSED" if missed else "WRONG" if _innocent(one) else ""
    return (
        f"{mark:6} {one.scenario.name:<42} costs {one.cost_ratio:7.1%}  to blame {sorted(one.scenario.truth)}"
        f"  blamed {sorted(one.blamed)}  {', '.join(one.kinds)}"
    )


def _innocent(one: Verdict) -> frozenset[int]:
    return one.blamed - one.scenario.may_be_blamed


def _ratio(verdicts: Sequence[Verdict], holds: Callable[[Verdict], bool]) -> Ratio:
    return Ratio(hits=sum(holds(one) for one in verdicts), of=len(verdicts))


def _run(one: Verdict) -> dict[str, Any]:
    return {
        "name": one.scenario.name,
        "fault": one.scenario.fault,
        "strength": one.scenario.strength,
        "ranks": one.scenario.ranks,
        "truth": sorted(one.scenario.truth),
        "blamed": sorted(one.blamed),
        "wrongly": sorted(one.wrongly),
        "detected_after_s": one.detected_after_s,
        "kinds": list(one.kinds),
        "lost_ratio": one.lost_ratio,
        "cost_ratio": None if one.cost_ratio == float("inf") else one.cost_ratio,
    }
