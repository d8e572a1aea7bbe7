"""Parser for Megatron-LM, Megatron-Bridge and compatible forks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import JobDescription, PhaseTime
from perfd_collectors.training_log.field_text import positive
from perfd_collectors.training_log.format_parser import FormatParser, LogContext
from perfd_collectors.training_log.log_lines import LogLine
from perfd_collectors.training_log.megatron.megatron_description import MegatronDescription
from perfd_collectors.training_log.megatron.megatron_events import MegatronEvents
from perfd_collectors.training_log.megatron.megatron_iteration import ANCHOR, Iteration, iterations
from perfd_collectors.training_log.megatron.megatron_timers import TimerBlocks, one_line_timers
from perfd_collectors.training_log.parser_output import training_step

_STEP_TIME = re.compile(r"Step Time : ([\d.]+)s GPU utilization: ([\d.]+) ?MODEL_TFLOP/s/GPU", re.ASCII)
_STEP_TIME_PRECISION_S = 0.0051
"""Bridge prints step times with two decimals, so that equal ones differ by up to half of the last."""
_TAIL_OF_A_LINE = re.compile(r"number of nan iterations: +\d+ \|", re.ASCII)
_HEADER_END = "across ranks (ms):"
_ENDS_OF_A_BLOCK = ("validation loss at", "[after training is done]")
_PARTS = ("forward", "backward", "optimizer")


class MegatronParser(FormatParser):
    """One log of a Megatron job. Steps and description are shared with the job's other logs."""

    keywords: Sequence[bytes] = (
        b"iteration",
        b"across ranks (ms):",
        b"time (ms) |",
        b" arguments ---",
        b"/Rnk: ",
        b"^^^^ ",
        b"padded vocab",
        b"umber of parameters ",
        b"Theoretical memory",
        b"using world size",
        b"Megatron-Core version",
        b"datetime: ",
        b"Step Time :",
        b"memory (",
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._timers = TimerBlocks()
        self._description = MegatronDescription(job.out)
        self._events = MegatronEvents(job)
        self._bridge: tuple[float, float] | None = None

    @property
    def in_block(self) -> bool:
        """Inside a timer block or the arguments dump."""
        return self._timers.open or self._description.in_dump

    def parse(self, line: LogLine) -> bool:
        """Parse a line. An incomplete line only yields an iteration's terminated fields."""
        text = line.text
        if "iteration" in text and ANCHOR.search(text):
            whole = line.complete and text.isascii() and not line.damaged
            if found := iterations(text, complete=whole):
                self._end_block()
                for iteration in found:
                    self._iteration(iteration)
                return True
        if not line.complete:
            return False
        if any(mark in text for mark in _ENDS_OF_A_BLOCK):
            self._end_block()
        return self._dump_row(text) or self._timer_line(text) or self._other(text)

    def flush(self) -> None:
        """Emit the open block, which is complete because its rows are printed at once."""
        self._end_block()

    def finish(self) -> None:
        """Emit the open block and a checkpoint without duration."""
        self._end_block()
        self._events.end_checkpoint(None)

    def _dump_row(self, text: str) -> bool:
        taken, arguments = self._description.row_of_dump(text)
        if arguments is not None:
            self._events.arguments(arguments)
        return taken

    def _timer_line(self, text: str) -> bool:
        if self._timers.open and self._timers.row(text):
            return True
        if self._timers.overdue:
            self._end_block()
        if not text.rstrip().endswith(_HEADER_END):
            return False
        self._end_block()
        opened = self._timers.header(text)
        if opened:
            self._description.framework("megatron-lm")
            # Another writer's line may have merged with the header.
            self._events.line(text)
        return opened

    def _other(self, text: str) -> bool:
        known = (
            self._events.line(text)
            or self._description.line(text)
            or self._rates(text)
            or self._one_line(text)
        )
        if known:
            if "memory (GB)" in text:
                self._description.framework("megatron-bridge")
            elif "/Rnk: " in text or "memory (MB)" in text:
                self._description.framework("megatron-lm")
        elif _TAIL_OF_A_LINE.search(text):
            self._steps.truncated_line()
        return known

    def _end_block(self) -> None:
        block = self._timers.close()
        if block is not None:
            self._steps.phases(block.of_step)
            self._events.timers(block.of_event)

    def _rates(self, text: str) -> bool:
        """Megatron-Bridge prints the rate of an iteration on a separate line, on rank 0."""
        match = _STEP_TIME.search(text)
        if match is None:
            return False
        time_s, flops = positive(match[1]), positive(match[2], 12)
        self._bridge = (time_s, flops) if time_s and flops else None
        self._description.framework("megatron-bridge")
        return True

    def _one_line(self, text: str) -> bool:
        timers = one_line_timers(text)
        if timers is None or not all(any(name.startswith(part) for name in timers) for part in _PARTS):
            # Not DeepSpeed's own lines, which have no optimizer timer.
            return False
        self._description.framework("megatron-lm")
        self._steps.phases({name: PhaseTime(max_s=value) for name, value in timers.items()})
        return True

    def _iteration(self, found: Iteration) -> None:
        self._events.iteration(found.step, found.printed_ns)
        self._description.identify(found)
        values = dict(found.values)
        if found.complete:
            self._rate_of_bridge(values)
            self._derive(values, self._out.description if self._is_described(found) else None)
        step = training_step(self._out.job, found.step, values, found.losses, found.extras)
        self._steps.add(
            step,
            found.printed_ns,
            keeps_first=found.microseconds,
            interval=self._out.description.log_interval_steps if self._is_described(found) else None,
        )
        self._steps.phases({name: PhaseTime(max_s=value) for name, value in found.timers_s.items()})

    def _is_described(self, found: Iteration) -> bool:
        """Whether the description fits the job that printed the line; two jobs may share a stream."""
        train_iters = self._out.description.arguments.get("train_iters", "None")
        return found.train_steps is None or train_iters in {"None", str(found.train_steps)}

    def _rate_of_bridge(self, values: dict[str, float]) -> None:
        bridge, self._bridge = self._bridge, None
        if bridge is None or "step_time_s" not in values or "flops_per_s_per_gpu" in values:
            return
        if abs(bridge[0] - values["step_time_s"]) <= _STEP_TIME_PRECISION_S:
            values["flops_per_s_per_gpu"] = bridge[1]

    def _derive(self, values: dict[str, float], job: JobDescription | None) -> None:
        """Add rates that follow from a complete line; truncated ones may lack printed rates."""
        batch, time_s = values.get("global_batch_size"), values.get("step_time_s")
        if "samples_per_s" not in values and batch and time_s:
            values["samples_per_s"] = batch / time_s
        if "tokens_per_s" in values:
            return
        length = values.get("sequence_length") or (job and job.model and job.model.sequence_length)
        per_gpu = values.get("tokens_per_s_per_gpu")
        if batch and time_s and length:
            values["tokens_per_s"] = batch * length / time_s
        elif per_gpu is not None and job is not None and job.parallel.world_size:
            values["tokens_per_s"] = per_gpu * job.parallel.world_size
