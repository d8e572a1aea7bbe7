"""Reads the files of XLA's profiler, `HOST.xplane.pb`, as traces of their devices."""

from __future__ import annotations

import mmap
from pathlib import Path

from google.protobuf.message import DecodeError

from perfd.errors import TraceError
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.readers.decompress import unpacked
from perfd.trace.readers.jax_events import JaxEvents
from perfd.trace.readers.xplane.hlo_collectives import read_collectives
from perfd.trace.readers.xplane.plane_events import chrome_events, clock_zero_unix_ns

_GZIP = b"\x1f\x8b"


def read(path: Path, *, shown_as: str | None = None) -> list[RankTrace]:
    """One trace for each device that did something; raises `TraceError`, naming the file."""
    shown = Path(shown_as or path)
    try:
        with path.open("rb") as file:
            if file.read(len(_GZIP)) == _GZIP:
                with unpacked(path) as plain:
                    return read(plain, shown_as=str(shown))
            # It is unmapped with the last view of it, which an exception may hold.
            return read_space(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), shown)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{shown}: cannot be read: {reason}.") from error


def read_space(space: memoryview, shown: Path) -> list[RankTrace]:
    """The traces of an XSpace in memory; raises as `read`."""
    try:
        events = JaxEvents()
        for event in chrome_events(space):
            events.add(event)
        found = events.traces(shown, read_collectives(space), clock_zero_unix_ns(space))
    except (ValueError, DecodeError, RecursionError) as error:
        raise TraceError(
            f"{shown}: this is not an XSpace of XLA's profiler, or it is truncated: {error}."
        ) from error
    if not found:
        raise TraceError(f"{shown}: the trace has no device activity.")
    return found
