"""Parser for Megatron-LM, Megatron-Bridge and compatible forks.

Their iteration line is an anchor, and pairs between bars in any order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perfd.model import JobDescription
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.megatron.megatron_description import MegatronDescription
from perfd_collectors.training_log.megatron.megatron_events import MegatronEvents
from perfd_collectors.training_log.megatron.megatron_timers import TimerBlocks, one_line_timers
from perfd_collectors.training_log.parser_output import training_step
from perfd_collectors.training_log.printed_fields import fields, number, positive, with_suffix
from perfd_collectors.training_log.timestamps import last_timestamp_ns

# Excludes NeMo's "Training epoch 0, iteration 1/9 |". A search for what begins with a fixed word is fast.
ANCHOR = re.compile(
    r"iteration(?<![\w/]iteration)(?<!, iteration)\s{0,40}(=?)\s{0,40}(\d{1,12})\s{0,40}"
    r"(?:/\s{0,40}(\d{1,12})\s{0,40})?\|",
    re.ASCII,
)
_TIMESTAMP_REACH_CHARS = 160
"""How far before the anchor its printed time may be: prefixes of launchers come between."""
_TWO_IN_ONE = re.compile(r"iteration time: ([\d.]+) s samples/sec: ([\d.]+)", re.ASCII)
_FIRST_NUMBER = re.compile(
    r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)(?:/[\d.]+)?(?: \(avg [\d.]+\))?(?:TFLOPS)?", re.ASCII
)

# Keys in lower case with spaces for underscores; field, and power of ten from the printed to the SI unit.
_RATES = {
    "elapsed time per iteration (ms)": ("step_time_s", -3),
    "elapsed time per iteration ms": ("step_time_s", -3),
    "elapsed time per iteration (s)": ("step_time_s", 0),
    "throughput per gpu (tflop/s/gpu)": ("flops_per_s_per_gpu", 12),
    "compute per gpu (tflop/s/gpu)": ("flops_per_s_per_gpu", 12),
    "approx flops per gpu": ("flops_per_s_per_gpu", 12),
    "tflops": ("flops_per_s_per_gpu", 12),
    "[lm]tflops": ("flops_per_s_per_gpu", 12),
    "samples per second": ("samples_per_s", 0),
    "samples/sec": ("samples_per_s", 0),
    "energy per gpu (j/iter/gpu)": ("energy_per_gpu_j", 0),
    "power per gpu (w/gpu)": ("power_per_gpu_w", 0),
    "tokens per gpu (tokens/s/gpu)": ("tokens_per_s_per_gpu", 0),
    "tokens/s/gpu inst/harmonic mean": ("tokens_per_s_per_gpu", 0),
    "tokens per gpu per second tgs": ("tokens_per_s_per_gpu", 0),
    "tokens/sec/gpu": ("tokens_per_s_per_gpu", 0),
    "toks/s/gpu": ("tokens_per_s_per_gpu", 0),
    "toks/s": ("tokens_per_s", 0),
    "actual seqlen": ("sequence_length", 0),
    "actual seq length": ("sequence_length", 0),
}
_PLAIN = {
    "learning rate": "learning_rate",
    "grad norm": "grad_norm",
    "loss scale": "loss_scale",
    "global batch size": "global_batch_size",
    "consumed samples": "consumed_samples",
    "consumed tokens": "consumed_tokens",
    "number of skipped iterations": "skipped_steps",
    "number of nan iterations": "nan_steps",
}
_TIMERS = ("forward", "backward", "optimizer", "batch-generator")
"""Timers in milliseconds on the line itself, which then has no number of steps to come."""

_FORKS: tuple[tuple[str, Callable[[set[str]], bool]], ...] = (
    (
        "primus",
        lambda keys: any(key.startswith(("tokens/s/gpu inst", "tokens per gpu (tok")) for key in keys),
    ),
    ("gpt-neox", lambda keys: "approx flops per gpu" in keys),
    ("megatron-deepspeed", lambda keys: bool(keys & {"samples per second", "tflops", "[lm]tflops"})),
    ("megatron-bridge", lambda keys: "max attention logit" in keys),
)
_STEP_TIME = re.compile(r"Step Time : ([\d.]+)s GPU utilization: ([\d.]+) ?MODEL_TFLOP/s/GPU", re.ASCII)
_STEP_TIME_PRECISION_S = 0.0051
"""Bridge prints step times with two decimals, so that equal ones differ by up to half of the last."""
_TAIL_OF_A_LINE = re.compile(r"number of nan iterations: +\d+ \|", re.ASCII)
_HEADER_END = "across ranks (ms):"
_ENDS_OF_A_BLOCK = ("validation loss at", "[after training is done]")
_PARTS = ("forward", "backward", "optimizer")


@dataclass(slots=True)
class Iteration:
    """Values of an iteration line in SI units, by the names of `TrainingStep` where it has them."""

    step: int
    train_steps: int | None
    printed_ns: int | None = None
    microseconds: bool = False
    """Core 0.16 and later print microseconds, and do not reset the averages after the first iteration."""
    values: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    extras: dict[str, float] = field(default_factory=dict)
    timers_s: dict[str, float] = field(default_factory=dict)
    """Timers on the line itself."""
    fork: str | None = None
    complete: bool = True


def iterations(text: str, *, complete: bool) -> list[Iteration]:
    """All iteration lines on one physical line (several writers may merge), with their terminated fields.

    `complete`: no field of the last one is missing.
    """
    anchors = list(ANCHOR.finditer(text))
    found = []
    for index, anchor in enumerate(anchors):
        last = index + 1 == len(anchors)
        end = len(text) if last else anchors[index + 1].start()
        before = text[max(0, anchor.start() - _TIMESTAMP_REACH_CHARS) : anchor.start()]
        iteration = Iteration(
            step=int(anchor[2]),
            train_steps=int(anchor[3]) if anchor[3] else None,
            printed_ns=last_timestamp_ns(before),
            complete=complete or not last,
        )
        iteration.microseconds = not anchor[1] and bool(re.search(r"\d\d:\d\d\.\d{6}\]\s*$", before))
        # Without a total it is a line of examples, whose last field ends with the line.
        pairs = fields(text[anchor.end() : end], complete=iteration.complete and not anchor[3])
        if index == 0:
            # GPT-NeoX prints its rate before the anchor.
            pairs += [
                pair for pair in fields(text[: anchor.start()], complete=False) if pair[0] == "samples/sec"
            ]
        for key, value in pairs:
            _add_field(iteration, key, value)
        if iteration.train_steps is None and not iteration.timers_s:
            continue
        keys = {key.lower().replace("_", " ") for key, _ in pairs}
        iteration.fork = next((name for name, is_fork in _FORKS if is_fork(keys)), None)
        # Other trainers have similar lines, but without these fields.
        if "step_time_s" in iteration.values or any(key == "consumed samples" for key, _ in pairs):
            found.append(iteration)
    return found


def _add_field(iteration: Iteration, key: str, text: str) -> None:
    both = _TWO_IN_ONE.fullmatch(f"{key}: {text}")
    if both:
        _put(iteration.values, "step_time_s", positive(both[1]))
        _put(iteration.values, "samples_per_s", positive(both[2]))
        return
    known = key.lower().replace("_", " ")
    if known in _RATES:
        name, power = _RATES[known]
        value = _first(text, power)
        if value is not None and value > 0:
            _put(iteration.values, name, value)
        if name in {"tokens_per_s_per_gpu", "sequence_length"}:
            _put(iteration.extras, key, value)
    elif known in _PLAIN:
        value = with_suffix(text) if known == "consumed tokens" else number(text)
        _put(iteration.values, _PLAIN[known], value)
    elif iteration.train_steps is None and key.startswith(_TIMERS):
        _put(iteration.timers_s, key, number(text, -3))
    elif "loss" in known:
        _put(iteration.losses, key, number(text))
    else:
        _put(iteration.extras, key, _first(text))


def _first(text: str, power: int = 0) -> float | None:
    """The first number of a value that may also have an average: `496.3 (avg 496.1)`, `9640.7/9629.8`."""
    match = _FIRST_NUMBER.fullmatch(text)
    return with_suffix(text, power) if match is None else number(match[1], power)


def _put(target: dict[str, float], name: str, value: float | None) -> None:
    """Set a finite value; the first one of a repeated name stays, because two lines may have merged."""
    if value is not None and math.isfinite(value):
        target.setdefault(name, value)


class MegatronParser(FormatParser):
    """One log of a Megatron job. Steps and description are shared with the job's other logs."""

    takes_damaged = takes_incomplete = True
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
        b"Evaluating iter",
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
        self._steps.timers(timers)
        return True

    def _iteration(self, found: Iteration) -> None:
        self._events.iteration(found.step, found.printed_ns)
        # Printed microseconds mean core 0.16, energy 0.13; attention counts as causal since 0.12.
        causal = found.microseconds or "energy_per_gpu_j" in found.values
        self._description.identify(found.fork, found.train_steps, causal=causal)
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
        self._steps.timers(found.timers_s)

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
