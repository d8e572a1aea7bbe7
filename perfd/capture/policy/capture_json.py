"""Captures as entries of schema perfd.capture/1, for the API, the history's readers and the command line.

A refused one has a sentence about what to do, and a command that does it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from perfd.capture.policy.capture_record import Capture, Participant
from perfd.model import CaptureFile, CaptureState

_UNMET = (CaptureState.REFUSED, CaptureState.LATE)
API_PATH = "/api/v1/captures"
SCHEMA = "perfd.capture/1"


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


def to_json(capture: Capture) -> dict[str, Any]:
    """One entry of schema perfd.capture/1; docs/captures.md describes it."""
    return {
        "id": capture.capture_id,
        "job": capture.job,
        "server": capture.server,
        "tool": capture.tool.value if capture.tool else None,
        "profile": capture.profile,
        "alert": capture.alert or None,
        "labels": dict(capture.labels),
        "value": capture.value if capture.value is not None and math.isfinite(capture.value) else None,
        "summary": capture.summary,
        "asked_by": capture.asked_by or None,
        "state": state_name(capture.state, whole=True),
        "reason": capture.reason,
        "correction": asdict(found) if (found := correction_of(capture)) else None,
        "requested_unix_s": capture.requested_unix_s,
        "ended_unix_s": capture.ended_unix_s,
        "steps": capture.steps,
        "max_duration_s": capture.max_duration_s,
        "report": asdict(capture.report) if capture.report else None,
        "ranks": [
            {
                "rank": who.rank,
                "node": who.node or None,
                "state": state_name(who.state),
                "reason": who.reason,
                "armed_unix_s": _seconds(who.armed_unix_ns),
                "started_unix_s": _seconds(who.started_unix_ns),
                "stopped_unix_s": _seconds(who.stopped_unix_ns),
                "ended_unix_s": _seconds(who.ended_unix_ns),
                "whole_steps": who.whole_steps,
                "files": [
                    {
                        "path": file.path,
                        "size_bytes": file.size_bytes,
                        "removed": asdict(who.removed[file.path]) if file.path in who.removed else None,
                        "upload": _upload(capture, who, file),
                    }
                    for file in who.files
                ],
            }
            for who in capture.participants
        ],
    }


def _upload(capture: Capture, who: Participant, file: CaptureFile) -> dict[str, Any] | None:
    """Where a file is in object storage; None if it stays on its node."""
    stored = who.stored.get(file.path)
    if stored is None:
        return {"state": "waiting", "reason": "", "url": None, "link": None} if file.upload else None
    return {
        "state": "stored" if stored.url else "failed",
        "reason": stored.reason,
        "url": stored.url or None,
        "link": link_path(capture.capture_id, stored.url),
        "size_bytes": stored.size_bytes,
        "sha256": stored.sha256,
        "unix_s": stored.unix_s,
    }


def link_path(capture_id: str, url: str) -> str | None:
    """The path that redirects to a stored file of a capture; None if it is not stored."""
    _, _, name = url.partition(f"/{capture_id}/")
    return f"{API_PATH}/{quote(capture_id, safe='')}/files/{quote(name)}" if name else None


def state_name(state: CaptureState | None, *, whole: bool = False) -> str:
    """The name of a rank's state, or that of a `whole` capture; None means that it has not ended."""
    if state is None:
        return "open" if whole else "requested"
    return state.value


def _seconds(unix_ns: int | None) -> float | None:
    return None if unix_ns is None else unix_ns / 1e9
