"""Events of Chrome traces with all that tables and the view of memory need; reading them takes longer."""

from __future__ import annotations

from typing import Any

import msgspec

from perfd.trace.readers.chrome_json import Args, ChromeEvent


class SizedArgs(Args, gc=False):
    """Also sizes of copies and shapes of launches."""

    copied_bytes: Any = msgspec.field(default=None, name="bytes")
    grid: Any = None
    block: Any = None


class DetailedArgs(SizedArgs, gc=False):
    """Also inputs of operators, and changes of memory."""

    input_dims: Any = msgspec.field(default=None, name="Input Dims")
    input_types: Any = msgspec.field(default=None, name="Input type")
    sequence_number: Any = msgspec.field(default=None, name="Sequence number")
    changed_bytes: Any = msgspec.field(default=None, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    total_allocated: Any = msgspec.field(default=None, name="Total Allocated")
    total_reserved: Any = msgspec.field(default=None, name="Total Reserved")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")


class SizedEvent(ChromeEvent, gc=False):
    """One event."""

    args: SizedArgs | None = None


class DetailedEvent(ChromeEvent, gc=False):
    """One event."""

    args: DetailedArgs | None = None


NO_DETAIL = DetailedArgs()


def detail_of(event: ChromeEvent) -> DetailedArgs:
    """The arguments of an event that was read as a `DetailedEvent`; empty ones where it has none."""
    return event.args if isinstance(event.args, DetailedArgs) else NO_DETAIL


def whole(value: object, most: int = 1 << 62) -> int | None:
    """A whole number that fits a column, also one written as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().isdigit() and len(value) < 20:
        value = int(value)
    return value if isinstance(value, int) and -most < value < most else None
