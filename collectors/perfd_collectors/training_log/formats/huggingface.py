"""Hugging Face transformers' Trainer and trainers on it (TRL, Axolotl, LLaMA-Factory, ms-swift).

They print a Python dict per logging step; since transformers 5 its numbers are strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.parser_output import training_step
from perfd_collectors.training_log.printed_fields import grouped, number
from perfd_collectors.training_log.progress_bar_log import DENSE_STEPS, DrawnStep
from perfd_collectors.training_log.step_order import ProgressSource

_DICT = re.compile(r"\{('(loss|eval_\w+|train_runtime)': [^{}]*)\}", re.ASCII)
_PAIR = re.compile(r"'([\w/.()-]+)': '?([^',]+)'?(?=,|$)", re.ASCII)
_BAR = re.compile(r"%\|[^|]{0,1000}\| {1,40}(\d{1,15})/(\d{1,15}) \[", re.ASCII)
_OF = re.compile(r"(\d{1,15})/\d{1,15}", re.ASCII)
_SIZES = re.compile(
    r"\b(Num Epochs|Total optimization steps|Total train batch size \([^()]*\)|"
    r"Instantaneous batch size per device|Number of trainable parameters) += +([\d,]+)\s*$",
    re.ASCII,
)
_SAVED = re.compile(r"Saving model checkpoint to \S*checkpoint-(\d{1,15})\s*$", re.ASCII)
_RUNNING = "***** Running training *****"
_OWN_STEPS = {"step", "global_step", "iter", "it"}
_TOKENS_SEEN = ("num_input_tokens_seen", "num_tokens")
_RESOLUTIONS = 50
"""A time between two lines counts when it is so many times what their last digits resolve: 2%."""
_EPOCH_ERROR = 0.25
"""Most by which a step that was computed of a rounded epoch is from a whole number. Chosen."""
_MAX_STEPS_PER_EPOCH = 2000
"""With more, an epoch of four digits after the point is not one step."""


@dataclass(frozen=True, slots=True)
class _Clock:
    """What the previous dict said."""

    step: int
    runtime_s: float | None
    tokens: float | None


class HuggingFaceParser(FormatParser):
    """One log of a Trainer.

    Most dicts have no step number. The progress bar that is drawn again after a
    dict has it, also from another log of the job; with the sizes at the start the
    epoch shows it, too. A dict whose step nothing shows does not count as a step.
    """

    takes_damaged = True
    keywords: Sequence[bytes] = (
        b"{'",
        b"***** Running training",
        b"Num Epochs = ",
        b"Total optimization steps",
        b"batch size ",
        b"Number of trainable parameters",
        b"Saving model checkpoint to",
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._bars = job.bars
        self._epochs: int | None = None
        self._total: int | None = None
        self._before: _Clock | None = None

    def parse(self, line: LogLine) -> bool:
        return self._dict(line.text) or self._about(line.text)

    def flush(self) -> None:
        """Give lines after a bar that is never drawn again the bar's step."""
        self._bars.flush()

    def _dict(self, text: str) -> bool:
        match = _DICT.search(text)
        if match is None:
            return False
        pairs = dict(_PAIR.findall(match[1]))
        if pairs.keys() & _OWN_STEPS:
            # A loop's own dict, or an entry of Trainer's log history: the line says all of it.
            return False
        values = {name: value for name, figure in pairs.items() if (value := number(figure)) is not None}
        self._out.describe(framework="hf-trainer")
        if match[2] == "train_runtime":
            self._out.event(
                EventKind.JOB_ENDED, "Training is done.", step=self._steps.last_step, values=values
            )
        elif match[2] == "loss":
            self._place(pairs, values, text[: match.start()])
            return True
        else:
            duration_s = values.get("eval_runtime")
            message = "Evaluation."
            step = self._steps.last_step
            self._out.event(EventKind.EVALUATION, message, step=step, duration_s=duration_s, values=values)
        # These clear the bar, too.
        self._bars.when_drawn(_nothing, self._bars.drawn)
        return True

    def _place(self, pairs: Mapping[str, str], values: dict[str, float], front: str) -> None:
        """Find the step of a dict with a loss."""
        clock = values.get("train_runtime")
        resolution_s = _resolution(pairs.get("train_runtime", ""))
        if said := _OF.fullmatch(pairs.get("global_step/max_steps", pairs.get("iteration", ""))):
            step = int(said[1])
            if speed := _speed_of(values):
                # ms-swift's speed, of six digits after the point, is a mean since the start.
                clock, resolution_s = step / speed, step / speed**2 * 1e-6
            self._log(DrawnStep(step, None), values, clock, resolution_s)
            return
        bar = next(reversed(list(_BAR.finditer(front))), None)
        if bar is not None:
            near = self._bars.drawn
            time_s = near.step_time_s if near is not None and near.step == int(bar[1]) else None
            self._log(DrawnStep(int(bar[1]), time_s), values, clock, resolution_s)
            return
        by_epoch = self._step_of_epoch(values)
        if by_epoch is not None:
            drawn = self._bars.drawn
            self._log(DrawnStep(by_epoch, drawn.step_time_s if drawn else None), values, clock, resolution_s)
            return
        self._bars.when_drawn(lambda drawn: self._log(drawn, values, clock, resolution_s), self._bars.drawn)

    def _step_of_epoch(self, values: Mapping[str, float]) -> int | None:
        """The step by the epoch, where the sizes at the start make it exact enough to be one step."""
        epoch = values.get("epoch")
        if epoch is None or not self._epochs or not self._total:
            return None
        step = epoch * self._total / self._epochs
        # Epochs are printed with two to four digits after the point.
        exact = abs(step - round(step)) <= _EPOCH_ERROR and self._total / self._epochs <= _MAX_STEPS_PER_EPOCH
        return round(step) if exact and step >= 1 else None

    def _log(
        self, drawn: DrawnStep, values: dict[str, float], runtime_s: float | None, resolution_s: float
    ) -> None:
        values = dict(values)
        loss = values.pop("loss", None)
        seen = next((values[key] for key in _TOKENS_SEEN if key in values), None)
        now = _Clock(drawn.step, runtime_s, seen)
        before, self._before = self._before, now
        apart = now.step - before.step if before is not None else now.step
        self._bars.line_steps = max(0, apart)
        time_s = values.pop("step_time", None)
        tokens = None
        if before is not None and before.step < drawn.step:
            steps = drawn.step - before.step
            if time_s is None and runtime_s is not None and before.runtime_s is not None:
                passed_s = runtime_s - before.runtime_s
                if passed_s >= _RESOLUTIONS * resolution_s > 0:
                    time_s = passed_s / steps
            if seen is not None and before.tokens is not None and seen > before.tokens:
                tokens = (seen - before.tokens) / steps
        time_s = time_s or drawn.step_time_s
        fields = {
            "step_time_s": time_s,
            "tokens_per_s": tokens / time_s if tokens and time_s else None,
            "consumed_tokens": seen,
            "grad_norm": values.pop("grad_norm", None),
            "learning_rate": values.pop("learning_rate", None),
            "global_batch_size": self._out.description.parallel.global_batch_size,
        }
        losses = {} if loss is None else {"loss": loss}
        line = training_step(self._out.job, drawn.step, fields, losses, values)
        if apart <= DENSE_STEPS or self._bars.drawn is None:
            self._steps.add(line, None, family=ProgressSource.HUGGING_FACE)
        else:
            self._steps.amend(line)

    def _about(self, text: str) -> bool:
        if _RUNNING in text:
            self._out.describe(framework="hf-trainer")
            self._steps.started()
            self._bars.restart()
            self._before = self._epochs = self._total = None
            return True
        if match := _SAVED.search(text):
            message = f"Saving the checkpoint of step {match[1]}."
            self._out.event(EventKind.CHECKPOINT, message, step=int(match[1]))
            return True
        match = _SIZES.search(text)
        size = grouped(match[2]) if match else None
        if match is None or size is None:
            return False
        if match[1] == "Num Epochs":
            self._epochs = int(size)
        elif match[1] == "Total optimization steps":
            self._total = self._bars.total = int(size)
            self._out.describe(train_steps=self._total)
        elif match[1].startswith("Total train batch size"):
            self._out.describe_layout(global_batch_size=int(size))
        elif match[1].startswith("Instantaneous"):
            self._out.describe_layout(micro_batch_size=int(size))
        else:
            self._out.describe(parameters=size)
        return True


def _nothing(_drawn: DrawnStep) -> None:
    """A line without a loss needs no step, but the bar is drawn again after it."""


def _resolution(text: str) -> float:
    """The last digit of a printed time, in seconds: 0.01 of `12.31`, 10 of `1.23e+03`."""
    if number(text) is None:
        return 0.0
    digits, _, power = text.strip().lower().partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def _speed_of(values: Mapping[str, float]) -> float | None:
    """Steps per second, as ms-swift prints them; None without."""
    per_step = values.get("train_speed(s/it)")
    return 1 / per_step if per_step else values.get("train_speed(iter/s)")
