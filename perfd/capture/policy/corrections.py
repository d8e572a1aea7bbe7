"""What to do about a refused capture: a sentence, and a command that does it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from perfd.capture.policy.policy_events import Capture
from perfd.model import CaptureState

_UNMET = (CaptureState.REFUSED, CaptureState.LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """How to get the capture after all."""

    words: str
    command: str
    node: str | None = None
    """Where to run the command; None: wherever the aggregator can be reached."""


_AGAIN = "{start}{profile}{ranks}{steps}"
# By a pattern in the reason; the first match counts.
_RULES: Sequence[tuple[str, str, str]] = (
    (
        r"nsys not found",
        "Install nsight-systems-cli on the node, or restart the job for captures with Kineto:",
        "perfd run --kineto -- COMMAND",
    ),
    (
        r"nsys launch|KINETO_USE_DAEMON|Kineto are off",
        "Restart the job with perfd, which prepares its processes for captures:",
        "perfd run --kineto -- COMMAND",
    ),
    (
        r"TORCH_NCCL_DEBUG_INFO_PIPE_FILE|TORCH_FR_BUFFER_SIZE",
        "Restart the job with NCCL's flight recorder:",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_ TORCH_FR_BUFFER_SIZE=2000 COMMAND",
    ),
    (
        r"(?:Capture|Busy: capture) (?P<other>\S+) (?:of this \w+ is still|is) running",
        "Wait until that capture has ended, or cancel it:",
        "perfd capture cancel {other}",
    ),
    (r"^(?:Cooldown|Budget): ", "Captures started by hand have no such limit:", _AGAIN),
    (r"^No capture profile", "Use an existing profile:", "{start}{ranks}{steps}"),
    (r"it hangs, and a profiler", "Capture the stacks of its ranks instead:", "{start} --profile hang"),
    (r"The job ends in about", "Capture fewer steps:", "{start}{profile}{ranks} --steps 1"),
    (
        r"No rank of job|has no rank|slowest ranks of job|names no culprits|nodes of the ranks|layout lacks",
        "Choose other ranks:",
        "{start}{profile} --ranks all{steps}",
    ),
    (r"saves a checkpoint|try again|only just started", "Try again in a moment:", _AGAIN),
)
_DOCTOR = "perfd doctor"


def correction_of(capture: Capture) -> Correction | None:
    """What to do if a capture, or a rank of it, was refused or its agent was late; otherwise None."""
    unmet = [who for who in capture.participants if who.state in _UNMET]
    if capture.state not in _UNMET and not unmet:
        return None
    reason = capture.reason if capture.state in _UNMET else unmet[0].reason
    for pattern, words, command in _RULES:
        if found := re.search(pattern, reason):
            # Reasons come from nodes: a name in one must not become a command.
            parts = {name: shlex.quote(text) for name, text in found.groupdict().items()}
            return Correction(words=words, command=command.format_map({**_options(capture), **parts}))
    node = next((who.node for who in unmet if who.node), None)
    where = f"On {node}, this" if node else "On the job's nodes, this"
    return Correction(words=f"{where} shows what is missing:", command=_DOCTOR, node=node)


def _options(capture: Capture) -> dict[str, str]:
    """The parts of a command that repeats a capture."""
    # A capture that an alert started has the steps of its profile.
    steps = None if capture.alert else capture.steps
    return {
        "start": f"perfd capture start {shlex.quote(capture.job)}",
        "profile": "" if capture.profile == "default" else f" --profile {shlex.quote(capture.profile)}",
        "ranks": f" --ranks {shlex.quote(capture.ranks)}" if capture.ranks else "",
        "steps": "" if steps is None else f" --steps {steps}",
    }
