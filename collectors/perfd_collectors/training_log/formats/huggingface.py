"""Hugging Face transformers' Trainer, which prints a Python dict per logging step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind, TrainingStep
from perfd_collectors.training_log.format_parser import LogContext
from perfd_collectors.training_log.line_buffer import LogLine
from perfd_collectors.training_log.number_text import grouped, number
from perfd_collectors.training_log.step_log import ProgressSource

_DICT = re.compile(r"\{('(loss|eval_\w+|train_runtime)': [^{}]*)\}", re.ASCII)
_PAIR = re.compile(r"'([\w/.-]+)': '?([^',]+)'?(?=,|$)", re.ASCII)
_BAR = re.compile(r"%\|[^|]{0,1000}\| {1,40}(\d{1,15})/(\d{1,15}) \[", re.ASCII)
_SIZES = re.compile(
    r"\b(Total optimization steps|Total train batch size \([^()]*\)|Instantaneous batch size per device|"
    r"Number of trainable parameters) += +([\d,]+)\s*$",
    re.ASCII,
)
_SAVED = re.compile(r"Saving model checkpoint to \S*checkpoint-(\d{1,15})\s*$", re.ASCII)
_RUNNING = "***** Running training *****"


class HuggingFaceParser:
    """One log of a Trainer.

    The dict has no step number. The progress bar beside it has; without a bar the
    step is the number of dicts, times the logging interval if known.
    """

    keywords: Sequence[bytes] = (
        b"{'",
        b"%|",
        b"***** Running training",
        b"Total optimization steps",
        b"batch size ",
        b"Number of trainable parameters",
        b"Saving model checkpoint to",
    )

    def __init__(self, job: LogContext) -> None:
        self._out = job.out
        self._steps = job.steps
        self._count = 0
        self._last_bar: tuple[int, int] | None = None
        self._total: int | None = None

    in_block = False

    def parse(self, line: LogLine) -> bool:
        """Parse a complete line."""
        if not line.complete:
            return False
        bar = self._bar(line.text)
        return self._dict(line.text) or self._about(line.text) or bar

    def settle(self) -> None:
        """Nothing is pending."""

    def finish(self) -> None:
        """Nothing is pending."""

    def _bar(self, text: str) -> bool:
        bar = None
        for bar in _BAR.finditer(text):
            self._last_bar = int(bar[1]), int(bar[2])
        return bar is not None

    def _step_of_bar(self) -> int | None:
        """The step of the training bar; evaluation has a separate bar with another total."""
        if self._last_bar is None:
            return None
        step, total = self._last_bar
        if self._total is None:
            # The bar at the time of the first loss is the training bar.
            self._total = total
        return step if total == self._total else None

    def _dict(self, text: str) -> bool:
        match = _DICT.search(text)
        if match is None:
            return False
        pairs = dict(_PAIR.findall(match[1]))
        values = {name: value for name, figure in pairs.items() if (value := number(figure)) is not None}
        self._out.describe(framework="hf-trainer")
        if match[2] == "train_runtime":
            self._out.event(
                EventKind.JOB_ENDED, "Training is done.", step=self._steps.last_step, values=values
            )
        elif match[2] == "loss":
            self._log(values)
        else:
            duration_s = values.get("eval_runtime")
            message = "Evaluation."
            step = self._steps.last_step
            self._out.event(EventKind.EVALUATION, message, step=step, duration_s=duration_s, values=values)
        return True

    def _log(self, values: dict[str, float]) -> None:
        self._count += 1
        interval = self._out.description.log_interval_steps or 1
        step = self._step_of_bar() or self._count * interval
        loss = values.pop("loss", None)
        self._steps.add(
            TrainingStep(
                job=self._out.job,
                step=step,
                losses={} if loss is None else {"loss": loss},
                grad_norm=values.pop("grad_norm", None),
                learning_rate=values.pop("learning_rate", None),
                global_batch_size=self._out.description.parallel.global_batch_size,
                extras=values,
            ),
            None,
            family=ProgressSource.HUGGING_FACE,
        )

    def _about(self, text: str) -> bool:
        if _RUNNING in text:
            self._out.describe(framework="hf-trainer")
            self._steps.started()
            self._count = 0
            return True
        if match := _SAVED.search(text):
            message = f"Saving the checkpoint of step {match[1]}."
            self._out.event(EventKind.CHECKPOINT, message, step=int(match[1]))
            return True
        match = _SIZES.search(text)
        size = grouped(match[2]) if match else None
        if match is None or size is None:
            return False
        if match[1] == "Total optimization steps":
            self._total = int(size)
            self._out.describe(train_steps=self._total)
        elif match[1].startswith("Total train batch size"):
            self._out.describe_layout(global_batch_size=int(size))
        elif match[1].startswith("Instantaneous"):
            self._out.describe_layout(micro_batch_size=int(size))
        else:
            self._out.describe(parameters=size)
        return True
