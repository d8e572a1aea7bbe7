"""The contract of a collector: one source of records on a node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from perfd.clock import Clock, SystemClock
from perfd.model import ColumnKind, Record, Scope, WellKnownColumn

__all__ = [
    "Bookmark",
    "Collector",
    "CollectorSpec",
    "Column",
    "ColumnKind",
    "OnUnavailable",
    "Options",
    "RecordedStream",
    "Settings",
]


class Collector(Protocol):
    """Reads one source. The runner owns timing, isolation, logging and success metrics.

    All calls come from one thread. `collect` may block (an event source waits
    for its events at most a second), must not sleep to pace itself, and may
    raise anything: the runner counts it and calls again at the next interval.
    `Unavailable` means that the source is gone until `create` succeeds again;
    its kind `NothingHere`, from `create`, that such a node never has it, which is no failure.
    """

    def collect(self) -> Sequence[Record]:
        """What is new since the last call; empty when there is nothing."""

    def close(self) -> None:
        """Free what the collector holds; legal twice, and after a failed `collect`."""


class OnUnavailable(StrEnum):
    """What the agent does when a collector's source does not exist on the node."""

    ERROR = "error"
    """Refuse to start."""
    RETRY = "retry"
    """Report it as failed and try again with backoff."""
    IGNORE = "ignore"
    """Say it once and go on without."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of what an operator may write under a collector's `options`."""


@dataclass(slots=True)
class Bookmark:
    """How far a collector has read, in its own words: it goes on there after a restart of the agent.

    A collector sets `text` as the last thing in `collect`. The agent keeps it on disk in one transaction with
    the records that were returned, so that a killed agent neither forgets nor repeats any.
    """

    text: str | None = None
    """None until the collector says something, in this life of the agent or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the agent injects into a collector, as opposed to what an operator configures."""

    node: str
    job: str
    """The job that a source belongs to when the source itself does not say."""
    clock: Clock = field(default_factory=SystemClock)
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    bookmark: Bookmark = field(default_factory=Bookmark)
    ending: threading.Event = field(default_factory=threading.Event)
    """Set before the last call of `collect`: what waits for its time is told in that one."""
    run: str | None = None
    """The `perfd run` whose processes alone are read; None for all of the node."""


class RecordedStream(Collector, Protocol):
    """Plays a recorded stream: `collect` returns what is due by the clock of its settings."""

    def span_unix_ns(self) -> tuple[int, int] | None:
        """First and last instant of the stream, or None when it is empty or tells no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One metric that a collector may put in a `SampleTable`; docs/metrics.md is made of these."""

    scope: Scope
    name: str
    """With its unit as the last word, as in the table: `power_w`, `sm_active_ratio`."""
    help: str
    source: str
    """The call, file or field that it is read from."""
    absent: str
    """When it is absent."""
    kind: ColumnKind = ColumnKind.GAUGE


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSpec:
    """A kind of collector; the entry-point group `perfd.collectors` holds one per name."""

    name: str
    options: type[Options]
    create: Callable[[Any, Settings], Collector]
    """Takes an instance of `options`; raises `Unavailable` with a sentence that teaches."""
    interval_s: float = 1.0
    on_unavailable: OnUnavailable = OnUnavailable.RETRY
    enabled: bool = True
    columns: Sequence[Column] = ()
    provides: Sequence[WellKnownColumn] = ()
    """The columns that perfd itself reads and that this collector fills; loading refuses it without them."""
    replay: Mapping[str, Callable[[Path, Settings], RecordedStream]] = field(default_factory=dict)
    """By kind of stream in a recording (`nvml`, `training-log`): how to play a file of it."""
