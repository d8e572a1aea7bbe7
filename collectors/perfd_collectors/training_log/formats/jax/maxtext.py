"""MaxText's line per step: `completed step: 118, seconds: 0.161, TFLOP/s/device: 204.098, ...`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd_collectors.training_log.format_parser import FormatParser, LogLine
from perfd_collectors.training_log.printed_fields import sorted_fields
from perfd_collectors.training_log.timestamps import last_timestamp_ns

_ANCHOR = re.compile(r"\bcompleted step: (\d{1,15}), (?=seconds: )", re.ASCII)
_FIELDS = {"seconds": ("step_time_s", 0), "TFLOP/s/device": ("flops_per_s_per_gpu", 12)}
_DEVICES = re.compile(r"\bNum_devices: (\d{1,9}), shape ", re.ASCII)


class MaxTextParser(FormatParser):
    """One log of a MaxText job. Steps are numbered from 0, as printed; rates are those of one device."""

    keywords: Sequence[bytes] = (b"completed step: ", b"Num_devices: ")

    def parse(self, line: LogLine) -> bool:
        if devices := _DEVICES.search(line.text):
            self._out.describe(framework="maxtext")
            self._out.describe_layout(world_size=int(devices[1]))
            return True
        anchor = _ANCHOR.search(line.text)
        if anchor is None:
            return False
        self._out.describe(framework="maxtext", logged_flops_convention="maxtext")
        pairs = dict(piece.split(": ", 1) for piece in line.text[anchor.end() :].split(", ") if ": " in piece)
        values, losses, extras = sorted_fields(pairs.items(), _FIELDS)
        tokens, time_s = extras.get("total_weights"), values.get("step_time_s")
        if tokens and time_s:
            # The weights of a batch are those of its tokens that are not padding.
            values["tokens_per_s"] = tokens / time_s
        printed_ns = last_timestamp_ns(line.text[: anchor.start()])
        self._add_step(int(anchor[1]), values, losses, extras, printed_ns=printed_ns)
        return True
