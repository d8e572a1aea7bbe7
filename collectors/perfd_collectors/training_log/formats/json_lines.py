"""Steps as JSON objects or dicts, one per line: metric files of trainers, and loops that print a dict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.printed_fields import dict_numbers, number, without_nested_dicts
from perfd_collectors.training_log.step_fields import StepFields, add_step, fields_of

_STEP_KEYS = (
    *(
        "step",
        "global_step",
        "current_steps",
        "iteration",
        "iter",
        "_step",
        "train/global_step",
        "train/step",
    ),
    *("trainer/global_step", "train_step", "current_step", "num_updates"),
    *("it", "update", "updates", "step_num", "iter_num", "global_iter", "train_iter", "train/iter"),
)
_DICT = re.compile(r"\b[Ss]tep ([0-9]{1,15}): \{('[^{}]*)\}\s*$")
_OBJECT = re.compile(r"""(?:[^{}"]{0,120}[\]:|-] )?(?=\{")""")
_DICT_ALONE = re.compile(r"(?:[^{}']{0,120}[\]:|-] )?\{('[^{}]*)\}")
"""Both after a logger's prefix, or after none."""
_MAX_KEYS = 2000
"""Most keys in one line; lines of metrics have far fewer."""
_MAX_DIGITS = 15
"""Up to which doubles hold whole numbers exactly."""


def says_a_step(said: Mapping[str, object]) -> bool:
    """Whether an object has the numbers of a step itself, and not in a text within it."""
    if not any(type(said.get(key)) is int for key in _STEP_KEYS):
        return False
    return any("loss" in key for key in said) or _fields(said).timed


class JsonLineParser(FormatParser):
    """Objects that say their step, and a loss, a time or a rate (LLaMA-Factory's `trainer_log.jsonl`)."""

    keywords: Sequence[bytes] = (b'{"', b"{'")

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._elapsed: tuple[int, float] | None = None

    def parse(self, line: LogLine) -> bool:
        text = line.text.strip()
        if (opened := _OBJECT.match(text)) is not None:
            return self._object(text[opened.end() :])
        if "{'" not in text:
            return False
        inside = text.index("{'") + 1
        text = text[:inside] + without_nested_dicts(text[inside:])
        return self._dict(text) or self._dict_alone(text)

    def _object(self, text: str) -> bool:
        try:
            said = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if not isinstance(said, dict) or len(said) > _MAX_KEYS:
            return False
        said = _flat(said)
        step = next((step for key in _STEP_KEYS if (step := _whole(said.get(key))) is not None), None)
        if step is None or not 0 <= step < 1 << 53:
            return False
        found = _fields(said)
        if "current_steps" in said:
            self._of_llama_factory(step, said, found)
        return self._add(step, found)

    def _dict(self, text: str) -> bool:
        match = _DICT.search(text)
        if match is None:
            return False
        return self._add(int(match[1]), fields_of(dict_numbers(match[2]).items()))

    def _dict_alone(self, text: str) -> bool:
        match = _DICT_ALONE.fullmatch(text)
        numbers = {} if match is None else dict_numbers(match[1])
        step = next((numbers[key] for key in _STEP_KEYS if key in numbers), None)
        if step is None or not 0 <= step < 1 << 53 or step != int(step):
            return False
        return self._add(int(step), fields_of(numbers.items()))

    def _add(self, step: int, found: StepFields) -> bool:
        if found.evaluates and not found.losses:
            self._out.event(EventKind.EVALUATION, "Evaluation.", step=step)
            return True
        if not found.losses and not found.timed:
            return False
        self._out.describe_framework("training-loop")
        add_step(self._steps, self._out.job, step, found, None)
        return True

    def _of_llama_factory(self, step: int, said: Mapping[str, object], found: StepFields) -> None:
        """Its file has the time since the start, in whole seconds."""
        clock = said.get("elapsed_time")
        elapsed_s = _clock_s(clock) if isinstance(clock, str) else None
        if elapsed_s is None:
            return
        before, after = self._elapsed, (step, elapsed_s)
        if before is None or before[0] >= step:
            self._elapsed = after
        elif elapsed_s - before[1] >= _SHORTEST_S:
            found.values.setdefault("step_time_s", (elapsed_s - before[1]) / (step - before[0]))
            self._elapsed = after


_SHORTEST_S = 20
"""Between two lines, so that whole seconds show a step's time within 5%."""


def _clock_s(text: str) -> float | None:
    """Seconds of `0:01:23` or `1 day, 0:01:23`."""
    days, _, clock = text.rpartition(" day")
    parts = clock.lstrip("s, ").split(":")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) <= 9 for part in parts):
        return None
    hours, minutes, seconds = map(int, parts)
    count = int(days) if days.isdecimal() and len(days) <= 9 else 0
    return float(((count * 24 + hours) * 60 + minutes) * 60 + seconds)


def _fields(said: Mapping[str, object]) -> StepFields:
    numbers = {key: value for key, text in said.items() if (value := _figure(text)) is not None}
    if "num_updates" in numbers and "wps" in numbers:
        # fairseq's words of all GPUs; others print those of one as `wps`.
        numbers["tokens/s"] = numbers.pop("wps")
    return fields_of(numbers.items())


def _flat(said: Mapping[str, object]) -> dict[str, object]:
    """The object with the members of the objects in it, as `metrics/loss`; their steps as such."""
    flat = dict(said)
    for outer, inside in said.items():
        if isinstance(inside, dict) and len(flat) + len(inside) <= _MAX_KEYS:
            for key, value in inside.items():
                flat.setdefault(key if key in _STEP_KEYS else f"{outer}/{key}", value)
    return flat


def _whole(value: object) -> int | None:
    """A whole number, also one that was written as a string."""
    if isinstance(value, str):
        return int(value) if len(value) <= _MAX_DIGITS and value.isascii() and value.isdecimal() else None
    return value if type(value) is int else None


def _figure(value: object) -> float | None:
    """A number, also one that was written as a string."""
    if isinstance(value, str):
        return number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return number(repr(value))
