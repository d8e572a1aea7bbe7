"""OpenRLHF's line of a round, `Global step 5: {'policy_loss': ...}`, beside the bars of its actors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import FormatParser, LogLine
from perfd_collectors.training_log.printed_fields import dict_numbers

_ROUND = re.compile(r"\bGlobal step ([0-9]{1,15}): \{('[^{}]*)\}\s*$")
_EVALUATION = re.compile(r"\bEvaluation completed in [^,]{1,40}, global_step ([0-9]{1,15}), eval_metrics: ")
_INNER_BAR = re.compile(r"Train epoch \[[0-9]{1,9}/[0-9]{1,9}\]: ")
"""The updates of one round: each round draws it from 0."""
_EPISODE_BAR = re.compile(r"\bEpisode \[[0-9]{1,9}/[0-9]{1,9}\]: {1,4}[0-9]{1,3}%")
"""It counts prompts."""
_INNER_LOSSES = (", act_loss=", ", critic_loss=")
_PHASE = "timing/"
_TOTAL = "step_total"


class OpenRlhfParser(FormatParser):
    """One log of OpenRLHF's PPO and its relatives. Versions before 0.9 print no times."""

    keywords: Sequence[bytes] = (b"Global step ", b"Evaluation completed in ", b"Train epoch [", b"Episode [")

    def parse(self, line: LogLine) -> bool:
        inner = _INNER_BAR.search(line.text) and any(name in line.text for name in _INNER_LOSSES)
        if inner or _EPISODE_BAR.search(line.text):
            return True
        if evaluation := _EVALUATION.search(line.text):
            self._out.event(EventKind.EVALUATION, "Evaluation.", step=int(evaluation[1]))
            return True
        said = _ROUND.search(line.text)
        if said is None:
            return False
        values = dict_numbers(said[2])
        phases = {
            name.removeprefix(_PHASE): value for name, value in values.items() if name.startswith(_PHASE)
        }
        losses = {name: value for name, value in values.items() if "loss" in name}
        if not losses and not phases:
            return False
        self._out.describe(framework="openrlhf")
        time_s = phases.pop(_TOTAL, None)
        used = {_PHASE + name for name in (*phases, _TOTAL)} | losses.keys() | {"actor_grad_norm", "actor_lr"}
        self._add_step(
            int(said[1]),
            {
                "step_time_s": time_s,
                "grad_norm": values.get("actor_grad_norm"),
                "learning_rate": values.get("actor_lr"),
            },
            losses,
            {name: value for name, value in values.items() if name not in used},
        )
        self._steps.timers(phases)
        return True
