"""What the numbers of a step line mean, by the names and units that loops of many authors print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from perfd_collectors.training_log.parser_output import training_step
from perfd_collectors.training_log.printed_fields import is_plain_key
from perfd_collectors.training_log.step_order import ProgressSource, StepLog

_SEPARATOR = re.compile(r"\||;|, | - | — |\{|\}")
_NUMBER = re.compile(
    r"([+-]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,20})(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
    r"([A-Za-z%][A-Za-z/]{0,11})?",
    re.ASCII,
)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_/()%.-]{0,60}", re.ASCII)
_UNITS = re.compile(
    r"(?:ms|s|sec|secs|seconds|us|%|(?:ms|s|sec)/(?:step|it|iter|batch|update)|"
    r"(?:it|its|iter|steps?|updates?)/s(?:ec)?|"
    r"(?:tok|toks|tokens?|samples?|examples?|images|seq|sequences)/s(?:ec(?:ond)?)?)",
    re.ASCII | re.IGNORECASE,
)
_NO_NUMBERS = frozenset({"nan", "inf", "infinity", "none", "null", "n/a"})
_MAX_NUMBER_CHARS = 48
"""More than a printed number has; it bounds the conversion of a hostile line."""
_DECORATION = re.compile(r"[\s_./-]+")
_PER = {
    "/second": "persecond",
    "/sec": "persec",
    "/s": "pers",
    "/step": "perstep",
    "/iter": "periter",
    "/it": "perit",
    "/batch": "perbatch",
}
_PREFIXES = frozenset(
    {"train", "training", "perf", "throughput", "metrics", "avg", "average", "mean", "current"}
)
_STEP_TIMES = frozenset(
    {
        *(
            "steptime",
            "timeperstep",
            "itertime",
            "iterationtime",
            "timeperiteration",
            "timeperiter",
            "timeiteration",
            "timeiter",
            "secperstep",
        ),
        *("batchtime", "timeperbatch", "secondsperstep", "secondsperiter", "elapsedtimeperiteration"),
        *(
            "steptimes",
            "steptimeseconds",
            "steptimesec",
            "sperstep",
            "sperit",
            "sperbatch",
            "secperiter",
            "dt",
            "persteptime",
            "batchcost",
        ),
    }
)
_BARE_TIMES = frozenset({"time", "t"})
"""A loop's own time, or the time since its start: of one step where it is in milliseconds."""
_TOTAL_TIMES = frozenset({"traintime", "trainingtime"})
"""The time since the start, or of an epoch."""
_ENTROPIES = frozenset({"xent", "crossentropy"})
_UNNAMED = frozenset({"", "speed", "rate", "throughput"})
"""What a number with a unit may be called, so that the unit says what it is."""
_TIME_UNITS = {"ms": -3, "s": 0, "sec": 0, "secs": 0, "seconds": 0, "us": -6}
_PER_STEP = {
    f"{unit}/{step}": power
    for unit, power in (("ms", -3), ("s", 0), ("sec", 0))
    for step in ("step", "it", "iter", "batch", "update")
}
_THOUSANDS = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
"""Powers of ten of numbers that are printed short, such as `212.3K` tokens/s."""
_STEPS_PER_S = frozenset(
    {
        f"{step}/{s}"
        for step in ("it", "its", "iter", "step", "steps", "update", "updates")
        for s in ("s", "sec")
    }
)
_TOKEN_RATES = frozenset(
    {
        f"{token}{per}"
        for token in ("token", "tokens", "tok", "toks")
        for per in ("persec", "persecond", "pers")
    }
)
_SAMPLE_RATES = frozenset(
    {
        f"{one}{per}"
        for one in (
            *("sample", "samples", "example", "examples", "images", "seq", "sequences"),
            "intervalsamples",
        )
        for per in ("persec", "persecond", "pers")
    }
)
_TIMES_IN_MS = frozenset({"msperstep", "msperiter", "msperit", "msperbatch"})
_STEP_RATES = frozenset(
    {
        f"{step}{per}"
        for step in ("step", "steps", "trainsteps", "it", "iter", "iters", "batches", "intervalsteps")
        for per in ("persec", "persecond", "pers")
    }
) | {"ups"}
_FLOPS = frozenset({"tflops", "tflopspergpu", "tflopsperdevice", "modeltflops", "modeltflopspergpu"})
_PLAIN = {
    "lr": "learning_rate",
    "learningrate": "learning_rate",
    "gradnorm": "grad_norm",
    "gradientnorm": "grad_norm",
    "globalbatchsize": "global_batch_size",
    "lossscale": "loss_scale",
    "consumedtokens": "consumed_tokens",
    "tokensseen": "consumed_tokens",
    "numinputtokensseen": "consumed_tokens",
    "totaltokens": "consumed_tokens",
    "consumedsamples": "consumed_samples",
}
_NOT_TRAINING = re.compile(
    r"(?:^|[\s/_-])(?:val|valid|validation|eval|test|dev|cv|best)(?:[\s/_-]|$)", re.IGNORECASE
)
_NO_LOSS = re.compile(
    r"loss(?:es)?[\s_-](?:of|weights?|coef\w{0,10}|fn|func\w{0,10}|type|terms?|limit|threshold|ratio|tolerance)\b",
    re.IGNORECASE,
)
"""Settings of a loss, and other losses than a model's."""
_CLOCK = re.compile(r"(?<![\d:.-])([0-9]{1,3}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,6})?)(?![\d:])")
_MEANS_SINCE_START = frozenset({"stepavg"})
_PERCENT_FROM = 2.0
"""An MFU above this is a percentage; between 1 and this, either may be meant."""


@dataclass(slots=True)
class StepFields:
    """The numbers of one step line; unknown names are left out."""

    values: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    evaluates: bool = False
    """Whether it has a loss of an evaluation."""
    clocked: bool = False
    """Whether it has the mean time of all steps so far, which is none of this one."""

    def add(self, key: str, value: float, unit: str = "") -> None:
        """Add a number by its printed name and unit (`ms`, `%`, `tok/s`), each of which may be empty."""
        unit = unit.lower()
        name = _name(key)
        if ("loss" in name and name not in _PLAIN) or name in _ENTROPIES:
            if unit in _TIME_UNITS or "lossless" in name or ".py" in key or _NO_LOSS.search(key):
                return
            if _NOT_TRAINING.search(key):
                self.evaluates = True
            elif is_plain_key(key):
                self.losses.setdefault(key, value)
        elif name in _UNNAMED and unit:
            self._by_unit(unit, value)
        else:
            self._by_name(name, value, unit)

    def _by_unit(self, unit: str, value: float) -> None:
        if unit in _PER_STEP:
            self._set("step_time_s", _scaled(value, _PER_STEP[unit]))
        elif unit in _STEPS_PER_S and value > 0:
            self._set("step_time_s", 1 / value)
        elif _rate_name(unit) in _TOKEN_RATES:
            self._set("tokens_per_s", value)
        elif _rate_name(unit) in _SAMPLE_RATES:
            self._set("samples_per_s", value)

    def _by_name(self, name: str, value: float, unit: str) -> None:
        if unit in _THOUSANDS:
            if name in _TOKEN_RATES or name in _SAMPLE_RATES:
                self._by_name(name, _scaled(value, _THOUSANDS[unit]), "")
        elif unit in _PER_STEP or unit in _STEPS_PER_S or name == "ips":
            self._by_unit(unit, value)
        elif name in _MEANS_SINCE_START:
            self.clocked = True
        elif name in _STEP_TIMES:
            self._set("step_time_s", _scaled(value, _TIME_UNITS.get(unit, 0)))
        elif name not in _TOTAL_TIMES and _is_in_ms(name, unit):
            self._set("step_time_s", _scaled(value, -3))
        elif name in _STEP_RATES:
            self._set("step_time_s", 1 / value if value > 0 else 0.0)
        elif name in _TOKEN_RATES:
            self._set("tokens_per_s", value)
        elif name in _SAMPLE_RATES:
            self._set("samples_per_s", value)
        elif name in _FLOPS:
            self._set("flops_per_s_per_gpu", _scaled(value, 12))
        elif name in {"mfu", "bf16mfu"}:
            self._mfu(value, unit)
        elif name in _PLAIN:
            self.values.setdefault(_PLAIN[name], value)

    def _mfu(self, value: float, unit: str) -> None:
        if unit == "%" or value > _PERCENT_FROM:
            self._set("mfu_ratio", value / 100)
        elif value <= 1:
            self._set("mfu_ratio", value)

    def _set(self, name: str, value: float) -> None:
        """Keep the first value of a name; what cannot be a measurement is left out."""
        if value > 0:
            self.values.setdefault(name, value)

    @property
    def timed(self) -> bool:
        """Whether it has a time or a rate."""
        return bool(
            self.values.keys() & {"step_time_s", "tokens_per_s", "samples_per_s", "flops_per_s_per_gpu"}
        )


def add_step(
    steps: StepLog,
    job: str,
    step: int,
    found: StepFields,
    printed_ns: int | None,
    *,
    family: ProgressSource | None = None,
    anew: bool = False,
) -> None:
    """Add a step line; without a time it counts only where nothing else shows steps."""
    timed = ProgressSource.LOOP if "step_time_s" in found.values else ProgressSource.UNTIMED_LOOP
    line = training_step(job, step, found.values, found.losses, {})
    steps.add(line, printed_ns, family=family or timed, anew=anew)


def numbers_in(text: str) -> Iterator[tuple[str, float, str]]:
    """Each number with the words in front of it and its unit; `0:01:23.5` are 83.5 s."""
    for piece in _SEPARATOR.split(_CLOCK.sub(_in_seconds, text)):
        key: list[str] = []
        words = [
            word for word in piece.replace("=", " ").replace(": ", " ").replace(":", " ").split(" ") if word
        ]
        index = 0
        while index < len(words):
            word = words[index].strip("'\"[](),")
            word += ")" * (word.count("(") > word.count(")"))
            index += 1
            match = _NUMBER.fullmatch(word) if len(word) <= _MAX_NUMBER_CHARS else None
            if match is None:
                # What is not a number ends its pair, too.
                if _WORD.fullmatch(word) and word.lower() not in _NO_NUMBERS:
                    key.append(word)
                else:
                    key = []
                continue
            unit = match[2] or ""
            if not unit and index < len(words) and _UNITS.fullmatch(words[index].strip("(),")):
                unit = words[index].strip("(),")
                index += 1
            yield " ".join(key), float(match[1].replace(",", "")), unit
            key = []


def _in_seconds(clock: re.Match[str]) -> str:
    whole_s = int(clock[1]) * 3600 + int(clock[2]) * 60
    return f"{whole_s + float(clock[3]):.6f}s"


def fields_of(pairs: Iterable[tuple[str, float]]) -> StepFields:
    """The fields of a line of JSON or CSV."""
    found = StepFields()
    for key, value in pairs:
        found.add(key, value)
    return found


def _name(key: str) -> str:
    """A key without its case, separators and a leading group: `train/step_time` is `steptime`."""
    key = key.lower().replace("(", " ").replace(")", " ").strip()
    for sign, word in _PER.items():
        if key.endswith(sign):
            key = key.removesuffix(sign) + word
    words = [word for word in _DECORATION.split(key) if word]
    if "".join(words) in _TOTAL_TIMES:
        return "".join(words)
    while len(words) > 1 and words[0] in _PREFIXES:
        words.pop(0)
    return "".join(words)


def _is_in_ms(name: str, unit: str) -> bool:
    if unit:
        return name in _BARE_TIMES and unit == "ms"
    return name in _TIMES_IN_MS or (name.endswith("ms") and name[:-2] in _STEP_TIMES)


def _rate_name(unit: str) -> str:
    return unit.replace("/", "per")


def _scaled(value: float, power: int) -> float:
    return float(f"{value!r}e{power}") if "e" not in repr(value) else value * 10.0**power
