"""Composer's console: `[epoch=1][batch=10/40]:`, then one `Train name: value` per line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.field_text import is_plain_key, number
from perfd_collectors.training_log.format_parser import FormatParser, LogContext
from perfd_collectors.training_log.log_lines import LogLine
from perfd_collectors.training_log.parser_output import training_step

_HEAD = re.compile(
    r"\[(?:epoch|batch|sample|token|iteration)=[0-9]{1,15}(?:/[0-9]{1,15})?\](?:\[[^\]]{1,40}\])?:"
)
_EVALUATION = re.compile(r"\[Eval batch=([0-9]{1,15})/([0-9]{1,15})\] Eval on ")
_VALUE = re.compile(r"\s{1,8}Train ([^\s:]{1,120}): (\S{1,40})")
_STEP = "time/batch"
_TIME = "throughput/batches_per_sec"
_RATES = {
    "throughput/samples_per_sec": "samples_per_s",
    "throughput/tokens_per_sec": "tokens_per_s",
    "throughput/device/flops_per_sec": "flops_per_s_per_gpu",
}


class ComposerParser(FormatParser):
    """One log of a Composer job. `time/batch` counts the batches before this one, over all epochs."""

    keywords: Sequence[bytes] = (b"][batch=", b"[Eval batch=", b"Train time/batch: ")

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._block: dict[str, float] | None = None

    @property
    def in_block(self) -> bool:
        """Whether values of a batch come next."""
        return self._block is not None

    def parse(self, line: LogLine) -> bool:
        """Parse a complete, undamaged line."""
        if not line.complete or line.damaged:
            return False
        if _HEAD.match(line.text):
            self.flush()
            self._block = {}
            return True
        if self._block is not None:
            if value := _VALUE.fullmatch(line.text):
                figure = number(value[2])
                if figure is not None:
                    self._block.setdefault(value[1], figure)
                return True
            self.flush()
        evaluation = _EVALUATION.match(line.text)
        if evaluation is None:
            return False
        if evaluation[1] == evaluation[2]:
            self._out.event(EventKind.EVALUATION, "Evaluation.", step=self._steps.last_step)
        return True

    def flush(self) -> None:
        """Emit the batch whose values have been read."""
        block, self._block = self._block, None
        if not block or _STEP not in block:
            return
        self._out.describe(framework="composer")
        values = {name: block[key] for key, name in _RATES.items() if block.get(key, 0) > 0}
        if block.get(_TIME, 0) > 0:
            values["step_time_s"] = 1 / block[_TIME]
        losses = {
            key: value for key, value in block.items() if key.startswith("loss/train/") and is_plain_key(key)
        }
        self._steps.add(training_step(self._out.job, int(block[_STEP]) + 1, values, losses, {}), None)

    def finish(self) -> None:
        """Emit a pending batch."""
        self.flush()
