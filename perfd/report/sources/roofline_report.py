"""Operations under the roofline of their GPU, as a picture and as a report.

The axes are relative: intensity to the ridge, speed to the peak. So one picture holds operations of several
precisions and the kernels of Nsight Compute, which has shares of peaks but no counts: a kernel that keeps
the arithmetic units busy for c and the memory for m of the time has c / m of the ridge's intensity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from perfd.formatting import UNKNOWN, bandwidth, data_size, duration, flops, flops_per_s, percent
from perfd.report.display_names import kernel_name, title
from perfd.report.report_model import Point, Report, ReportFinding, ReportMetric, ReportTable, Roofline
from perfd.trace.diagnosis import MEASURED, MODELLED
from perfd.trace.roofline import (
    AT_LIMIT_RATIO,
    LATENCY_RATIO,
    UNIT_NAMES,
    KernelMetrics,
    Placement,
    RooflineVerdict,
    judge,
)

_NAME_WIDTH = 60
"""Characters of a kernel's name beside its point."""
_ADVICE = {
    RooflineVerdict.COMPUTE: "Use a lower precision or the tensor cores, or do less arithmetic; more"
    " bandwidth changes nothing.",
    RooflineVerdict.MEMORY: "Move fewer bytes: fuse it with its neighbors, tile for reuse, use narrower"
    " types.",
    RooflineVerdict.LATENCY: "Give the GPU more to do at once (larger shapes, more blocks per SM), or find"
    " out what the warps wait for.",
}
THRESHOLDS = (
    f"Below {LATENCY_RATIO:.0%} of both peaks neither limits (latency bound); from {AT_LIMIT_RATIO:.0%} of"
    " one on it is at its limit; between them the busier one limits."
)


def report_of_placement(found: Placement) -> Report:
    """The report of one operation that was placed by its shapes."""
    work = found.work
    peaks = f"perfd's table of peaks, {found.gpu}"
    shapes = "counted from the shapes, each array moved once"
    rows = (
        ("Arithmetic", flops(work.flops), shapes),
        ("Traffic", data_size(work.traffic_bytes), shapes),
        ("Intensity", f"{found.intensity_flops_per_byte:,.1f} FLOP/byte", shapes),
        ("Ridge", f"{found.ridge_flops_per_byte:,.1f} FLOP/byte", peaks),
        ("Peak", f"{flops_per_s(found.peak_flops_per_s)} ({found.peak_label})", peaks),
        ("Bandwidth", f"{bandwidth(found.memory_bytes_per_s)}{found.bandwidth_label}", peaks),
        ("No faster than", duration(found.minimum_s), f"{shapes}; {peaks}"),
        ("Took", duration(found.time_s), "given with --time"),
        ("Of what is attainable", percent(found.attainable_ratio), "minimum over the time given"),
    )
    return Report(
        title=f"{work.name} on {found.gpu}",
        subtitle="Roofline from shapes",
        headline=f"{title(found.verdict.value)}.",
        summary=[*work.notes, THRESHOLDS],
        metrics=[
            ReportMetric(name=name, value=value, source=source)
            for name, value, source in rows
            if value != UNKNOWN
        ],
        findings=[
            _finding(
                found.verdict,
                [_why(found)],
                MODELLED if found.time_s is None else MEASURED,
                attainable=found.attainable_ratio,
            )
        ],
        # What computes nothing has no place on a logarithmic axis.
        figures=[_picture([_point(found)], f"{shapes}; {peaks}", found)] if work.flops else [],
    )


def report_of_kernels(kernels: Sequence[KernelMetrics], source: str) -> Report:
    """The report of kernels that Nsight Compute measured; `source` is the file."""
    points = [
        Point(
            label=kernel_name(kernel.name, _NAME_WIDTH),
            intensity=kernel.compute_ratio / kernel.memory_ratio,
            speed=kernel.compute_ratio,
            kind=kernel.verdict.value,
        )
        for kernel in kernels
        if kernel.verdict and kernel.compute_ratio and kernel.memory_ratio
    ]
    longest = max(kernels, key=lambda kernel: kernel.duration_s or 0.0)
    total_s = sum(kernel.duration_s or 0.0 for kernel in kernels)
    verdicts = Counter(kernel.verdict for kernel in kernels if kernel.verdict)
    counted = ", ".join(
        f"{count} {verdict.value.replace('_', ' ')}" for verdict, count in verdicts.most_common()
    )
    summary = judge(longest).summary
    name = kernel_name(longest.name, _NAME_WIDTH)
    return Report(
        title=f"{len(kernels)} kernel{'s' if len(kernels) > 1 else ''} measured by Nsight Compute",
        subtitle=source,
        headline=f"The longest is {name}: {summary[:1].lower()}{summary[1:]}.",
        summary=[*([f"Of {len(kernels)} kernels: {counted}."] if counted else []), THRESHOLDS],
        metrics=list(_kernel_metrics(longest, total_s, source)),
        findings=[
            ReportFinding(
                title=judgment.summary,
                evidence=[reason.evidence for reason in judgment.reasons],
                advice=judgment.advice,
                gain_ratio=None,
                confidence=MEASURED,
                culprits=kernel_name(kernel.name, _NAME_WIDTH),
            )
            for kernel in sorted(kernels, key=lambda kernel: -(kernel.duration_s or 0.0))
            if kernel.verdict
            for judgment in (judge(kernel),)
        ],
        figures=[_picture(points, f"{source}; shares of the peaks of compute and memory")] if points else [],
        tables=[_table(kernels, source), _details_table(kernels, source)],
    )


def _kernel_metrics(longest: KernelMetrics, total_s: float, source: str) -> Iterator[ReportMetric]:
    of_longest = f"{source}; of the longest kernel"
    rows = (
        ("All kernels", duration(total_s or None), f"{source}; sum of their times"),
        ("The longest takes", duration(longest.duration_s), of_longest),
        *((f"Busy: {UNIT_NAMES[unit]}", percent(ratio), of_longest) for unit, ratio in longest.units.items()),
        ("Occupancy", percent(longest.occupancy_ratio), of_longest),
        ("DRAM traffic", data_size(longest.dram_bytes), of_longest),
        ("DRAM bandwidth", bandwidth(longest.dram_bytes_per_s), of_longest),
        ("Arithmetic", flops(longest.flops), f"{of_longest}, counted instructions"),
    )
    return (
        ReportMetric(name=name, value=value, source=origin)
        for name, value, origin in rows
        if value != UNKNOWN
    )


def _point(found: Placement) -> Point:
    return Point(
        label=found.work.name,
        intensity=found.intensity_flops_per_byte / found.ridge_flops_per_byte,
        speed=found.peak_ratio,
        kind=found.verdict.value,
    )


def _picture(points: Sequence[Point], source: str, found: Placement | None = None) -> Roofline:
    return Roofline(
        title="Under the roofline",
        source=source,
        points=points,
        ridge_flops_per_byte=found.ridge_flops_per_byte if found else None,
        peak_flops_per_s=found.peak_flops_per_s if found else None,
        limit_ratio=AT_LIMIT_RATIO,
        latency_ratio=LATENCY_RATIO,
    )


def _why(found: Placement) -> str:
    side = "above" if found.side is RooflineVerdict.COMPUTE else "below"
    sentence = (
        f"{found.intensity_flops_per_byte:,.1f} FLOP/byte is {side} the ridge at"
        f" {found.ridge_flops_per_byte:,.1f}: at most {flops_per_s(found.attainable_flops_per_s)}."
    )
    if found.time_s is None:
        return sentence
    return (
        f"{sentence} It reached {percent(found.peak_ratio)} of the peak and"
        f" {percent(found.bandwidth_ratio)} of the bandwidth."
    )


def _finding(
    verdict: RooflineVerdict,
    evidence: list[str],
    confidence: float,
    *,
    attainable: float | None = None,
) -> ReportFinding:
    return ReportFinding(
        title=title(verdict.value),
        evidence=evidence,
        advice=_ADVICE[verdict],
        gain_ratio=None if attainable is None else max(0.0, 1 - attainable),
        confidence=confidence,
    )


def _table(kernels: Sequence[KernelMetrics], source: str) -> ReportTable:
    longest_s = max((kernel.duration_s or 0.0 for kernel in kernels), default=0.0)
    return ReportTable(
        title="Kernels",
        source=f"{source}; Nsight Compute's own metrics",
        columns=("kernel", "verdict", "time", "compute", "tensor", "DRAM", "L2", "L1", "occupancy"),
        rows=[
            (
                kernel_name(kernel.name, _NAME_WIDTH),
                judge(kernel).summary if kernel.verdict else UNKNOWN,
                duration(kernel.duration_s),
                *map(percent, (kernel.compute_ratio, kernel.tensor_ratio, kernel.dram_ratio)),
                *map(percent, (kernel.l2_ratio, kernel.l1_ratio, kernel.occupancy_ratio)),
            )
            for kernel in kernels
        ],
        text_columns=2,
        shares=[(kernel.duration_s or 0.0) / longest_s for kernel in kernels] if longest_s else (),
    )


def _details_table(kernels: Sequence[KernelMetrics], source: str) -> ReportTable:
    def number(value: float | None, digits: int = 0) -> str:
        return UNKNOWN if value is None else f"{value:,.{digits}f}"

    return ReportTable(
        title="Launch, caches and traffic",
        source=f"{source}; Nsight Compute's own metrics",
        columns=(
            *("kernel", "grid", "block", "waves", "registers", "spills", "L1 hits", "L2 hits", "DRAM bytes"),
            *("bandwidth", "IPC", "clock"),
        ),
        rows=[
            (
                kernel_name(kernel.name, _NAME_WIDTH),
                *map(number, (kernel.grid_blocks, kernel.block_threads)),
                number(kernel.waves, 2),
                *map(number, (kernel.registers_per_thread, kernel.spill_requests)),
                *map(percent, (kernel.l1_hit_ratio, kernel.l2_hit_ratio)),
                data_size(kernel.dram_bytes),
                bandwidth(kernel.dram_bytes_per_s),
                number(kernel.ipc, 2),
                UNKNOWN if kernel.sm_clock_hz is None else f"{kernel.sm_clock_hz / 1e9:.2f} GHz",
            )
            for kernel in kernels
        ],
    )
