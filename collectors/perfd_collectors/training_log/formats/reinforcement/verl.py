"""verl's step line: `step:2 - key:value - ...`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd_collectors.training_log.format_parser import FormatParser, LogLine
from perfd_collectors.training_log.printed_fields import is_plain_key, number, plain_numbers

_ANCHOR = re.compile(r"(?:^|\s)step:(\d{1,15}) - (?=[\w/.-]+:)", re.ASCII)
_GIB = 1024.0**3
"""Bytes per GiB."""
_TIMING = "timing_s/"
_MEMORY_GIB = {
    "perf/max_memory_allocated_gb": "max_allocated_bytes",
    "perf/max_memory_reserved_gb": "max_reserved_bytes",
}


class VerlParser(FormatParser):
    """One log of a verl job. A step is one round of generation and update; its parts are phases."""

    takes_damaged = True
    keywords: Sequence[bytes] = (b"step:",)

    def parse(self, line: LogLine) -> bool:
        anchor = _ANCHOR.search(line.text)
        if anchor is None:
            return False
        pairs = [piece.rpartition(":") for piece in plain_numbers(line.text[anchor.end() :]).split(" - ")]
        values = {
            key: value for key, _, text in pairs if is_plain_key(key) and (value := number(text)) is not None
        }
        if not any("/" in key for key in values):
            return False
        self._out.describe(framework="verl")
        self._add(int(anchor[1]), values)
        return True

    def _add(self, step: int, values: dict[str, float]) -> None:
        losses = {key: value for key, value in values.items() if "loss" in key}
        timings = {
            key.removeprefix(_TIMING): value for key, value in values.items() if key.startswith(_TIMING)
        }
        time_s = timings.pop("step", None)
        tokens = values.get("perf/total_num_tokens")
        used = {f"{_TIMING}{name}" for name in timings} | losses.keys() | {"timing_s/step"}
        self._add_step(
            step,
            {
                "step_time_s": time_s,
                "tokens_per_s": tokens / time_s if tokens and time_s else None,
                "grad_norm": values.get("actor/grad_norm"),
                "learning_rate": values.get("actor/lr"),
                "mfu_ratio": values.get("perf/mfu/actor"),
            },
            losses,
            {key: value for key, value in values.items() if key not in used},
        )
        self._steps.timers(timings)
        sizes = {name: values[key] * _GIB for key, name in _MEMORY_GIB.items() if key in values}
        self._out.memory(step, None, **sizes)
