"""What the job's log, NCCL and the hardware complained of: no verdict rests on it, people want to know it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfd.model import Event, EventKind

_KINDS = frozenset({
    EventKind.HARDWARE_ERROR, EventKind.LOG_ERROR, EventKind.NCCL_WARNING, EventKind.NCCL_TIMES_WRONG,
    EventKind.DUMP_UNREADABLE,
})  # fmt: skip
_MOST = 16
"""The newest, in a summary."""
_NUMBER = re.compile(r"\d+")
_ANY_RELEASE = "some overlap that cannot"
"""In messages of agents that advised something about NCCL 2.32 to jobs with any release."""
_ADVICE = " NCCL 2.32 does so"
_COMPARED = 200
"""Characters: what begins alike is the same, and a traceback is long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """One complaint, however many ranks made it; messages that begin alike, but for numbers, are the same."""

    kind: EventKind
    message: str
    """The first one's."""
    count: int
    ranks: Sequence[int] = ()
    """Those that are known to have made it."""
    step: int | None = None
    """The newest one before the first."""
    first_unix_s: float
    last_unix_s: float


def message_of(event: Event) -> str:
    """What the event says, without the advice about a release of NCCL that need not be the job's."""
    if event.kind is EventKind.NCCL_TIMES_WRONG and _ANY_RELEASE in event.message:
        return event.message.partition(_ADVICE)[0]
    return event.message


def troubles(events: Iterable[Event]) -> tuple[ErrorSummary, ...]:
    """The newest sixteen, in the order in which they began."""
    alike: dict[tuple[EventKind, str], list[Event]] = {}
    for event in events:
        if event.kind in _KINDS:
            begin = _NUMBER.sub("0", event.message[:_COMPARED])
            alike.setdefault((event.kind, begin), []).append(event)
    found = sorted((_trouble(of_one) for of_one in alike.values()), key=lambda one: one.last_unix_s)
    return tuple(sorted(found[-_MOST:], key=lambda one: one.first_unix_s))


def _trouble(events: Sequence[Event]) -> ErrorSummary:
    first = min(events, key=lambda event: event.time_unix_ns)
    return ErrorSummary(
        kind=first.kind,
        message=message_of(first),
        count=len(events),
        ranks=tuple(sorted({event.rank for event in events if event.rank is not None})),
        step=first.step,
        first_unix_s=first.time_unix_ns / 1e9,
        last_unix_s=max(event.time_unix_ns for event in events) / 1e9,
    )
