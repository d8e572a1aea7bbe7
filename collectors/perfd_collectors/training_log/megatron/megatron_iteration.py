"""Megatron's iteration line in all versions and forks: an anchor, and pairs between bars in any order."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from perfd_collectors.training_log.field_text import fields, number, positive, with_suffix
from perfd_collectors.training_log.timestamps import last_timestamp_ns

# Excludes NeMo's "Training epoch 0, iteration 1/9 |".
ANCHOR = re.compile(
    r"(?<![\w/])(?<!, )iteration\s{0,40}(=?)\s{0,40}(\d{1,12})\s{0,40}(?:/\s{0,40}(\d{1,12})\s{0,40})?\|",
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
