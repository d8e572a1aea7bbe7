"""The numbers of a summary as lines of text, each with its source; unknown ones are listed last."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.analysis.collectives import SOURCE_WAITING
from perfd.analysis.communication import Communication, Dimension
from perfd.analysis.diagnosis import JobSummary, StepsSummary
from perfd.analysis.steps import Efficiency
from perfd.formatting import count, duration, flops_per_s, percent
from perfd.model import StepSource, several_steps

_LEAST_SHARE = 0.001
"""Share of a step below which a dimension is not shown."""
_MANY_OUTLIERS = 0.05
"""Share of steps from which on the 95th percentile of all of them would be that of an outlier."""
_FLOPS_SOURCES = {
    "config": "; model by its config.json",
    "arguments": "; model by the config.json that the job's arguments name",
    "flops_per_step": "",
    "log": "; FLOP/s of the log",
    "hlo": "; FLOPs counted in the dumped HLO",
}
"""What MFU rests on, besides the model's shape in the log."""


def numbers_in_words(summary: JobSummary) -> list[str]:
    """One line per number, from steps to goodput, and a last one with the unknown ones."""
    rows = (
        ("steps", _steps(summary)),
        ("step time", _step_time(summary)),
        ("throughput", _throughput(summary.efficiency)),
        (f"model FLOP/s per {'GPU' if summary.gpus else 'rank'}", _flops(summary.efficiency)),
        ("MFU", _mfu(summary.efficiency, summary.steps)),
        ("communication", _communication(summary.communication)),
        *_dimensions(summary.communication),
        ("pipeline stall", _stall(summary)),
        ("data loading", _share(summary.data.share_ratio, summary.data.source)),
        ("optimizer", _share(summary.optimizer.share_ratio, summary.optimizer.source)),
        ("fullest GPU memory", _share(summary.memory.max_used_ratio, summary.memory.source)),
        ("goodput", None if summary.goodput_ratio is None else percent(summary.goodput_ratio)),
    )
    width = max(len(name) for name, _ in rows)
    unknown = [name for name, value in rows if value is None]
    shown = [*rows, ("unknown", ", ".join(unknown) or None)]
    return [f"    {name:<{width}}  {value}" for name, value in shown if value is not None]


def _steps(summary: JobSummary) -> str:
    steps = summary.steps
    if not steps.count:
        return "none seen"
    by_nccl = steps.source is StepSource.NCCL
    if steps.count == 1:
        row = "row by NCCL operations" if by_nccl else "line"
        return f"1 {row}, step {steps.first}; {'' if steps.steady_count else 'not '}steady"
    rows = "rows by NCCL operations" if by_nccl else "lines"
    counted = several_steps(steps.doubt)
    sure = "" if steps.doubt is None else ". Step times in the log, or perfd.hook, say which"
    return (
        f"{steps.count} {rows}, {counted} {steps.first} to {steps.last};"
        f" {steps.steady_count} of them steady{sure}"
    )


def _step_time(summary: JobSummary) -> str | None:
    times = summary.step_time_s
    if times.median is None:
        return None
    tail = f", p95 {duration(times.p95)}" if times.p95 is not None else ""
    if (times.outlier_ratio or 0.0) > _MANY_OUTLIERS:
        tail += f" ({percent(times.outlier_ratio)} of steps are outliers, not counted)"
    source = ", timed by when lines arrived" if summary.steps.source is StepSource.ARRIVAL else ""
    return f"{duration(times.median)} (median){tail}{source}"


def _throughput(speed: Efficiency) -> str | None:
    parts = [
        f"{count(value, digits)} {unit}/s"
        for value, digits, unit in (
            (speed.tokens_per_s, 0, "tokens"),
            (speed.samples_per_s, 1, "samples"),
        )
        if value is not None
    ]
    return ", ".join(parts) or None


def _flops(speed: Efficiency) -> str | None:
    flops, peak = speed.model_flops_per_s_per_gpu, speed.peak_flops_per_s
    if flops is None:
        return None
    unverified = " (unverified peak)" if speed.peak_unverified else ""
    return f"{flops_per_s(flops)} of {flops_per_s(peak)}{unverified}" if peak else flops_per_s(flops)


def _mfu(speed: Efficiency, steps: StepsSummary) -> str | None:
    if speed.mfu_ratio is None:
        if speed.mfu_upper_ratio is not None:
            missing = "" if speed.mfu_missing is None else f". {speed.mfu_missing}"
            return f"unknown; at most {percent(speed.mfu_upper_ratio)} by tensor core activity{missing}"
        return None if speed.mfu_missing is None else f"unknown. {speed.mfu_missing}"
    source = _FLOPS_SOURCES.get(speed.mfu_source or "", "")
    if speed.precision_by_hlo is not None:
        source += f"; peak by {speed.precision_by_hlo}"
    parts = [f"{percent(speed.mfu_ratio)} (convention {speed.flops_convention}{source})"]
    if steps.doubt is not None:
        parts.append(f"if each {steps.one} is a step")
    if speed.mfu_tier is not None:
        parts.append(f"tier {speed.mfu_tier.word}")
    if speed.hfu_ratio is not None:
        parts.append(f"HFU {percent(speed.hfu_ratio)}")
    if speed.tensor_active_ratio is not None:
        parts.append(f"tensor cores active {percent(speed.tensor_active_ratio)}")
    return ", ".join(parts)


def _stall(summary: JobSummary) -> str | None:
    pipeline = summary.pipeline
    if summary.parallel.pp == 1:
        return "no pipeline"
    theory = pipeline.bubble_theory_ratio
    expected = "" if theory is None else f"; theory expects {percent(theory)}"
    if pipeline.stall_ratio is None:
        return f"unknown{expected} of the schedule" if expected else None
    whole = "the time" if pipeline.source == SOURCE_WAITING else "the schedule"
    return f"{percent(pipeline.stall_ratio)} of {whole}{expected} ({pipeline.source})"


def _communication(communication: Communication) -> str | None:
    share = _share(communication.share_ratio, communication.source)
    if share is None:
        return None
    if communication.transfer_ratio is not None:
        moves, waits = percent(communication.transfer_ratio), percent(communication.wait_ratio)
        share += f" in the mean over ranks: {moves} moves data, {waits} waits for other ranks"
    if communication.exposed_source not in {None, communication.source}:
        share += f"; exposed {_share(communication.exposed_ratio, communication.exposed_source)}"
    return f"{share}, not counting {', '.join(communication.left_out)}" if communication.left_out else share


def _dimensions(communication: Communication) -> list[tuple[str, str]]:
    """The share of a step of each parallel dimension's communication, and its exposed share."""
    shown = [one for one in communication.dimensions if one.share_ratio >= _LEAST_SHARE]
    if not shown:
        return []
    lines = _unknown_alike(shown) or [_dimension(one) for one in shown]
    if _overlap(communication):
        lines.append(f"together {percent(communication.share_ratio)}: they overlap")
    return [("by dimension" if at == 0 else "", line) for at, line in enumerate(lines)]


def _unknown_alike(shown: Sequence[Dimension]) -> list[str]:
    """One line for dimensions whose exposed part is unknown for the same reason."""
    reasons = {one.missing for one in shown}
    if len(reasons) > 1 or any(one.exposed_ratio is not None for one in shown):
        return []
    shares = ", ".join(f"{one.group or 'others'} {percent(one.share_ratio)}" for one in shown)
    return [f"{shares}; exposed unknown ({shown[0].missing})"]


def _dimension(one: Dimension) -> str:
    exposed = _share(one.exposed_ratio, one.exposed_source) or f"unknown ({one.missing})"
    return f"{one.group or 'others'} {percent(one.share_ratio)}, exposed {exposed}"


def _overlap(communication: Communication) -> bool:
    """Whether dimensions communicate at the same time: their sum exceeds all communication."""
    if communication.share_ratio is None or communication.left_out:
        return False
    return sum(one.share_ratio for one in communication.dimensions) > communication.share_ratio + _LEAST_SHARE


def _share(ratio: float | None, source: str | None) -> str | None:
    return None if ratio is None else f"{percent(ratio)} ({source})"
