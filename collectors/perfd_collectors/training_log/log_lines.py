"""One line of a log without ANSI colors and launchers' prefixes: srun, torchrun, Ray, container runtimes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from perfd_collectors.training_log.timestamps import zoned_ns

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


def _unwrap_json(text: str) -> tuple[str, int | None] | None:
    """Text (`log`, `message` or `msg`) and time of a container runtime's JSON line; None if it is not one."""
    try:
        wrapper = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(wrapper, dict):
        return None
    inner = next(
        (wrapper[key] for key in ("log", "message", "msg") if isinstance(wrapper.get(key), str)), None
    )
    if inner is None:
        return None
    moment = next((wrapper[key] for key in ("time", "timestamp") if isinstance(wrapper.get(key), str)), "")
    return inner.rstrip("\r\n"), zoned_ns(moment)
