"""The contract of a collector: one source of records on a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from perfd.clock import Clock, SystemClock
from perfd.model import Record


class Collector(Protocol):
    """Reads one source. The runner owns timing, isolation, logging and success metrics.

    All calls come from one thread. `collect` may block (an event source waits
    for its events at most a second), must not sleep to pace itself, and may
    raise anything: the runner counts it and calls again at the next interval.
    `Unavailable` means that the source is gone until `create` succeeds again.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the agent injects into a collector, as opposed to what an operator configures."""

    node: str
    job: str
    """The job that a source belongs to when the source itself does not say."""
    clock: Clock = field(default_factory=SystemClock)
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


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
