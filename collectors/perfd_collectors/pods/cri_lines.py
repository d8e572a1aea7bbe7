"""The container runtime's log of a container, as the bytes that its processes wrote."""

from __future__ import annotations

import re
from datetime import datetime

_LINE = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d))"
    rb" (stdout|stderr) ([FP])(?::[^ \n]*)? ?"
)
_MOST_HELD_BYTES = 64 * 1024
"""Runtimes cut a line of output after 16 KiB; a longer one without an end is none of theirs."""


class CriLines:
    """Takes apart lines of the container runtime interface: `TIME STREAM F|P TEXT`.

    `P` marks a part of a line, which is joined. Each line of the result begins with its time, as other logs
    of runtimes do, also where a progress bar goes back to the line's start. What is no such line is dropped.
    """

    def __init__(self) -> None:
        self._held = b""
        self._skipping = False
        self._inside: set[str] = set()
        """Streams whose line has begun and not ended."""
        self.dropped_lines = 0

    def feed(self, data: bytes) -> dict[str, bytes]:
        """What the container wrote, by stream (`stdout`, `stderr`)."""
        lines = (self._held + data).split(b"\n")
        self._held = lines.pop()
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        if len(self._held) > _MOST_HELD_BYTES:
            self._held, self._skipping = b"", True
            self.dropped_lines += 1
        pieces: dict[str, list[bytes]] = {}
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                self.dropped_lines += bool(line)
                continue
            stream = found[2].decode()
            pieces.setdefault(stream, []).append(self._text(stream, found[1] + b" ", line[found.end() :]))
            if found[3] == b"F":
                pieces[stream].append(b"\n")
                self._inside.discard(stream)
            else:
                self._inside.add(stream)
        return {stream: b"".join(parts) for stream, parts in pieces.items()}

    def gap(self) -> None:
        """Bytes of the log were lost: lines that have begun do not go on."""
        self._held, self._skipping = b"", True
        self._inside.clear()

    def _text(self, stream: str, time: bytes, text: bytes) -> bytes:
        text = text.removesuffix(b"\r")
        if b"\r" in text:
            text = text.replace(b"\r", b"\r" + time)
        return text if stream in self._inside else time + text


def first_time_unix_ns(data: bytes) -> int | None:
    """When the runtime received the first line of a log, to a microsecond; None without a whole time."""
    found = _LINE.match(data)
    if found is None:
        return None
    try:
        return round(datetime.fromisoformat(found[1].decode()).timestamp() * 1e6) * 1000
    except ValueError:
        return None
