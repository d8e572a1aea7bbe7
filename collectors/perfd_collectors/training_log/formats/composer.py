"""Consoles of a heading and one value per line.

Composer: `[epoch=1][batch=10/40]:`, then `Train name: value`.
OLMo: `[step=5/1000,epoch=0]`, then `name=value`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.printed_fields import grouped, is_plain_key, number

_HEAD = re.compile(
    r"\[(?:epoch|batch|sample|token|iteration)=[0-9]{1,15}(?:/[0-9]{1,15})?\](?:\[[^\]]{1,40}\])?:\s*$"
)
_OLMO = re.compile(r"\[step=([0-9]{1,15})(?:/[0-9]{1,15})?(?:,[^\]\[]{1,80})?\]\s*$")
_EVALUATION = re.compile(r"\[Eval batch=([0-9]{1,15})/([0-9]{1,15})\] Eval on ")
_VALUE = re.compile(r"\s{1,8}Train ([^\s:]{1,120}): (\S{1,40})")
_OLMO_VALUE = re.compile(r"^ {4}([\w/ ().%-]{1,120})=(\S{1,40})\s*$")
_STEP = "time/batch"
_STEPS_PER_S = (
    "throughput/batches_per_sec",
    "throughput/device/batches_per_second",
    "throughput/device/BPS",
)
_LOSS = re.compile(r"loss/train/|train/.{0,80}[Ll]oss")
_RATES = {
    "throughput/samples_per_sec": "samples_per_s",
    "throughput/tokens_per_sec": "tokens_per_s",
    "throughput/device/flops_per_sec": "flops_per_s_per_gpu",
    "throughput/device/mfu": "mfu_ratio",
    "optim/total grad norm": "grad_norm",
}
_OLMO_MFU_PERCENT = "throughput/device/MFU"
_OLMO_DATA_S = "throughput/device/data loading (s)"


_MOST_VALUES = 2000
"""Most values in a block, since a log might never end it. Chosen."""


class ComposerParser(FormatParser):
    """One log. Composer's `time/batch` counts the batches before this one, over all epochs."""

    keywords: Sequence[bytes] = (
        *(b"[batch=", b"[epoch=", b"[iteration=", b"[Eval batch=", b"Train time/batch: ", b"[step="),
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._block: dict[str, float] | None = None
        self._step: int | None = None
        """As OLMo's heading says it."""

    @property
    def in_block(self) -> bool:
        """Whether values of a batch come next."""
        return self._block is not None

    def parse(self, line: LogLine) -> bool:
        if _HEAD.match(line.text):
            self.flush()
            self._block = {}
            return True
        if heading := _OLMO.search(line.text):
            self.flush()
            self._block, self._step = {}, int(heading[1])
            return True
        if self._block is not None:
            style = _VALUE if self._step is None else _OLMO_VALUE
            if value := style.fullmatch(line.text):
                figure = number(value[2]) if self._step is None else grouped(value[2]) or number(value[2])
                if figure is not None and len(self._block) < _MOST_VALUES:
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
        step, self._step = self._step, None
        if not block or (step is None and _STEP not in block):
            return
        self._out.describe(framework="composer" if step is None else "olmo")
        values = {name: block[key] for key, name in _RATES.items() if block.get(key, 0) > 0}
        rate = next((block[name] for name in _STEPS_PER_S if block.get(name, 0) > 0), None)
        if rate is not None:
            values["step_time_s"] = 1 / rate
        if (percent := block.get(_OLMO_MFU_PERCENT, 0)) > 0:
            values["mfu_ratio"] = percent / 100
        losses = {key: value for key, value in block.items() if _LOSS.match(key) and is_plain_key(key)}
        if step is not None and not losses:
            # Evaluations and what is logged at the start have the same heading.
            return
        number_of_step = int(block[_STEP]) + 1 if step is None else step
        self._add_step(number_of_step, values, losses)
        if _OLMO_DATA_S in block:
            self._steps.timers({"data_loading": block[_OLMO_DATA_S]})
