"""A process's configuration for one trace, as libkineto's text of `KEY=VALUE` lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfd.errors import CaptureError

ACTIVITIES = (
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
    "gpu_memcpy",
    "gpu_memset",
    "kernel",
    "cuda_runtime",
    "cuda_driver",
)
"""The kinds that perfd's analysis reads. libkineto skips kinds unknown to its build, with a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOrder:
    """One trace: what, when, where to."""

    output: PurePosixPath
    """As the process sees it; libkineto puts `_PID` before `.json`."""
    start_unix_ms: int
    duration_ms: int
    warmup_s: int
    trace_id: str
    iterations: int | None = None
    """Optimizer steps instead of a duration, if the process reports them; otherwise it uses the duration."""
    iteration_roundup: int = 1
    """Start at the next multiple, so that ranks that poll at different times start at the same step."""


def render(order: TraceOrder) -> str:
    """The text; raises `CaptureError` if the path could not be read back from it."""
    path = str(order.output)
    # Exactly one `=` per line: otherwise libkineto gives up after it has promised to trace.
    if "=" in path or "\n" in path or not path.endswith(".json"):
        raise CaptureError(f"libkineto cannot use {path!r}: the path contains '='.")
    lines = [
        f"ACTIVITIES_LOG_FILE={path}",
        f"ACTIVITY_TYPES={','.join(ACTIVITIES)}",
        f"ACTIVITIES_WARMUP_PERIOD_SECS={order.warmup_s}",
        f"ACTIVITIES_DURATION_MSECS={order.duration_ms}",
        f"PROFILE_START_TIME={order.start_unix_ms}",
        f"REQUEST_TRACE_ID={order.trace_id}",
    ]
    if order.iterations is not None:
        # An iteration of 0 is in the past: it means "the next multiple of the roundup".
        lines += [
            "PROFILE_START_ITERATION=0",
            f"PROFILE_START_ITERATION_ROUNDUP={order.iteration_roundup}",
            f"ACTIVITIES_ITERATIONS={order.iterations}",
        ]
    return "\n".join(lines) + "\n"


def parse(text: str) -> dict[str, str]:
    """The keys of a text; lines without exactly one `=` are skipped. For stand-in clients."""
    pairs: Sequence[Sequence[str]] = [line.split("=") for line in text.splitlines() if line[:1] != "#"]
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}
