"""Times that a log prints, and what they mean: a log says the hour but not the time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

# With a point before the fraction or, as Python's logging has it, a comma.
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?", re.ASCII)
_AMERICAN = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d:\d\d)", re.ASCII)
_ZONED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER_NS = 900 * 10**9
_EARLIEST_LAG_NS = -5 * 10**9
_LATEST_LAG_NS = 60 * 10**9


def last_stamp_ns(text: str) -> int | None:
    """The last time in a text, in nanoseconds as if its zone were UTC; None when there is none."""
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
    """The unix time that a text begins with when it names its zone, as container runtimes do."""
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
    """Turns printed times into unix times, once it knows how far the log's clock is from UTC.

    Zones differ by multiples of a quarter of an hour, so a line that was read
    within a minute of being printed tells the zone; a line that was read much
    later tells nothing.
    """

    def __init__(self, offset_ns: int | None = None) -> None:
        self._offset_ns = offset_ns
        self._fixed = offset_ns is not None

    @classmethod
    def at_start(cls, printed_ns: int, started_unix_ns: int) -> TimeZoneGuess:
        """The zone of a recording whose first printed time is `printed_ns`."""
        return cls(_nearest_quarter(started_unix_ns - printed_ns))

    def learn(self, printed_ns: int, read_unix_ns: int) -> None:
        """Take in that a line with a printed time was the newest at `read_unix_ns`."""
        if self._fixed:
            return
        offset = _nearest_quarter(read_unix_ns - printed_ns)
        if _EARLIEST_LAG_NS <= read_unix_ns - printed_ns - offset <= _LATEST_LAG_NS:
            self._offset_ns = offset

    def unix_ns(self, printed_ns: int) -> int | None:
        """The unix time of a printed one, or None while the zone is not known."""
        return None if self._offset_ns is None else printed_ns + self._offset_ns


def _nearest_quarter(difference_ns: int) -> int:
    return (difference_ns + _QUARTER_NS // 2) // _QUARTER_NS * _QUARTER_NS
