"""Captures as entries of schema perfd.capture/1, for the API, the history's readers and the command line."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from perfd.capture.policy.corrections import correction_of
from perfd.capture.policy.policy_events import Capture, Participant
from perfd.model import CaptureFile, CaptureState

API_PATH = "/api/v1/captures"


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
