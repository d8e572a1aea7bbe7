"""Follows the files that NCCL writes with NCCL_DEBUG_FILE.

NCCL's lines in the training log itself are read by `training_log`.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from perfd.collector import Settings
from perfd.model import Event, EventKind
from perfd_collectors.file_follower import FileFollower
from perfd_collectors.nccl.debug_log.debug_lines import DebugLog, DebugRemark

_READ_BYTES = 4 << 20
"""Read per collect from all files, which bounds memory and time. Chosen, not measured."""
_MAX_LINE_BYTES = 64 << 10
"""The rest of a longer line is dropped; bounds memory. Chosen, not measured."""
_MAX_EVENTS = 64
"""Events per collect: a process in trouble prints a warning per channel."""


class DebugFiles:
    """Warnings and slow transports of all processes of this node, as events."""

    def __init__(self, patterns: Sequence[str], settings: Settings) -> None:
        self._settings = settings
        self._follower = FileFollower(partial(_files, patterns), from_start=True)
        self._rests: dict[str, bytes] = {}
        self._log = DebugLog()

    def collect(self) -> list[Event]:
        """Events of the lines written since the last call, each message once."""
        now_unix_ns = self._settings.clock.unix_ns()
        remarks: dict[str, DebugRemark] = {}
        for chunk in self._follower.poll(_READ_BYTES):
            rest = b"" if chunk.begins_anew else self._rests.get(chunk.stream, b"")
            *lines, rest = (rest + chunk.data).split(b"\n")
            self._rests[chunk.stream] = rest[:_MAX_LINE_BYTES]
            for line in lines:
                for remark in self._log.feed(line.decode("utf-8", "replace")):
                    remarks.setdefault(remark.message, remark)
        return [
            Event(
                kind=EventKind.NCCL_WARNING,
                time_unix_ns=now_unix_ns,
                message=remark.message,
                job=self._settings.job,
            )
            for remark in list(remarks.values())[:_MAX_EVENTS]
        ]

    def close(self) -> None:
        """Close all files."""
        self._follower.close()


def _files(patterns: Sequence[str]) -> Mapping[str, Path]:
    found = (Path(name) for pattern in patterns for name in glob.glob(pattern))  # noqa: PTH207  (may be absolute)
    return {str(path): path for path in found if path.is_file()}
