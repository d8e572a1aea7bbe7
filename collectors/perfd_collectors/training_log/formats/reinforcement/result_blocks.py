"""Results as blocks of rows: boxes of Stable-Baselines3 and OpenAI's logger, RLlib's iterations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.formats.step_lines import LOOPS
from perfd_collectors.training_log.printed_fields import integer, is_plain_key, number

_BOX = re.compile(
    r"\| (?:(?:rollout|time|train|eval)/ {0,60}\|[^|]{0,60}"
    r"|(?:grad_norm|loss) {1,60}\| {0,20}[0-9.e+-]{1,20} {0,40})\|$"
)
_BOX_ROW = re.compile(r"\| {1,8}([\w/]{1,60}) {0,60}\|([^|]{0,60})\|$")
_TRIAL = re.compile(r"(?:Result for ([^\s:]{1,200}):|\u2502 Trial (\S{1,200}) result {1,120}\u2502)\s{0,4}$")
_TRIAL_ROW = re.compile(
    r"[\s\u2502]{0,12}([\w/]{1,120})(?:: {1,4}| {1,120})(\S{1,60})[\s\u2502]{0,120}$", re.ASCII
)
_TRIAL_FRAME = re.compile(r"[\s\u2500\u251c\u2524\u256d\u256e]{1,400}$")
_TRIAL_GROUP = re.compile(r"\s{1,12}[\w/]{1,120}:\s{0,4}$")
_OF_RLLIB = ("env_steps", "episode_reward_mean", "episode_return_mean")
"""Other results of Ray Tune are a loop's own, mostly of an epoch."""


_MOST_ROWS = 2000
"""Most rows in a block, since a log might never end it. Chosen."""


class ResultBlockParser(FormatParser):
    """Blocks of one log: the first trial's, since trials run side by side.

    A step is an iteration of the algorithm; of those that have none (DQN, SAC), an update.
    """

    keywords: Sequence[bytes] = (
        *(b"| rollout/", b"| time/", b"| train/", b"Result for ", b" result "),
        *(b"| grad_norm ", b"| loss "),
    )

    def __init__(self, job: LogContext) -> None:
        super().__init__(job)
        self._box: dict[str, float] | None = None
        self._rows: dict[str, float] | None = None
        self._trial: str | None = None
        self._counts = False
        """Whether the open block is of the first trial."""

    @property
    def in_block(self) -> bool:
        """Whether rows may come next."""
        return self._box is not None or self._rows is not None

    def parse(self, line: LogLine) -> bool:
        text = line.text.rstrip()
        if self._box is not None or _BOX.match(text):
            return self._boxed(text)
        if trial := _TRIAL.match(text):
            self.flush()
            self._rows = {}
            name = trial[1] or trial[2]
            self._trial = self._trial or name
            self._counts = name == self._trial
            return True
        return self._rows is not None and self._result(text)

    def flush(self) -> None:
        """Emit the block whose rows were read."""
        box, self._box = self._box, None
        rows, self._rows = self._rows, None
        # Without its first rows, which say how far the run is, it was read from its middle.
        if box is not None and "total_timesteps" in box:
            self._add("stable-baselines3", box.get("iterations", box.get("n_updates")), None, box)
        elif box is not None and "step" in box and self._out.description.framework in LOOPS | {None}:
            # Of guided-diffusion and others that took over this logger.
            self._add("training-loop", box["step"], None, box)
        if rows is not None and self._counts and any(word in name for name in rows for word in _OF_RLLIB):
            self._add("rllib", rows.get("training_iteration"), rows.get("time_this_iter_s"), rows)

    def _boxed(self, text: str) -> bool:
        self._box = {} if self._box is None else self._box
        row = _BOX_ROW.match(text)
        if row is None or len(self._box) >= _MOST_ROWS:
            closes = not text.strip("-")
            self.flush()
            return closes
        if (value := number(row[2])) is not None:
            self._box[row[1]] = value
        return True

    def _result(self, text: str) -> bool:
        if _TRIAL_FRAME.match(text) or _TRIAL_GROUP.match(text):
            return True
        row = _TRIAL_ROW.match(text)
        if row is None or len(self._rows or ()) >= _MOST_ROWS:
            closes = text.startswith("\u2570")
            self.flush()
            return closes
        if self._rows is not None and (value := number(row[2])) is not None:
            self._rows.setdefault(row[1], value)
        return True

    def _add(
        self, framework: str, step: float | None, time_s: float | None, values: dict[str, float]
    ) -> None:
        step_number = None if step is None else integer(repr(step))
        if step_number is None:
            return
        self._out.describe(framework=framework)
        losses = {
            name: value
            for name, value in values.items()
            if name.rpartition("/")[2].endswith("loss") and is_plain_key(name)
        }
        if framework == "training-loop" and not losses:
            return
        fields = {"step_time_s": time_s, "learning_rate": values.get("learning_rate")}
        self._add_step(step_number, fields, losses)
