"""When a job ends, and how long before that a capture must begin: pure decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfd.model import CaptureTool, RankPlacement

FOR_HANGS = frozenset({CaptureTool.PY_SPY, CaptureTool.FLIGHT_RECORDER})
"""Tools that read once, at once, and leave nothing in the job: for jobs that hang."""
MARGIN_S = 3.0
"""If steps become shorter, or a log line is late, the end is nearer than expected."""
_WRITING_S = {CaptureTool.NSYS: 10.0, CaptureTool.KINETO: 5.0, CaptureTool.JAX: 5.0}
"""From the end of the window until the report is written: nsys took 5 s for 400,000 events, libkineto 2 s.
That of JAX's profiler is as for Kineto, not measured."""
_CUT_STEPS = 2
"""A window by the clock cuts the first and the last step in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The sources of a job's end; None for unknown ones."""

    step: int | None = None
    """The last step that was completed."""
    stepped_unix_s: float | None = None
    """When it was."""
    train_steps: int | None = None
    exit_interval_steps: int | None = None
    """The job exits after a step divisible by this."""
    step_time_s: float | None = None
    exit_unix_s: float | None = None
    """The job exits after the first step that ends later."""
    limit_unix_s: float | None = None
    """When the scheduler ends the job at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitOptions:
    """Options that end a job before its last step; None for those that are not set."""

    interval_steps: int | None = None
    duration_s: float | None = None
    """Since its first process started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedEnd:
    """When a job is expected to end."""

    in_s: float
    why: str
    """The figures behind it."""


def job_end(pace: Pace, now_unix_s: float) -> ExpectedEnd | None:
    """The earliest end by any source; None if there is none."""
    known = (_last_step(pace, now_unix_s), _exit_time(pace, now_unix_s), _time_limit(pace, now_unix_s))
    ends = [end for end in known if end is not None]
    return min(ends, key=lambda end: end.in_s, default=None)


def is_planned(pace: Pace) -> bool:
    """Whether the job's own end is known, not only the latest possible one."""
    by_steps = pace.step is not None and _final_step(pace) is not None and pace.step_time_s is not None
    return by_steps or pace.exit_unix_s is not None


def exit_options(arguments: Mapping[str, str]) -> ExitOptions:
    """A job's end by its Megatron-LM options, by name."""
    minutes = positive(arguments.get("exit_duration_in_mins"))
    return ExitOptions(
        interval_steps=positive(arguments.get("exit_interval")),
        duration_s=60.0 * minutes if minutes is not None else None,
    )


def positive(text: str | None) -> int | None:
    """The whole number above 0 in an option's text; None when there is none."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and int(text) > 0 else None


def exit_unix_s(options: ExitOptions, placements: Iterable[RankPlacement]) -> float | None:
    """When a job of limited duration exits; None without a limit or without the start of its processes."""
    started_ns = [one.started_unix_ns for one in placements if one.started_unix_ns is not None]
    if options.duration_s is None or not started_ns:
        return None
    return min(started_ns) / 1e9 + options.duration_s


def limit_unix_s(placements: Iterable[RankPlacement]) -> float | None:
    """When the scheduler ends the job of these ranks at the latest; None if unknown."""
    limits = [one.time_limit_unix_s for one in placements if one.time_limit_unix_s is not None]
    return min(limits, default=None)


def _final_step(pace: Pace) -> int | None:
    """The step after which the job ends; None if unknown."""
    steps = [pace.train_steps] if pace.train_steps is not None else []
    if pace.exit_interval_steps is not None and pace.step is not None:
        intervals = max(1, math.ceil(pace.step / pace.exit_interval_steps))
        steps.append(intervals * pace.exit_interval_steps)
    return min(steps, default=None)


def _last_step(pace: Pace, now_unix_s: float) -> ExpectedEnd | None:
    final = _final_step(pace)
    if pace.step is None or final is None or pace.step_time_s is None:
        return None
    left = max(0, final - pace.step)
    since_s = max(0.0, now_unix_s - pace.stepped_unix_s) if pace.stepped_unix_s is not None else 0.0
    why = f"{left} of {final} steps left at {pace.step_time_s:.3g} s"
    return ExpectedEnd(in_s=max(0.0, left * pace.step_time_s - since_s), why=why)


def _exit_time(pace: Pace, now_unix_s: float) -> ExpectedEnd | None:
    if pace.exit_unix_s is None:
        return None
    return ExpectedEnd(in_s=max(0.0, pace.exit_unix_s - now_unix_s), why="the job's own time limit")


def _time_limit(pace: Pace, now_unix_s: float) -> ExpectedEnd | None:
    """A limit that has passed was extended: a process keeps the environment that it was started with."""
    if pace.limit_unix_s is None or pace.limit_unix_s <= now_unix_s:
        return None
    return ExpectedEnd(in_s=pace.limit_unix_s - now_unix_s, why="SLURM's time limit")


def window_s(steps: int | None, step_time_s: float | None, max_duration_s: float) -> float:
    """How long a tool collects for this many whole steps; the time limit if the step time is unknown."""
    if steps is None or step_time_s is None:
        return max_duration_s
    return min(max_duration_s, (steps + _CUT_STEPS) * step_time_s)


def writing_s(tool: CaptureTool) -> float:
    """How long the job must live after the window, for the report to be written."""
    return _WRITING_S.get(tool, 0.0)


def needed_s(tool: CaptureTool, *, lead_s: float, window_s: float, margin_s: float = MARGIN_S) -> float:
    """How long a job must still run for a capture that begins now; 0 for a tool that only reads once."""
    return 0.0 if tool in FOR_HANGS else lead_s + window_s + writing_s(tool) + margin_s


def ends_now(end: ExpectedEnd | None, tool: CaptureTool) -> str:
    """Why a running capture must be stopped now, to be written before the job's end; otherwise empty."""
    if end is None or end.in_s >= (least_s := writing_s(tool) + MARGIN_S):
        return ""
    return (
        f"The capture was stopped: the job ends in about {end.in_s:.0f} s ({end.why}), "
        f"and writing needs {least_s:.0f} s."
    )


def too_late(end: ExpectedEnd | None, tool: CaptureTool, needed_s: float) -> str:
    """Why a capture does not fit before the job's end; empty if it does, or if the end is unknown."""
    if end is None or end.in_s >= needed_s:
        return ""
    return (
        f"The job ends in about {end.in_s:.0f} s ({end.why}); a {tool.value} capture needs {needed_s:.0f} s."
    )
