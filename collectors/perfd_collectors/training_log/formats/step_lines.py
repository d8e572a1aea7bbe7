"""Lines of a loop's own that say their step: nanoGPT, nanochat, litgpt, prime-rl, and many others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.formats.loops.epoch_numbering import EpochHeadings
from perfd_collectors.training_log.formats.loops.line_words import KEYWORDS, in_english
from perfd_collectors.training_log.printed_fields import number, plain_numbers, positive
from perfd_collectors.training_log.step_fields import StepFields, add_step, numbers_in
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_COUNT = r"[0-9]{1,3}(?:[,_][0-9]{3}){1,4}(?![0-9])|[0-9]{1,15}"
"""Also with separators of thousands."""
_STEP = re.compile(
    r"(?<![\w/.-])(?:(?:global|train)[ _]?|num[ _](?=updates))?(step|iter|iteration|updates?|it)"
    rf"(?: ?[:=#] ?| |\.\.\. \()\[?(?: {{0,8}})({_COUNT})(?: ?/ ?({_COUNT}))?(?=[ :;|)\]]|,(?![0-9])|$)",
    re.IGNORECASE,
)
_MAY_SAY_STEP = re.compile(
    r"[sSiIuU](?:[tT][eE][pP]|[tT](?:[eE][rR](?:[aA][tT][iI][oO][nN])?)?|[pP][dD][aA][tT][eE][sS]?)"
    r"(?: ?[:=#] ?| |\.\.\. \()\[?(?: {0,8})[0-9]"
)
"""A part of `_STEP` that is searched three times as fast, because it begins with few letters."""
_BATCH = re.compile(
    rf"(?<![\w/.-])(?:mini-?)?(batch)(?: ?[:=#] ?| )\[?(?: {{0,8}})({_COUNT})(?: ?/ ?({_COUNT}))?"
    r"(?=[ :;|)\]]|,(?![0-9])|$)",
    re.IGNORECASE,
)
"""Below the heading of an epoch."""
_BEFORE = re.compile(r"(?<![\w./=-])([A-Za-z_][\w./]{0,60})=([^\s,;=]{1,40})(?=[\s,;])")
"""Numbers in front of the step, as of loggers that sort their names."""
_LOSS_BEFORE = re.compile(
    r"(?<![\w/.-])(loss ?[:=] ?[^\s,]{1,24}), (?:[\w ]{1,40}[:=] ?[^\s,]{1,24}, ){0,3}(?:global_)?step ?[:=]"
)
"""Where a line begins with its loss, as TensorFlow's estimators and PaddleNLP print it."""
_NUMBERS = re.compile(r"[-+]?[0-9][0-9.,:e+-]*|\s+")
_FIGURE = r"([0-9][0-9.e+-]{0,19})"


@dataclass(frozen=True, slots=True)
class _Loop:
    """Lines of one library."""

    marks: Sequence[str]
    """All of them are on each of its lines."""
    own: Mapping[str, tuple[re.Pattern[str], int]] = field(default_factory=dict)
    """Fields that it names in its own way, and the power of ten of their units."""


_LIBRARIES = {
    "nanochat": _Loop(("lrm:", "tok/sec:")),
    "litgpt": _Loop(("| iter time:",)),
    "torchtune": _Loop(("tokens_per_second_per_gpu:",)),
    "llm.c": _Loop(
        ("% bf16 MFU | ",),
        {
            "step_time_s": (re.compile(rf"\| {_FIGURE} ms \| "), -3),
            "mfu_ratio": (re.compile(rf"\| {_FIGURE}% bf16 MFU \| "), -2),
        },
    ),
    "paddlenlp": _Loop((", interval_steps_per_second: ",)),
    "prime-rl": _Loop(
        ("| Time: ", "| Grad. Norm: ", "| Peak Mem.: "),
        {"step_time_s": (re.compile(rf"\| Time: {_FIGURE}s \|"), 0)},
    ),
    "nemo-automodel": _Loop(
        ("/gpu) | num_label_tokens ",), {"tokens_per_s": (re.compile(rf"\| tps {_FIGURE}\("), 0)}
    ),
    "xtuner": _Loop(
        ("[Train] (Epoch ", " tgs: "), {"step_time_s": (re.compile(rf"(?<=\s)time: {_FIGURE}s?(?=\s|$)"), 0)}
    ),
    "lingua": _Loop(
        ("  wps: ", "  iter: ", "  data: "),
        {
            "step_time_s": (re.compile(rf"  iter: {{1,4}}{_FIGURE}(?=\s)"), 0),
            "flops_per_s_per_gpu": (re.compile(rf"  flops: {{1,4}}{_FIGURE}(?=\s)"), 0),
        },
    ),
    "internevo": _Loop(
        (" tgs (tokens/gpu/second)=", " forward_backward_time="),
        {"flops_per_s_per_gpu": (re.compile(rf"\btflops={_FIGURE} step="), 12)},
    ),
}
_OF_ROLLOUTS = "| Async Level: "
"""In lines of prime-rl's orchestrator, which count the steps of its trainer, too."""
_OF_EPOCH = re.compile(r"poch\W{0,3}[0-9]{1,6} ?/ ?[0-9]", re.IGNORECASE)
"""Before a step whose total is that of its epoch. The first letters may be damaged."""
_ANCHOR_CHARS = 160
"""The step is at the beginning of a line, after times and names of loggers."""
OTHER_LINE = re.compile(
    r"\b(?:sav|load|resum|restor|checkpoint|eval|valid|val\b|test|best|skip|warm|predict|generat|sampl|infer|from|"
    r"after|every|until|max|rollout|cv\b|epoch \d+ (?:done|finished))|(?<![\w/.-])dev(?![\w/.-])|"
    r"(?:error|exception)\b",
    re.IGNORECASE,
)
LOOPS = frozenset({"", "training-loop", "nanogpt", "lightning", *_LIBRARIES})
"""Frameworks whose progress is a loop's own; other trainers print lines that perfd knows."""


class StepLineParser(FormatParser):
    """Lines with a step and a loss, a time or a rate, in any order and with any separators.

    Only numbers with a known name or unit count. A line of an evaluation is an event.
    """

    keywords: Sequence[bytes] = (
        *(b"step", b"Step", b"iter ", b"iter=", b"iter:", b"Iter", b"iteration", b"STEP", b"ITER"),
        *(b"poch", b"EPOCH", b"atch ", b"pdate", b"it=", b"it:", b"s/it", b"it/s", *KEYWORDS),
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._epochs = EpochHeadings()
        self._newest = self._interval = 0
        self._total: int | None = None
        """As its lines say."""
        self._words = ""
        """Of its line, without numbers."""

    def parse(self, line: LogLine) -> bool:
        text = in_english(plain_numbers(line.text))
        if self._epochs.is_heading(text, line.rank):
            return True
        anchor = _anchor(text)
        if anchor is None and self._epochs.known(line.rank):
            anchor = _BATCH.search(text, 0, _ANCHOR_CHARS)
        if anchor is None:
            return False
        framework = _framework(text)
        if self._out.description.framework not in LOOPS and framework not in {"paddlenlp", "llm.c"}:
            return False
        if OTHER_LINE.search(text, 0, anchor.start()) or _is_of_others(text, anchor):
            return False
        return self._step(line.rank, framework, text, anchor)

    def _step(self, rank: int | None, framework: str | None, text: str, anchor: re.Match[str]) -> bool:
        step, total = _whole(anchor[2]), None if anchor[3] is None else _whole(anchor[3])
        in_epoch = self._epochs.known(rank)
        begins_anew = self._begins_anew(total, text)
        if total is not None and total < self._newest and not in_epoch and not begins_anew:
            # Of another loader, such as an evaluation's.
            return False
        found = _numbers(framework, text, anchor)
        if found.evaluates:
            self._out.event(EventKind.EVALUATION, "Evaluation.", step=step)
            return True
        if not (found.losses or found.timed or found.clocked):
            return False
        numbered = step if _is_global(anchor) else self._epochs.step(rank, step, total)
        if numbered is None:
            return True
        if begins_anew:
            self._newest = 0
        if numbered > self._newest:
            self._newest, self._interval = numbered, numbered - self._newest
        self._total, self._words = total, _without_numbers(text)
        if framework == "litgpt":
            _per_step(found, text, step)
        if not self._out.description.framework or framework:
            self._out.describe(framework=framework or "training-loop")
        if total is not None and not in_epoch and _OF_EPOCH.search(text, 0, anchor.start()) is None:
            self._out.describe(train_steps=total)
        add_step(self._steps, self._out.job, numbered, found, last_timestamp_ns(text[: anchor.start()]))
        return True

    def _begins_anew(self, total: int | None, text: str) -> bool:
        """Whether a line is of another training in the same log, as of a sweep, which may be shorter.

        The one before made all of its steps, and the line has the same words: evaluations have others.
        """
        over = self._total is not None and self._newest + self._interval > self._total
        return over and total is not None and total != self._total and _without_numbers(text) == self._words


def _without_numbers(text: str) -> str:
    return _NUMBERS.sub("", text)


def _numbers(framework: str | None, text: str, anchor: re.Match[str]) -> StepFields:
    """What a line says about its step."""
    found = StepFields(values=_own_values(framework, text))
    for key, value, unit in numbers_in(text[anchor.end() :]):
        found.add(key, value, unit)
    if before := _LOSS_BEFORE.search(text, 0, anchor.end()):
        for key, value, unit in numbers_in(before[1]):
            found.add(key, value, unit)
    for key, figure in _BEFORE.findall(text[: anchor.start()]):
        if (printed := number(figure)) is not None:
            found.add(key, printed)
    return found


def _anchor(text: str) -> re.Match[str] | None:
    """Where a line says its step: `step` before `iter`, which may count micro-batches (litgpt)."""
    if _MAY_SAY_STEP.search(text, 0, _ANCHOR_CHARS) is None:
        return None
    found = list(_STEP.finditer(text, 0, _ANCHOR_CHARS))
    steps = [match for match in found if match[1].lower() == "step"]
    return next(iter(steps or found), None)


def _whole(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _is_global(anchor: re.Match[str]) -> bool:
    """Whether it says that it counts over all epochs."""
    return anchor[0].lower().startswith("global")


def _is_of_others(text: str, anchor: re.Match[str]) -> bool:
    """Whether it is a row of a table, or of a process that only counts the trainer's steps."""
    return "\t" in text[anchor.start() :] or _OF_ROLLOUTS in text


def _framework(text: str) -> str | None:
    for framework, loop in _LIBRARIES.items():
        if all(mark in text for mark in loop.marks):
            return framework
    return "nanogpt" if ", mfu " in text and text.lstrip().startswith("iter ") else None


def _own_values(framework: str | None, text: str) -> dict[str, float]:
    """What a library's own names say."""
    own = _LIBRARIES[framework].own if framework in _LIBRARIES else {}
    said = ((name, pattern.search(text), power) for name, (pattern, power) in own.items())
    return {name: value for name, match, power in said if match and (value := positive(match[1], power))}


def _per_step(found: StepFields, text: str, step: int) -> None:
    """Litgpt times a micro-batch: a step of several is as many times as long."""
    micro = next((match for match in _STEP.finditer(text, 0, _ANCHOR_CHARS) if match[1] == "iter"), None)
    time_s = found.values.pop("step_time_s", None)
    if micro is not None and time_s is not None and step and int(micro[2]) % step == 0:
        found.values["step_time_s"] = time_s * (int(micro[2]) // step)
