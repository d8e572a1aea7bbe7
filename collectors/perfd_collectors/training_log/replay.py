"""Plays a recorded log by the times in the log, or in a file beside it."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from perfd.collector import Settings
from perfd.errors import RecordingError
from perfd.model import LogProgress, Record
from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.timestamps import TimeZoneGuess, last_timestamp_ns

# Only where programs print the current time: in brackets, after `datetime:`, at the start of a line.
_TIMESTAMP = re.compile(
    rb"(?:\[|datetime: |\[titan\] |^)(?=\d)"
    rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)",
    re.MULTILINE,
)
_MAX_PAUSE_NS = 86_400 * 10**9
"""One day: a larger difference to the previous time is not of the same clock."""
_MANIFEST = "recording.json"
_TIMES_SUFFIX = ".times"


_LATEST_UNIX_S = 4_102_444_800.0
"""The first of January 2100: what is later was never printed."""


class _Manifest(msgspec.Struct):
    start_unix_s: float | None = None


class _Time(msgspec.Struct):
    unix_s: float
    offset: int


class RecordedLog:
    """A recorded `training-log` stream.

    A sibling file `NAME.times` has the number of bytes printed by each time: lines of JSON
    (`{"unix_s", "offset"}`) or of the two numbers. Without it a line is due at the next time printed
    in the log. Printed times have no zone: the one, in quarters of an hour, is used that puts the first
    time closest to the start of the recording.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._clock = settings.clock
        self._stream = path.name
        self._content = _content(path)
        schedule = _read_times(path.with_name(path.name + _TIMES_SUFFIX), len(self._content))
        self._times_are_exact = schedule is not None
        if schedule is None:
            zone, schedule = _schedule_of_timestamps(self._content, _started_unix_ns(path))
        else:
            zone = TimeZoneGuess()
        self._schedule = schedule
        self._job = new_job(settings.job, zone)
        self._parser = LogParser(self._job)
        self._next = 0
        self._offset = 0
        self._last_line_unix_ns: int | None = None

    def span_unix_ns(self) -> tuple[int, int] | None:
        """The times of the first and the last line; None for a log without times."""
        return (self._schedule[0][0], self._schedule[-1][0]) if self._schedule else None

    def collect(self) -> Sequence[Record]:
        """The records of all due lines."""
        now_unix_ns = self._clock.unix_ns()
        records: list[Record] = []
        before = self._offset
        if not self._schedule:
            records += self._play(len(self._content), now_unix_ns)
        while self._next < len(self._schedule) and self._schedule[self._next][0] <= now_unix_ns:
            due_unix_ns, end = self._schedule[self._next]
            self._next += 1
            records += self._play(end, due_unix_ns)
        return [*records, self._progress()] if self._offset > before else ()

    def close(self) -> None:
        """Drop the log."""
        self._schedule = []
        self._content = b""
        self._offset = 0

    def _play(self, end: int, due_unix_ns: int) -> Sequence[Record]:
        if end <= self._offset:
            return ()
        self._job.out.written(due_unix_ns if self._times_are_exact else None)
        self._parser.feed(self._content[self._offset : end])
        self._offset = end
        self._last_line_unix_ns = due_unix_ns
        if end >= len(self._content):
            self._parser.finish()
        return self._job.out.take(due_unix_ns, due_unix_ns)

    def _progress(self) -> LogProgress:
        return LogProgress(
            job=self._job.out.job,
            stream=self._stream,
            lines=self._parser.lines,
            read_bytes=self._parser.read_bytes,
            unrecognized_lines=self._parser.unrecognized_lines,
            last_line_unix_ns=self._last_line_unix_ns,
            times_are_exact=self._times_are_exact,
        )


def _content(path: Path) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        # Empty files cannot be memory-mapped.
        return b""
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}.") from error


def _started_unix_ns(path: Path) -> int | None:
    """Start of the recording in the nearest `recording.json` above its file; None if unknown."""
    for folder in path.absolute().parents[:3]:
        manifest = folder / _MANIFEST
        if manifest.is_file():
            try:
                start = msgspec.json.decode(manifest.read_bytes(), type=_Manifest).start_unix_s
            except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return None
            return round(start * 1e9) if start is not None and 0 <= start < _LATEST_UNIX_S else None
    return None


def _schedule_of_timestamps(
    content: mmap.mmap | bytes, started_unix_ns: int | None
) -> tuple[TimeZoneGuess, list[tuple[int, int]]]:
    """The log's time zone, and its schedule: due times with the offset up to which the log is due."""
    stamps = list(_timestamps(content))
    if not stamps:
        started = [] if started_unix_ns is None else [(started_unix_ns, len(content))]
        return TimeZoneGuess(), started
    first_ns = min(printed_ns for printed_ns, _ in stamps)
    zone = TimeZoneGuess(0) if started_unix_ns is None else TimeZoneGuess.at_start(first_ns, started_unix_ns)
    schedule: list[tuple[int, int]] = []
    latest_ns = first_ns
    for printed_ns, end in stamps:
        # Several writers interleave and may print earlier times, so the schedule is made monotonic.
        latest_ns = max(latest_ns, printed_ns)
        due_unix_ns = zone.unix_ns(latest_ns) or 0
        if schedule and schedule[-1][0] == due_unix_ns:
            schedule.pop()
        schedule.append((due_unix_ns, end))
    schedule[-1] = (schedule[-1][0], len(content))
    return zone, schedule


def _timestamps(content: mmap.mmap | bytes) -> Iterator[tuple[int, int]]:
    """Printed times with the end of their line; times far from the previous one are skipped."""
    before_ns: int | None = None
    for match in _TIMESTAMP.finditer(content):
        printed_ns = last_timestamp_ns(match[1].decode("ascii"))
        if printed_ns is None or (before_ns is not None and abs(printed_ns - before_ns) > _MAX_PAUSE_NS):
            continue
        before_ns = printed_ns
        end = content.find(b"\n", match.end()) + 1
        yield printed_ns, end or len(content)


def _read_times(path: Path, size: int) -> list[tuple[int, int]] | None:
    """The schedule in a `.times` file; None when it is missing or invalid."""
    if not path.is_file():
        return None
    schedule: list[tuple[int, int]] = []
    for line in path.read_bytes().splitlines():
        entry = _time(line)
        if entry is None or not 0 <= entry.unix_s < _LATEST_UNIX_S:
            continue
        if entry.offset <= (schedule[-1][1] if schedule else 0):
            continue
        due_unix_ns = round(entry.unix_s * 1e9)
        if schedule:
            due_unix_ns = max(due_unix_ns, schedule[-1][0])
        schedule.append((due_unix_ns, min(entry.offset, size)))
    if not schedule:
        return None
    if schedule[-1][1] < size:
        # The recorder was killed after writing the last bytes, before writing their time.
        schedule.append((schedule[-1][0], size))
    return schedule


def _time(line: bytes) -> _Time | None:
    try:
        if line.startswith(b"{"):
            return msgspec.json.decode(line, type=_Time)
        unix_s, offset = line.split()
        return _Time(unix_s=float(unix_s), offset=int(offset))
    except (msgspec.DecodeError, ValueError):
        return None
