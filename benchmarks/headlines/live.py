"""What a live session said of the job that it recorded, to compare a replay with it.

`benchmarks.gpu.phase_runs` asks the session once a second and writes the answers to `looks.jsonl` beside the
recording, one object a line: `unix_s`, and `jobs`, the findings of `/api/v1/jobs/NAME`, without it while the
session did not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.headlines.looks import Look, Said, unlike

FILE = "looks.jsonl"
_ENDING_S = 2.0
"""After its last batch a job is over for the session; a recording ends with that batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLook:
    """What the session said at one moment."""

    unix_s: float
    said: Said


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many live looks the replay has too, within 2 s."""

    live_count: int
    unlike: Sequence[LiveLook]

    def __str__(self) -> str:
        words = f"live: {self.live_count - len(self.unlike)} of {self.live_count} looks are as replayed"
        return "\n    ".join([words, *map(_words, self.unlike)])


def live_looks(recording: Path) -> list[LiveLook] | None:
    """The headlines in `looks.jsonl` beside a recording, in order; None without such a file."""
    file = recording.parent / FILE
    if not file.is_file():
        return None
    rows = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    return [LiveLook(unix_s=row["unix_s"], said=_said(row["jobs"][0])) for row in rows if row.get("jobs")]


def agreement(live: Sequence[LiveLook], replayed: Sequence[Look], end: Look | None = None) -> Agreement:
    """Compare the live looks of the recorded time with the replay's.

    A session shows the summary of the whole job, `end`, as soon as the job is over, although its agents may
    still send something: the replay has it after the last record.
    """
    first_s, last_s = replayed[0].unix_s, replayed[-1].unix_s - _ENDING_S
    compared = [look for look in live if first_s <= look.unix_s <= last_s]
    last_step_unix_s = next(look.unix_s for look in replayed if look.step == replayed[-1].step)
    differing = [
        look
        for look in unlike(compared, replayed)
        if end is None or look.said != end.said or look.unix_s < last_step_unix_s
    ]
    return Agreement(live_count=len(compared), unlike=differing)


def _said(finding: dict[str, Any]) -> Said:
    return finding["kind"], tuple(f"{one['kind']} {one['id']}" for one in finding["culprits"])


def _words(look: LiveLook) -> str:
    kind, culprits = look.said
    return f"at {look.unix_s:.1f}: {kind}" + (f": {', '.join(culprits)}" if culprits else "")
