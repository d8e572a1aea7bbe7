"""DeepSpeed: throughput, progress, wall-clock breakdown, pipeline engine, FLOPS profiler."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.megatron import one_line_timers
from perfd_collectors.training_log.printed_fields import integer, is_plain_key, number, positive, with_suffix
from perfd_collectors.training_log.step_order import ProgressSource
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_GIB = 1024.0**3
"""Bytes per GiB."""
_NUMBER = r"[\d.]+(?:[eE][+-]?\d+)?"
_THROUGHPUT = re.compile(
    rf"(?:epoch=\d+/micro_step=\d+/global_step=(\d{{1,15}}), RunningAvgSamplesPerSec=({_NUMBER}), "
    rf"CurrSamplesPerSec=({_NUMBER})|\s\d+/(\d{{1,15}}), SamplesPerSec=({_NUMBER}))"
    rf"(?:, MemAllocated=({_NUMBER})GB, MaxMemAllocated=({_NUMBER})GB)?\s*$",
    re.ASCII,
)
_PROGRESS = re.compile(r"\bstep=(\d{1,15}), skipped=(\d{1,15}), lr=\[([^\[\]]*)\], mom=", re.ASCII)
_PIPELINE = re.compile(
    rf"\bsteps: (\d{{1,15}}) loss: +({_NUMBER}|nan|inf|None) (?:[\w.-]+: +(?:{_NUMBER}|nan) )*"
    rf"iter time \(s\): +({_NUMBER}) samples/sec: +({_NUMBER})\s*$",
    re.ASCII,
)
_CONFIG = re.compile(r"\[config\.py:\d+:\w+\] +(\w+) (?:\.+ | )(\S(?:.*\S)?)\s*$", re.ASCII)
_VERSION = re.compile(r"DeepSpeed info: version=([\w.+-]+),", re.ASCII)
_PROFILER = re.compile(r"-{5} DeepSpeed Flops Profiler -{5}")
_PROFILER_ROW = re.compile(
    r"([a-zA-Z][^:]{2,90}): +([\d.,]+) ?([KMGTP]?)(?:FLOPS|MACs|B|s|ms|us)?\s*$", re.ASCII
)
_MAX_PROFILER_LINES = 60
"""A longer report of the FLOPS profiler has lost its end."""
_MAX_VALUE_CHARS = 200
"""Longer configuration values are cut."""
_WHOLE_STEP = frozenset({"forward", "fwd"})
_PIPELINE_TIMERS = frozenset({"pipe_send_output", "pipe_recv_input"})
_PIPELINE_MICRO_STEP = "batch_input"


class DeepSpeedParser(FormatParser):
    """One log of a DeepSpeed job."""

    takes_damaged = True
    keywords: Sequence[bytes] = (
        b"SamplesPerSec=",
        b", skipped=",
        b"time (ms)",
        b"iter time (s):",
        b"[config.py:",
        b"DeepSpeed info: version",
        b"DeepSpeed Flops Profiler",
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._progress: tuple[int, int, float | None] | None = None
        self._phases: dict[str, float] = {}
        self._profiler_rows: dict[str, float] | None = None
        self._profiler_lines = 0

    @property
    def in_block(self) -> bool:
        """Inside a report of the FLOPS profiler."""
        return self._profiler_rows is not None

    def parse(self, line: LogLine) -> bool:
        text = line.text
        return (
            (self._profiler_rows is not None and self._profiler_row(text))
            or self._throughput(line)
            or self._progress_line(text)
            or self._pipeline(text)
            or self._breakdown(text)
            or self._config(text)
            or self._profiler(text)
            or "comm op: " in text
        )

    def finish(self) -> None:
        """Emit the profiler's report if the log ends inside it."""
        self._end_profiler()

    def _is_deepspeed(self) -> None:
        self._out.describe_framework("deepspeed")

    def _throughput(self, line: LogLine) -> bool:
        match = _THROUGHPUT.search(line.text)
        if match is None:
            return False
        step = int(match[1] or match[4])
        running, current = number(match[2] or ""), positive(match[3] or match[5])
        skipped, learning_rate = self._progress_of(step)
        batch = self._out.description.parallel.global_batch_size
        self._is_deepspeed()
        self._add_step(
            step,
            {
                "samples_per_s": current,
                "step_time_s": batch / current if batch and current else None,
                "global_batch_size": batch,
                "learning_rate": learning_rate,
            },
            {},
            {
                **({} if running is None else {"RunningAvgSamplesPerSec": running}),
                **({} if skipped is None else {"skipped": float(skipped)}),
            },
            printed_ns=last_timestamp_ns(line.text),
            family=ProgressSource.DEEPSPEED,
        )
        now, peak = number(match[6] or ""), number(match[7] or "")
        if now is not None and peak is not None:
            # The throughput timer logs only on rank 0.
            rank = line.rank or 0
            self._out.memory(step, rank, allocated_bytes=now * _GIB, max_allocated_bytes=peak * _GIB)
        return True

    def _progress_of(self, step: int) -> tuple[int | None, float | None]:
        progress, self._progress = self._progress, None
        return (progress[1], progress[2]) if progress and progress[0] == step else (None, None)

    def _progress_line(self, text: str) -> bool:
        """`step=40, skipped=2, lr=[5e-05]`, skipped since the start; the throughput line follows."""
        match = _PROGRESS.search(text)
        if match is None:
            return False
        self._is_deepspeed()
        self._progress = (int(match[1]), int(match[2]), number(match[3].split(",")[0]))
        return True

    def _pipeline(self, text: str) -> bool:
        match = _PIPELINE.search(text)
        if match is None:
            return False
        self._is_deepspeed()
        loss = number(match[2])
        skipped, learning_rate = self._progress_of(int(match[1]))
        self._add_step(
            int(match[1]),
            {
                "step_time_s": number(match[3]),
                "samples_per_s": number(match[4]),
                "global_batch_size": self._out.description.parallel.global_batch_size,
                "learning_rate": learning_rate,
            },
            {} if loss is None else {"loss": loss},
            {} if skipped is None else {"skipped": float(skipped)},
            printed_ns=last_timestamp_ns(text),
            family=ProgressSource.DEEPSPEED,
        )
        return True

    def _breakdown(self, text: str) -> bool:
        """Timers of a micro-step, of the optimizer's parts, or of the step, in this order."""
        timers = one_line_timers(text)
        if timers is None:
            return False
        self._is_deepspeed()
        # Each micro-step has a line; later ones replace it, and the step's line has the sums.
        self._phases.update(timers)
        # The pipeline engine prints the step's timers before the step, and its own after it.
        whole = _WHOLE_STEP & timers.keys() and _PIPELINE_MICRO_STEP not in self._phases
        if whole or _PIPELINE_TIMERS & timers.keys():
            phases, self._phases = self._phases, {}
            self._steps.timers(phases)
        return True

    def _config(self, text: str) -> bool:
        if match := _VERSION.search(text):
            self._is_deepspeed()
            if self._out.description.framework == "deepspeed":
                self._out.describe(framework_version=match[1])
            return True
        match = _CONFIG.search(text)
        if match is None:
            return False
        name, value = match.groups()
        self._is_deepspeed()
        self._out.add_arguments({name: value[:_MAX_VALUE_CHARS]})
        sizes = {
            "train_batch_size": "global_batch_size",
            "train_micro_batch_size_per_gpu": "micro_batch_size",
        }
        if name in sizes:
            self._out.describe_layout(**{sizes[name]: integer(value)})
        elif name == "world_size":
            self._out.describe_layout(world_size=integer(value))
        elif name == "steps_per_print":
            self._out.describe(log_interval_steps=integer(value) or None)
        elif name in {"bfloat16_enabled", "fp16_enabled"} and value == "True":
            self._out.describe(precision="bf16" if name == "bfloat16_enabled" else "fp16")
        return True

    def _profiler(self, text: str) -> bool:
        if not _PROFILER.search(text):
            return False
        self._is_deepspeed()
        self._profiler_rows = {}
        self._profiler_lines = 0
        return True

    def _profiler_row(self, text: str) -> bool:
        self._profiler_lines += 1
        match = _PROFILER_ROW.match(text)
        if match is not None and self._profiler_rows is not None:
            value = with_suffix(match[2].replace(",", "") + match[3])
            if value is not None and is_plain_key(match[1]):
                self._profiler_rows[match[1].strip()] = value
        if (text.startswith("-----") and self._profiler_rows) or self._profiler_lines > _MAX_PROFILER_LINES:
            self._end_profiler()
        return match is not None

    def _end_profiler(self) -> None:
        rows, self._profiler_rows = self._profiler_rows, None
        if rows is not None:
            message = "DeepSpeed's FLOPS profiler ran and slowed this iteration."
            self._out.event(EventKind.PROFILE, message, step=self._steps.last_step, values=rows)
