"""Lines of a loop's own that say their step: nanoGPT, nanochat, litgpt, torchtune, and many others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser
from perfd_collectors.training_log.log_lines import LogLine
from perfd_collectors.training_log.step_fields import StepFields, add_step, numbers_in
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_STEP = re.compile(
    r"(?<![\w/.-])(?:global[ _])?(step|iter|iteration)(?: ?[:=#] ?| )\[?(?: {0,8})([0-9]{1,15})"
    r"(?: ?/ ?([0-9]{1,15}))?(?=[ :;,|)\]]|$)",
    re.IGNORECASE,
)
_LOSS_BEFORE = re.compile(
    r"(?<![\w/.-])(loss ?[:=] ?[^\s,]{1,24}), (?:[\w ]{1,40}[:=] ?[^\s,]{1,24}, ){0,3}(?:global_)?step ?[:=]"
)
"""Where a line begins with its loss, as TensorFlow's estimators and PaddleNLP print it."""
_LLM_C = re.compile(r"\| ([0-9]{1,9}\.[0-9]{1,9}) ms \| ([0-9]{1,3}\.[0-9]{1,9})% bf16 MFU \| ")
_MARKS = {
    "nanochat": ("lrm:", "tok/sec:"),
    "litgpt": ("| iter time:",),
    "torchtune": ("tokens_per_second_per_gpu:",),
    "llm.c": ("% bf16 MFU | ",),
    "paddlenlp": (", interval_steps_per_second: ",),
}
_ANCHOR_CHARS = 160
"""The step is at the beginning of a line, after times and names of loggers."""
OTHER_LINE = re.compile(
    r"\b(?:sav|load|resum|restor|checkpoint|eval|valid|val\b|test|best|skip|warm|predict|generat|sampl|infer|from|"
    r"after|every|until|max|rollout|cv\b|epoch \d+ (?:done|finished))|(?<![\w/.-])dev(?![\w/.-])|"
    r"(?:error|exception)\b",
    re.IGNORECASE,
)
LOOPS = frozenset(
    {"", "training-loop", "nanogpt", "nanochat", "litgpt", "torchtune", "lightning", "paddlenlp", "llm.c"}
)
"""Frameworks whose progress is a loop's own; other trainers print lines that perfd knows."""


class StepLineParser(FormatParser):
    """Lines with a step and a loss, a time or a rate, in any order and with any separators.

    Only numbers with a known name or unit count. A line of an evaluation is an event.
    """

    keywords: Sequence[bytes] = (b"step", b"Step", b"iter ", b"Iter", b"iteration", b"STEP")

    def parse(self, line: LogLine) -> bool:
        """Parse a complete, undamaged line."""
        if not line.complete or line.damaged or "\t" in line.text:
            return False
        text = line.text
        anchor = _anchor(text)
        framework = _framework(text)
        if self._out.description.framework not in LOOPS and framework not in {"paddlenlp", "llm.c"}:
            return False
        if anchor is None or OTHER_LINE.search(text, 0, anchor.start()):
            return False
        found = StepFields()
        for key, value, unit in numbers_in(text[anchor.end() :]):
            found.add(key, value, unit)
        if before := _LOSS_BEFORE.search(text, 0, anchor.end()):
            for key, value, unit in numbers_in(before[1]):
                found.add(key, value, unit)
        step, total = int(anchor[2]), anchor[3]
        if found.evaluates:
            self._out.event(EventKind.EVALUATION, "Evaluation.", step=step)
            return True
        if not found.losses and not found.timed:
            return False
        if framework == "llm.c" and (timed := _LLM_C.search(text)):
            found.values.update(step_time_s=float(timed[1]) / 1e3, mfu_ratio=float(timed[2]) / 100)
        if framework == "litgpt":
            _per_step(found, text, step)
        if not self._out.description.framework or framework:
            self._out.describe(framework=framework or "training-loop")
        if total is not None:
            self._out.describe(train_steps=int(total))
        add_step(self._steps, self._out.job, step, found, last_timestamp_ns(text[: anchor.start()]))
        return True


def _anchor(text: str) -> re.Match[str] | None:
    """Where a line says its step: `step` before `iter`, which may count micro-batches (litgpt)."""
    found = list(_STEP.finditer(text, 0, _ANCHOR_CHARS))
    steps = [match for match in found if match[1].lower() == "step"]
    return next(iter(steps or found), None)


def _framework(text: str) -> str | None:
    for framework, marks in _MARKS.items():
        if all(mark in text for mark in marks):
            return framework
    return "nanogpt" if ", mfu " in text and text.lstrip().startswith("iter ") else None


def _per_step(found: StepFields, text: str, step: int) -> None:
    """Litgpt times a micro-batch: a step of several is as many times as long."""
    micro = next((match for match in _STEP.finditer(text, 0, _ANCHOR_CHARS) if match[1] == "iter"), None)
    time_s = found.values.pop("step_time_s", None)
    if micro is not None and time_s is not None and step and int(micro[2]) % step == 0:
        found.values["step_time_s"] = time_s * (int(micro[2]) // step)
