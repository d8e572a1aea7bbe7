"""Lines of a log: cut from its bytes, without ANSI colors and launchers' prefixes.

Those are srun's, torchrun's, Ray's and container runtimes'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from perfd_collectors.training_log.timestamps import zoned_ns

MAX_LINE_BYTES = 64 * 1024
"""Longer lines are dropped: no trainer prints them."""
_SLICE_BYTES = 1 << 20
"""Processed at a time, which bounds memory."""

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (?:(?:stdout|stderr) [FP] )?", re.ASCII
)
_TORCHRUN = re.compile(r"\s*\[[A-Za-z][\w.-]{0,64}?:?(\d{1,9})\]: ?", re.ASCII)
_SRUN = re.compile(r"\s*\d{1,9}: ", re.ASCII)
_RAY = re.compile(r"\([\w.:-]+ pid=\d+(?:, ip=[\w.:]+)?\) ", re.ASCII)
_GLOBAL_RANK = re.compile(r"\s*\[rank:?(\d{1,9})\]:", re.ASCII)
_MAY_BE_PREFIXED = re.compile(r"\s*[\[({\d]", re.ASCII)
_MAX_PREFIXES = 6
"""Prefixes removed from a line: launchers may be nested (container runtime, srun, torchrun)."""
_GARBAGE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]")


class LineBuffer:
    """Splits a stream of bytes into blocks of complete lines; buffers the unfinished line.

    A carriage return also ends a line, because progress bars print nothing else.
    Lines longer than `MAX_LINE_BYTES` are dropped.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._skipping = False
        self.dropped_lines = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Blocks of complete lines; each block ends with a newline."""
        view = memoryview(data)
        starts = range(0, len(data), _SLICE_BYTES)
        blocks = (self._feed_slice(bytes(view[start : start + _SLICE_BYTES])) for start in starts)
        return [block for block in blocks if block]

    def gap(self) -> None:
        """Drop the unfinished line and everything up to the next newline: bytes were lost."""
        self._hold(b"")
        self._skipping = True

    def restart(self) -> None:
        """Drop the unfinished line: the stream restarts at the start of a line."""
        self._hold(b"")
        self._skipping = False

    def rest(self) -> bytes:
        """Return and clear the unfinished line."""
        rest = b"".join(self._pieces)
        self.restart()
        return rest

    def _feed_slice(self, data: bytes) -> bytes:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if not end:
            self._grow(data)
            return b""
        first = data.find(b"\n") + 1
        whole = data[:end] if not self._skipping else data[first:end]
        if self._pieces:
            whole = b"".join([*self._pieces, whole])
        self._skipping = False
        self._hold(data[end:])
        return whole

    def _grow(self, data: bytes) -> None:
        if self._skipping:
            return
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_LINE_BYTES:
            self.dropped_lines += 1
            self.gap()

    def _hold(self, data: bytes) -> None:
        self._pieces = [data] if data else []
        self._held_bytes = len(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line without prefixes, as passed to parsers."""

    text: str
    rank: int | None = None
    """The global rank in a launcher's prefix."""
    unix_ns: int | None = None
    """When a container runtime received it: the only printed time with a zone."""
    complete: bool = True
    """Whether its end was read; of an incomplete line only terminated fields count."""
    after_clear: bool = False
    """Whether a progress bar was cleared since it was drawn last, to print something."""

    @property
    def damaged(self) -> bool:
        """Whether it contains control characters or invalid UTF-8: fields may be lost."""
        return _GARBAGE.search(self.text) is not None


def read_line(raw: bytes, *, complete: bool = True, after_clear: bool = False) -> LogLine:
    """The line without colors and launchers' prefixes."""
    text = raw.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    rank: int | None = None
    unix_ns: int | None = None
    for _ in range(_MAX_PREFIXES):
        if not _MAY_BE_PREFIXED.match(text):
            break
        if text.startswith('{"'):
            wrapped = _unwrap_json(text)
            if wrapped is None:
                break
            text, unix_ns = wrapped[0], wrapped[1] or unix_ns
            continue
        if match := _RFC3339.match(text):
            unix_ns = zoned_ns(text)
        elif match := _TORCHRUN.match(text):
            named = _GLOBAL_RANK.match(text)
            rank = int(named[1]) if named else rank
        else:
            match = _SRUN.match(text) or _RAY.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return LogLine(text=text, rank=rank, unix_ns=unix_ns, complete=complete, after_clear=after_clear)


def _says_a_step(wrapper: dict[str, object]) -> bool:
    """Whether it has the numbers of a step itself, beside its message, and does not wrap a text."""
    whole = any(type(wrapper.get(key)) is int for key in ("step", "global_step", "iteration", "iter"))
    return whole and any("loss" in key for key in wrapper)


def _unwrap_json(text: str) -> tuple[str, int | None] | None:
    """Text (`log`, `message` or `msg`) and time of a container runtime's JSON line; None if it is not one."""
    try:
        wrapper = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(wrapper, dict) or _says_a_step(wrapper):
        return None
    if isinstance(record := wrapper.get("record"), dict):
        # Loguru's own JSON has the message there.
        wrapper = record
    inner = next(
        (wrapper[key] for key in ("log", "message", "msg") if isinstance(wrapper.get(key), str)), None
    )
    if inner is None:
        return None
    moment = next((wrapper[key] for key in ("time", "timestamp") if isinstance(wrapper.get(key), str)), "")
    return inner.rstrip("\r\n"), zoned_ns(moment)
