"""Lines by the user's own patterns: regular expressions with named groups."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.errors import ConfigError
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.formats.pattern_cost import growth
from perfd_collectors.training_log.printed_fields import grouped, integer, number, sorted_fields
from perfd_collectors.training_log.step_order import ProgressSource
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_MAX_PATTERN_CHARS = 500
"""Of a pattern of the configuration. Chosen."""
_MAX_LINE_CHARS = 4000
"""Longer lines are not matched: no step line is."""
_MAX_GROWTH = 2.5
"""Steps for a text of twice the length: 2 is linear, 4 quadratic."""
GROUPS = {
    "step_time_s": ("step_time_s", 0),
    "step_time_ms": ("step_time_s", -3),
    "tokens_per_s": ("tokens_per_s", 0),
    "samples_per_s": ("samples_per_s", 0),
    "tflops": ("flops_per_s_per_gpu", 12),
    "mfu": ("mfu_ratio", 0),
    "mfu_percent": ("mfu_ratio", -2),
    "lr": ("learning_rate", 0),
    "grad_norm": ("grad_norm", 0),
    "global_batch_size": ("global_batch_size", 0),
    "consumed_tokens": ("consumed_tokens", 0),
}
"""Names of groups besides `step` and `loss`: the field of a step, and the power of ten of its unit."""
_KNOWN = frozenset({"step", "loss", *GROUPS})


def compiled_pattern(text: str) -> re.Pattern[str]:
    """A pattern of the user's; raises `ConfigError` if it is wrong, or slow on long lines."""
    if len(text) > _MAX_PATTERN_CHARS:
        raise ConfigError(f"A pattern has {len(text)} characters; {_MAX_PATTERN_CHARS} are the most.")
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"The pattern {text!r} is not a regular expression: {error}.") from error
    names = set(pattern.groupindex)
    if "step" not in names:
        raise ConfigError(f"The pattern {text!r} needs a group (?P<step>...) for the number of the step.")
    if unknown := sorted(names - _KNOWN):
        raise ConfigError(
            f"The pattern {text!r} has the group {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}."
        )
    try:
        factor, worst = growth(pattern, anywhere=True)
    except (NotImplementedError, RecursionError) as error:
        raise ConfigError(
            f"The pattern {text!r} has a part whose cost perfd cannot count; use simpler ones."
        ) from error
    if factor >= _MAX_GROWTH:
        raise ConfigError(
            f"The pattern {text!r} could take minutes on a long line (such as {worst}): limit its repeats, "
            r"for example \d{1,9} for \d+, and anchor it with ^ or a word."
        )
    return pattern


class OwnPatternParser(FormatParser):
    """Lines that one of the user's patterns finds. They count before anything else that shows steps."""

    keywords: Sequence[bytes] = ()

    def __init__(self, job: LogContext, patterns: Sequence[re.Pattern[str]]) -> None:
        super().__init__(job)
        self._patterns = patterns

    @property
    def in_block(self) -> bool:
        """Always: any line may match."""
        return True

    def parse(self, line: LogLine) -> bool:
        if len(line.text) > _MAX_LINE_CHARS:
            return False
        match = next((found for one in self._patterns if (found := one.search(line.text))), None)
        step = integer(match["step"] or "") if match else None
        if match is None or step is None:
            return False
        groups = match.groupdict()
        named = [(name, text) for name, text in groups.items() if name != "step" and text is not None]
        values, losses, _ = sorted_fields(named, GROUPS, _number)
        self._out.describe_framework("training-loop")
        printed_ns = last_timestamp_ns(line.text[: match.start("step")])
        self._add_step(step, values, losses, printed_ns=printed_ns, family=ProgressSource.OWN_PATTERN)
        return True


def _number(text: str, power: int) -> float | None:
    plain = grouped(text) if "," in text else None
    return number(text if plain is None else repr(plain), power)
