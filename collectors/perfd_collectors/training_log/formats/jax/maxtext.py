"""MaxText's line per step: `completed step: 118, seconds: 0.161, TFLOP/s/device: 204.098, ...`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd_collectors.training_log.field_text import is_plain_key, number, positive
from perfd_collectors.training_log.format_parser import FormatParser
from perfd_collectors.training_log.log_lines import LogLine
from perfd_collectors.training_log.parser_output import training_step
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_ANCHOR = re.compile(r"\bcompleted step: (\d{1,15}), (?=seconds: )", re.ASCII)
_DEVICES = re.compile(r"\bNum_devices: (\d{1,9}), shape ", re.ASCII)


class MaxTextParser(FormatParser):
    """One log of a MaxText job. Steps are numbered from 0, as printed; rates are those of one device."""

    keywords: Sequence[bytes] = (b"completed step: ", b"Num_devices: ")

    def parse(self, line: LogLine) -> bool:
        if not line.complete or line.damaged:
            return False
        if devices := _DEVICES.search(line.text):
            self._out.describe(framework="maxtext")
            self._out.describe_layout(world_size=int(devices[1]))
            return True
        anchor = _ANCHOR.search(line.text)
        if anchor is None:
            return False
        self._out.describe(framework="maxtext", logged_flops_convention="maxtext")
        pairs = dict(piece.split(": ", 1) for piece in line.text[anchor.end() :].split(", ") if ": " in piece)
        time_s = positive(pairs.pop("seconds", ""))
        flops = positive(pairs.pop("TFLOP/s/device", ""), 12)
        tokens = positive(pairs.get("total_weights", ""))
        numbers = {
            key: value
            for key, text in pairs.items()
            if is_plain_key(key) and (value := number(text)) is not None
        }
        values = {"step_time_s": time_s, "flops_per_s_per_gpu": flops}
        if tokens is not None and time_s is not None:
            # The weights of a batch are those of its tokens that are not padding.
            values["tokens_per_s"] = tokens / time_s
        self._steps.add(
            training_step(
                self._out.job,
                int(anchor[1]),
                {name: value for name, value in values.items() if value is not None},
                {key: value for key, value in numbers.items() if "loss" in key},
                {key: value for key, value in numbers.items() if "loss" not in key},
            ),
            last_timestamp_ns(line.text[: anchor.start()]),
        )
        return True
