"""Which run of W&B a job writes: as its client prints it, or as its run file says.

The client prints the address once the server knows the run; the file has the entity if the job names it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from perfd_collectors.training_log.format_parser import FormatParser, LogLine

_CLIENT = "wandb: "
_VIEW = re.compile(r"\bView run\b")
_ADDRESS = re.compile(r"https?://[\w.:-]{1,253}/[^\s/?#]{1,128}/[^\s/?#]{1,128}/runs/[\w.-]{1,128}")
_NAME = re.compile(r"[^\s/?#]{1,128}")
_OFFLINE = "offline-run-"


class WandbRunParser(FormatParser):
    """`wandb: View run at https://wandb.ai/team/project/runs/1a2b3c4d`, in the job's output."""

    takes_damaged = True
    keywords: Sequence[bytes] = (b"View run",)

    def parse(self, line: LogLine) -> bool:
        """Note the run; the line may have colors."""
        found = _address_in(re.sub(r"\x1b\[[0-9;]*m", "", line.text))
        if found is None:
            return False
        self._out.describe(wandb_run=found)
        return True


def _address_in(text: str) -> str | None:
    """The run's address, with which the client's line about it ends."""
    words, _, last = text.rstrip().rpartition(" ")
    client = words.find(_CLIENT)
    if client < 0 or _VIEW.search(words, client) is None or _ADDRESS.fullmatch(last) is None:
        return None
    return last


def run_of_file(stream: str, entity: str, project: str, run_id: str) -> str | None:
    """`team/project/runs/1a2b3c4d`, or without an unknown team; None for a run that no server has."""
    if any(part.startswith(_OFFLINE) for part in PurePath(stream).parts):
        return None
    parts = [*([entity] if entity else []), project]
    if not all(_NAME.fullmatch(part) for part in (*parts, run_id)):
        return None
    return "/".join([*parts, "runs", run_id])


def better_run(known: str | None, found: str) -> str:
    """The newer of two, but the fuller name of the same run."""
    return known if known is not None and known.endswith(f"/{found}") else found
