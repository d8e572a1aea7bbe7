"""Parses printed times, and infers the time zone that logs leave out."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

# With a point before the fraction, or a comma as in Python's logging.
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?", re.ASCII)
_AMERICAN = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d:\d\d)", re.ASCII)
_ZONED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER_NS = 900 * 10**9
"""Time zones differ by multiples of 15 minutes."""
_MIN_LAG_NS = -5 * 10**9
_MAX_LAG_NS = 60 * 10**9
"""From printing to reading a line, if it is used to infer the zone: clocks may differ by seconds, and a later
line may be old. Chosen, not measured."""


def last_timestamp_ns(text: str) -> int | None:
    """The last time in a text, in nanoseconds as if in UTC; None without one."""
    found = None
    for match in _ISO.finditer(text):
        found = match
    if found is not None:
        return _nanoseconds(f"{found[1]}T{found[2]}", found[3])
    american = _AMERICAN.search(text)
    if american is not None:
        month, day, year, clock = american.groups()
        return _nanoseconds(f"{year}-{month}-{day}T{clock}", None)
    return None


def zoned_ns(text: str) -> int | None:
    """The Unix time at the start of a text, if it has a time zone, as with container runtimes; else None."""
    match = _ZONED.match(text)
    if match is None:
        return None
    naive = _nanoseconds(match[1], match[2])
    if naive is None or match[3] == "Z":
        return naive
    hours, minutes = int(match[3][1:3]), int(match[3][4:6])
    return naive - (hours * 3600 + minutes * 60) * 10**9 * (-1 if match[3][0] == "-" else 1)


def _nanoseconds(iso: str, fraction: str | None) -> int | None:
    try:
        moment = datetime.fromisoformat(iso).replace(tzinfo=UTC)
    except ValueError:
        return None
    whole = (moment - _EPOCH) // timedelta(seconds=1) * 10**9
    return whole + int((fraction or "").ljust(9, "0"))


class TimeZoneGuess:
    """Converts printed times to Unix times, once the log's offset from UTC is known.

    Zones differ by multiples of 15 minutes, so a line that was read within a
    minute of being printed determines the zone.
    """

    def __init__(self, offset_ns: int | None = None) -> None:
        self._offset_ns = offset_ns
        self._fixed = offset_ns is not None

    @classmethod
    def at_start(cls, printed_ns: int, started_unix_ns: int) -> TimeZoneGuess:
        """The zone of a recording with the first printed time `printed_ns`."""
        return cls(_nearest_quarter(started_unix_ns - printed_ns))

    def learn(self, printed_ns: int, read_unix_ns: int) -> None:
        """Infer the zone from the newest line's printed time at `read_unix_ns`."""
        if self._fixed:
            return
        offset = _nearest_quarter(read_unix_ns - printed_ns)
        if _MIN_LAG_NS <= read_unix_ns - printed_ns - offset <= _MAX_LAG_NS:
            self._offset_ns = offset

    def unix_ns(self, printed_ns: int) -> int | None:
        """The Unix time of a printed time; None while the zone is unknown."""
        return None if self._offset_ns is None else printed_ns + self._offset_ns


def _nearest_quarter(difference_ns: int) -> int:
    return (difference_ns + _QUARTER_NS // 2) // _QUARTER_NS * _QUARTER_NS
