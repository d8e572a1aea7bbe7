"""The report of two runs side by side."""

from __future__ import annotations

from perfd.formatting import UNKNOWN, duration, percent, signed_percent
from perfd.report.comparison.measures import Unit
from perfd.report.comparison.run_comparison import Change, ChangeVerdict, KernelChange, RunComparison
from perfd.report.display_names import kernel_name
from perfd.report.report_model import Report, ReportTable

_WHOLE_ABOVE = 100
"""From which a value has no decimals."""
_KERNELS = 40
"""Rows of the table, the largest differences first; the JSON has all."""
_KERNEL_CHARS = 96
"""Longest kernel name in the table."""


def report_of_comparison(comparison: RunComparison, source: str) -> Report:
    """What changed from run A to run B; `source` is where their numbers came from."""
    return Report(
        title="Two runs compared",
        subtitle=f"A is {comparison.a}, B is {comparison.b}; {source}",
        headline=comparison.sentence,
        summary=[],
        metrics=[],
        findings=[],
        tables=[
            _change_table(comparison, source),
            *_difference_tables(comparison, source),
            *_kernel_tables(comparison, source),
        ],
    )


def value_text(value: float | None, unit: str) -> str:
    """A number of a comparison with its unit."""
    if value is None:
        return UNKNOWN
    if unit == Unit.SECONDS:
        return duration(value)
    if unit == Unit.RATIO:
        return percent(value)
    return f"{value:,.0f}" if value >= _WHOLE_ABOVE else f"{value:.3g}"


def change_text(change: Change) -> str:
    """The change in percent; `new` where there was nothing."""
    return "new" if change.verdict is ChangeVerdict.NEW else signed_percent(change.change_ratio)


def kernel_words(kernel: KernelChange) -> str:
    """What became of it; of more or fewer launches also how many."""
    if kernel.kind in {"more", "fewer"}:
        return f"{kernel.kind} ({kernel.a_count:.4g} to {kernel.b_count:.4g})"
    return kernel.kind


def _change_table(comparison: RunComparison, source: str) -> ReportTable:
    return ReportTable(
        title="Numbers",
        source=f"{source}; medians over steady steps, parts of a step in seconds",
        columns=("number", "verdict", "A", "B", "change"),
        rows=[
            (
                change.name,
                change.verdict.value,
                value_text(change.a, change.unit),
                value_text(change.b, change.unit),
                change_text(change),
            )
            for change in comparison.changes
            if change.a is not None or change.b is not None
        ],
        text_columns=2,
    )


def _difference_tables(comparison: RunComparison, source: str) -> list[ReportTable]:
    areas = dict.fromkeys(one.area for one in comparison.differences)
    return [
        ReportTable(
            title=f"Differences: {area}",
            source=f"{source}; as the runs reported it",
            columns=("name", "A", "B"),
            rows=[
                (one.name, one.a or UNKNOWN, one.b or UNKNOWN)
                for one in comparison.differences
                if one.area == area
            ],
            text_columns=3,
        )
        for area in areas
    ]


def _kernel_tables(comparison: RunComparison, source: str) -> list[ReportTable]:
    if not comparison.kernels:
        return []
    return [
        ReportTable(
            title="Kernels that changed most, per step",
            source=f"{comparison.kernel_source or source}; means over ranks",
            columns=("kernel", "", "A", "B", "change"),
            rows=[
                (
                    kernel_name(kernel.name, _KERNEL_CHARS),
                    kernel_words(kernel),
                    duration(kernel.a_s),
                    duration(kernel.b_s),
                    duration(kernel.b_s - kernel.a_s),
                )
                for kernel in comparison.kernels[:_KERNELS]
            ],
            text_columns=2,
        )
    ]
