"""slime's lines: `step N: {...}` after each update, `perf N: {...}` with the times of a round of updates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.printed_fields import dict_numbers

_LINE = re.compile(r"\.py:[0-9]{1,6} - (step|perf|eval|rollout) ([0-9]{1,15}): \{('[^{}]*)\}\s*$")
_TIME = re.compile(r"perf/(\w{1,60})_time")
_STEP_TIME = "perf/step_time"


class SlimeParser(FormatParser):
    """One log of slime. A round's record is that of its last update, with the mean time of its updates.

    `step` counts updates from 0 and `perf` rounds; a round may have several updates.
    """

    keywords: Sequence[bytes] = (b" - step ", b" - perf ", b" - eval ", b" - rollout ")

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._updates = 0
        self._newest = 0
        """The number of the newest update."""
        self._values: Mapping[str, float] = {}
        self._whole = False
        """Whether all updates of the round were read."""

    def parse(self, line: LogLine) -> bool:
        said = _LINE.search(line.text)
        if said is None:
            return False
        kind, number, values = said[1], int(said[2]), dict_numbers(said[3])
        if not any("/" in name for name in values):
            return False
        if kind == "step" and values.get("train/step") == number:
            self._whole |= number == 0
            self._updates += 1
            self._newest = number
            self._values = values
        elif kind == "perf" and _STEP_TIME in values:
            self._round(values)
        elif kind == "eval":
            self._out.event(EventKind.EVALUATION, "Evaluation.", step=self._steps.last_step)
        return True

    def _round(self, perf: Mapping[str, float]) -> None:
        updates, self._updates = self._updates, 0
        whole, self._whole = self._whole, True
        if not updates:
            return
        self._out.describe(framework="slime")
        values = self._values
        share = 1 / updates
        losses = {name: value for name, value in values.items() if name.endswith("loss")}
        used = {*losses, "train/grad_norm", "train/lr-pg_0", "train/global_batch_size", "train/step"}
        self._add_step(
            self._newest,
            {
                "step_time_s": perf[_STEP_TIME] * share if whole else None,
                "grad_norm": values.get("train/grad_norm"),
                "learning_rate": values.get("train/lr-pg_0"),
                "global_batch_size": values.get("train/global_batch_size") or None,
            },
            losses,
            {name: value for name, value in values.items() if name not in used}
            | {name: value for name, value in perf.items() if not _TIME.fullmatch(name)},
        )
        if whole:
            times = ((timer[1], value) for name, value in perf.items() if (timer := _TIME.fullmatch(name)))
            self._steps.timers({name: value * share for name, value in times if name != "step"})
