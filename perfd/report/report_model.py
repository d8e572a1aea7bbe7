"""A report before it is written: the same content for Markdown and HTML. Every number names its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfd.analysis.findings import Finding
from perfd.formatting import duration, percent

_RECOMMENDATIONS = 5
"""What people can act on at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMetric:
    """One number."""

    name: str
    value: str
    source: str
    """Where it comes from: a file and how it was computed."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFinding:
    """One thing that costs time."""

    title: str
    evidence: Sequence[str]
    """Sentences with numbers and their source."""
    advice: str
    gain_ratio: float | None
    """The share of the time that there is to gain at most; None when unknown."""
    confidence: float
    culprits: str = ""
    effects: Sequence[tuple[str, Sequence[str]]] = ()
    """What it explains, with the evidence of that."""

    @classmethod
    def of(cls, found: Finding) -> ReportFinding:
        """The finding as a report shows it."""
        return cls(
            title=found.short_name[:1].upper() + found.short_name[1:],
            evidence=found.evidence,
            advice=found.advice,
            gain_ratio=found.gain_ratio,
            confidence=found.confidence,
            culprits=found.culprit_names,
            effects=[(f"Explains {effect.summary}.", effect.evidence) for effect in found.effects],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Rows of text; `shares` draws a bar of so much behind the first cell of each row."""

    title: str
    source: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    """So many columns from the left are words; the others are numbers."""
    shares: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BarSegment:
    """A part of a bar: its length is `ratio` of the bar's."""

    kind: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One stacked bar a row, each of the same full length."""

    title: str
    source: str
    labels: Sequence[str]
    rows: Sequence[Sequence[BarSegment]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row of a timeline: when something was on, as (begin, end, density), all in 0 to 1."""

    label: str
    kind: str
    spans: Sequence[tuple[float, float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What was on when, over one window."""

    title: str
    source: str
    span_s: float
    groups: Sequence[tuple[str, Sequence[Lane]]]
    """A name, and its lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One number over the steps of a job."""

    title: str
    source: str
    unit: str
    """`s` or `ratio`."""
    steps: Sequence[int]
    values: Sequence[float | None]
    """Of each step; None where it is unknown."""
    steady: Sequence[bool]
    """Whether the step counts: the axis fits those that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An operation under a roofline; its intensity is relative to the ridge, its speed to the peak."""

    label: str
    intensity: float
    speed: float | None
    """None: no time was measured, and it is drawn on the roof."""
    kind: str
    """Its verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Operations under the roof of their GPU. Without a ridge and a peak the axes are relative."""

    title: str
    source: str
    points: Sequence[Point]
    ridge_flops_per_byte: float | None = None
    peak_flops_per_s: float | None = None
    limit_ratio: float
    latency_ratio: float


Figure = Bars | Timeline | StepLine | Roofline


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report."""

    title: str
    subtitle: str
    headline: str
    summary: Sequence[str]
    """Sentences."""
    metrics: Sequence[ReportMetric]
    findings: Sequence[ReportFinding]
    figures: Sequence[Figure] = ()
    tables: Sequence[ReportTable] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    step_time_s: float | None = None
    """The step time that gains are shares of; None if the advice itself has the new step time."""

    def recommendations(self) -> list[ReportFinding]:
        """At most five findings with advice, largest gain first."""
        advising = [found for found in self.findings if found.advice]
        return sorted(advising, key=lambda found: -(found.gain_ratio or 0.0))[:_RECOMMENDATIONS]

    def gain_words(self, found: ReportFinding) -> str:
        """The most that following the advice gains, and the step time then; empty if unknown."""
        if not found.gain_ratio:
            return ""
        gain = f"up to {percent(found.gain_ratio)}"
        if self.step_time_s is None:
            return gain
        return f"{gain}: a step of {duration(self.step_time_s * (1 - found.gain_ratio))} at best"
