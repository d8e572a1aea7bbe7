"""What changed between two runs, and whether it got worse than is allowed.

It also says how their settings differ, and whether they are runs of one model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from typing import Any

from perfd.analysis.diagnosis import JobSummary
from perfd.errors import PerfdError
from perfd.formatting import UNKNOWN, percent
from perfd.report.comparison.measures import Better, Measure, MeasuredRun

RunSettings = Mapping[str, Mapping[str, str]]
"""Values as text, by area (`software`, `versions`, `layout`, `model`, `arguments`) and name."""

_SAME_MODEL = ("layers", "hidden_size", "ffn_size", "attention_heads", "kv_heads", "moe.experts")
"""What another model has otherwise; the length of a sequence or the vocabulary's padding may be changed."""
SCHEMA = "perfd.compare/1"
SAME_RATIO = 0.01
"""What changes by less than this is called the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One setting that the two runs do not share; None where only the other has it."""

    area: str
    name: str
    a: str | None
    b: str | None


def settings_of(job: JobSummary) -> RunSettings:
    """What a job ran with, if known."""
    run = job.configuration
    software = {
        "framework": job.framework or None,
        "framework version": run.framework_version,
        "GPUs": ", ".join(run.gpu_names) or None,
        "precision": run.precision or job.efficiency.peak_precision,
    }
    recompute = {"recompute": run.recompute, "recompute_layers": run.recompute_layers}
    return {
        "software": _known(software.items()),
        "versions": dict(run.software),
        "layout": _known({**asdict(job.parallel), **recompute}.items()),
        "model": {} if run.model is None else _known(_flat(run.model)),
        "arguments": dict(run.arguments),
    }


def differences(a: RunSettings, b: RunSettings) -> Sequence[SettingDifference]:
    """All settings that differ, by area and name. Of an area that only one run reports, nothing is known."""
    return [
        SettingDifference(area=area, name=name, a=a[area].get(name), b=b[area].get(name))
        for area in a
        if a[area] and b.get(area)
        for name in sorted(a[area].keys() | b[area].keys())
        if a[area].get(name) != b[area].get(name)
    ]


def unrelated(a: RunSettings, b: RunSettings) -> str:
    """Why two runs are not of one model, as words; empty where nothing speaks against it."""
    for area, names in (("software", ("framework",)), ("model", _SAME_MODEL)):
        of_a, of_b = a.get(area) or {}, b.get(area) or {}
        if not (of_a and of_b):
            continue
        for name in names:
            one, other = of_a.get(name, UNKNOWN), of_b.get(name, UNKNOWN)
            if one != other and (area == "model" or UNKNOWN not in {one, other}):
                return f"{name.replace('_', ' ')} {one} and {other}"
    return ""


def _known(values: Any) -> dict[str, str]:  # noqa: ANN401  (pairs of a name and any plain value)
    return {name: str(value) for name, value in values if value is not None}


def _flat(shape: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (a dataclass of sizes)
    for name in shape.__dataclass_fields__:
        value = getattr(shape, name)
        if is_dataclass(value):
            yield from _flat(value, f"{name}.")
        else:
            yield f"{prefix}{name}", value


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
