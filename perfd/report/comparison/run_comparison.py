"""What changed between two runs, and whether it got worse than is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from perfd.errors import PerfdError
from perfd.formatting import percent
from perfd.report.comparison.measures import Better, Measure, MeasuredRun
from perfd.report.comparison.run_settings import SettingDifference, differences, unrelated

SCHEMA = "perfd.compare/1"
SAME_RATIO = 0.01
"""What changes by less than this is called the same."""


class UnrelatedRunsError(PerfdError):
    """Two runs of different models: their numbers say nothing about each other."""


class ChangeVerdict(StrEnum):
    """How a number changed."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    CHANGED = "changed"
    """By enough to be reported; by itself neither good nor bad."""
    NEW = "new"
    """It was zero in the first run."""
    UNKNOWN = "unknown"
    """Only one of the two runs has it."""
    REGRESSED = "regressed"
    """Worse beyond the bound, and it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number of both runs."""

    name: str
    unit: str
    a: float | None
    b: float | None
    change_ratio: float | None
    """(b - a) / a; None where either is unknown, or a alone is zero."""
    better: Better | None
    gate: bool
    verdict: ChangeVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """One kernel of both runs: seconds and launches a step; 0 where a run does not have it."""

    name: str
    a_s: float
    b_s: float
    a_count: float
    b_count: float

    @property
    def kind(self) -> str:
        """`new`, `gone`, `more` or `fewer` launches by over 1%, else `longer` or `shorter`."""
        if not self.a_s:
            return "new"
        if not self.b_s:
            return "gone"
        if abs(self.b_count - self.a_count) > SAME_RATIO * self.a_count:
            return "more" if self.b_count > self.a_count else "fewer"
        return "longer" if self.b_s > self.a_s else "shorter"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs side by side."""

    a: str
    b: str
    max_regression_ratio: float
    changes: Sequence[Change]
    kernels: Sequence[KernelChange] = ()
    """All that changed, those with the largest change first."""
    a_capture: str = ""
    b_capture: str = ""
    """Where the kernels of summaries are from; empty if the run has no analyzed capture."""
    differences: Sequence[SettingDifference] = ()
    """Of configuration, software and options."""

    @property
    def regressed(self) -> bool:
        """Whether a number that counts got worse beyond the bound."""
        return any(change.verdict is ChangeVerdict.REGRESSED for change in self.changes)

    @property
    def sentence(self) -> str:
        """Whether it got worse than is allowed, and what."""
        bound = f"{percent(self.max_regression_ratio)} allowed"
        names = [change.name for change in self.changes if change.verdict is ChangeVerdict.REGRESSED]
        return f"Regressed: {', '.join(names)} ({bound})." if names else f"No regression ({bound})."

    @property
    def kernel_source(self) -> str:
        """Which captures the kernels of summaries are from; empty of traces."""
        return (
            f"capture {self.a_capture} of A, {self.b_capture} of B" if self.kernels and self.a_capture else ""
        )


def compare(
    a: MeasuredRun, b: MeasuredRun, max_regression_ratio: float, *, any_runs: bool = False
) -> RunComparison:
    """Hold the second run against the first.

    Raises `PerfdError` when they are of different kinds or have no number in common that counts: a gate
    that cannot see must not let pass. Also when they are of different models or share no kernel, unless
    `any_runs`.
    """
    if a.kind != b.kind:
        raise PerfdError(f"{a.name} is a {a.kind} and {b.name} a {b.kind}: compare like with like.")
    if not any_runs and (why := unrelated(a.settings, b.settings) or _no_kernel_in_common(a, b)):
        raise UnrelatedRunsError(f"{a.name} and {b.name} are unrelated runs: {why}.")
    of_b = {measure.name: measure for measure in b.measures}
    changes = [_change(measure, of_b[measure.name], max_regression_ratio) for measure in a.measures]
    if not any(change.gate and change.change_ratio is not None for change in changes):
        raise PerfdError(
            f"{a.name} and {b.name} have no step time, throughput or MFU in common to compare;"
            " traces need marked steps for that."
        )
    return RunComparison(
        a=a.name,
        b=b.name,
        max_regression_ratio=max_regression_ratio,
        changes=changes,
        kernels=_kernels(a, b),
        a_capture=a.capture,
        b_capture=b.capture,
        differences=differences(a.settings, b.settings),
    )


def to_json(comparison: RunComparison) -> dict[str, Any]:
    """The object of schema perfd.compare/1."""
    kernels = [asdict(kernel) | {"kind": kernel.kind} for kernel in comparison.kernels]
    own = {"regressed": comparison.regressed, "sentence": comparison.sentence}
    return {"schema": SCHEMA, **own, **asdict(comparison), "kernels": kernels}


def _change(a: Measure, b: Measure, max_regression_ratio: float) -> Change:
    ratio = _ratio(a.value, b.value)
    # Numbers from two sources cannot be compared.
    better = a.better if ratio is None or a.source == b.source else None
    return Change(
        name=a.name,
        unit=a.unit.value,
        a=a.value,
        b=b.value,
        change_ratio=ratio,
        better=better,
        gate=a.gate,
        verdict=ChangeVerdict.NEW
        if a.value == 0 and b.value
        else _verdict(ratio, better, max_regression_ratio if a.gate else None),
    )


def _ratio(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return None
    if a == b:
        return 0.0
    return (b - a) / a if a else None


def _verdict(ratio: float | None, better: Better | None, max_regression_ratio: float | None) -> ChangeVerdict:
    if ratio is None:
        return ChangeVerdict.UNKNOWN
    worse = ratio if better is Better.LOWER else -ratio
    if better and max_regression_ratio is not None and worse > max_regression_ratio:
        return ChangeVerdict.REGRESSED
    if abs(ratio) < SAME_RATIO:
        return ChangeVerdict.SAME
    if better is None:
        return ChangeVerdict.CHANGED
    return ChangeVerdict.WORSE if worse > 0 else ChangeVerdict.BETTER


def _no_kernel_in_common(a: MeasuredRun, b: MeasuredRun) -> str:
    # Captures of two jobs may show other parts of a step; traces that are compared do not.
    if (
        a.capture
        or b.capture
        or not a.kernels_s
        or not b.kernels_s
        or a.kernels_s.keys() & b.kernels_s.keys()
    ):
        return ""
    return "they have no kernel in common"


def _kernels(a: MeasuredRun, b: MeasuredRun) -> list[KernelChange]:
    if not a.kernels_s or not b.kernels_s:
        return []
    names = sorted(a.kernels_s.keys() | b.kernels_s.keys())
    changes = [
        KernelChange(
            name=name,
            a_s=a.kernels_s.get(name, 0.0),
            b_s=b.kernels_s.get(name, 0.0),
            a_count=a.kernel_counts.get(name, 0.0),
            b_count=b.kernel_counts.get(name, 0.0),
        )
        for name in names
        if a.kernels_s.get(name) != b.kernels_s.get(name)
    ]
    return sorted(changes, key=lambda change: -abs(change.b_s - change.a_s))
