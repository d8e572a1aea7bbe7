"""The contract of a collector: one source of records on a node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from perfd.clock import Clock, SystemClock
from perfd.model import ColumnKind, Record, Scope, WellKnownColumn
from perfd.printed_output import PrintedOutput

__all__ = [
    "Bookmark",
    "Collector",
    "CollectorSpec",
    "Column",
    "ColumnKind",
    "CommunicatingRanks",
    "LocalJobs",
    "LocalRank",
    "NumberedRank",
    "OnUnavailable",
    "Options",
    "PciAddress",
    "PodJob",
    "PodJobs",
    "RecordedStream",
    "Settings",
]


class Collector(Protocol):
    """Reads one source. The runner owns timing, isolation, logging and success metrics.

    All calls come from one thread. `collect` may block (an event source waits
    for its events at most a second), must not sleep to pace itself, and may
    raise anything: the runner counts it and calls again at the next interval.
    `Unavailable` means that the source is gone until `create` succeeds again;
    `NothingHere`, from `create`, means that such a node never has it, which is not a failure.
    """

    def collect(self) -> Sequence[Record]:
        """New records since the last call; empty when there are none."""

    def close(self) -> None:
        """Free all resources; legal twice, and after a failed `collect`."""


class OnUnavailable(StrEnum):
    """What the agent does when a collector's source does not exist on the node."""

    ERROR = "error"
    """Refuse to start."""
    RETRY = "retry"
    """Report it as failed and try again with backoff."""
    IGNORE = "ignore"
    """Log it once and continue without."""


UNNAMED_JOB = "default"
"""The agent's name for an unnamed job; processes or pods may then name it."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of a collector's `options` in the configuration."""


@dataclass(slots=True)
class Bookmark:
    """A collector's read position in its own format, where it resumes after a restart of the agent.

    A collector sets `text` at the end of `collect`. The agent stores it in one transaction with the returned
    records, so that a killed agent neither loses nor repeats any.
    """

    text: str | None = None
    """None until the collector sets it, in this or an earlier run of the agent."""


class LocalRank(NamedTuple):
    """A rank on this node."""

    job: str
    rank: int
    pid: int
    """In our namespace."""


class LocalJobs:
    """The jobs with ranks on this node, as the kernel says it of their processes; any thread may ask.

    What the scheduler says of a job's user goes before what processes say.
    """

    def __init__(self, scheduled: Mapping[str, int] | None = None) -> None:
        self.scheduled: Mapping[str, int] = dict(scheduled or {})
        """The user of each job that the scheduler placed here."""
        self._users: Mapping[str, int] = {}
        self._ranks: Sequence[LocalRank] = ()
        self.looked_for = False
        """Whether any collector looks for them."""

    def replace(self, users: Mapping[str, int], ranks: Sequence[LocalRank] = ()) -> None:
        """These are all that are known now: the user of each job, and its ranks."""
        self._users, self._ranks = dict(users), tuple(sorted(ranks))
        self.looked_for = True

    def uid(self, job: str) -> int | None:
        """The user of a job; None when no rank of it was found."""
        return self.scheduled.get(job, self._users.get(job))

    def processes(self) -> Mapping[str, int]:
        """By job, the PID of its lowest rank here, in our namespace."""
        return {rank.job: rank.pid for rank in reversed(self._ranks)}

    def ranks(self) -> Sequence[LocalRank]:
        """All of them, by job and rank."""
        return self._ranks


class PodJob(NamedTuple):
    """The job of a pod on this node."""

    job: str
    """Its name, as this agent reports it."""
    namespace: str
    own_agent: bool
    """A sidecar in the pod reports its ranks, so this agent does not."""
    cluster: str = ""
    """As the operator calls the Kubernetes cluster; empty if not."""


class PodJobs:
    """The job of each pod on this node; any thread may ask."""

    def __init__(self) -> None:
        self._jobs: Mapping[str, PodJob] = {}

    def replace(self, jobs: Mapping[str, PodJob]) -> None:
        """By UID of the pod; these are all that are known now."""
        self._jobs = dict(jobs)

    def of(self, pod_uid: str | None) -> PodJob | None:
        """The job of a pod; None when it is not known."""
        return None if pod_uid is None else self._jobs.get(pod_uid)


class PciAddress(NamedTuple):
    """Where a GPU is on its node; sorts as NVML numbers GPUs."""

    domain: int
    bus: int
    device: int


class NumberedRank(NamedTuple):
    """A rank of a process, as its communicators number it."""

    rank: int
    world_size: int | None
    device: PciAddress | None
    """Its GPU; None if unknown."""


class CommunicatingRanks:
    """The ranks of each process that communicates, as its communicators number them; any thread may ask."""

    def __init__(self) -> None:
        self._ranks: Mapping[int, Sequence[NumberedRank]] = {}

    def replace(self, ranks: Mapping[int, Sequence[NumberedRank]]) -> None:
        """By PID, in our namespace; these are all that are known now."""
        self._ranks = dict(ranks)

    def by_process(self) -> Mapping[int, Sequence[NumberedRank]]:
        """By PID, in our namespace; a process has several where it drives several GPUs."""
        return self._ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the agent passes to a collector, besides the operator's options."""

    node: str
    job: str
    """The job of sources that do not name one."""
    clock: Clock = field(default_factory=SystemClock)
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    bookmark: Bookmark = field(default_factory=Bookmark)
    ending: threading.Event = field(default_factory=threading.Event)
    """Set before the last call of `collect`, which must return everything pending."""
    local_jobs: LocalJobs = field(default_factory=LocalJobs, compare=False)
    """Shared by all collectors of an agent; `ranks` fills it."""
    communicating_ranks: CommunicatingRanks = field(default_factory=CommunicatingRanks, compare=False)
    """Shared by all collectors of an agent; `nccl` fills it."""
    pod_jobs: PodJobs = field(default_factory=PodJobs, compare=False)
    """Shared by all collectors of an agent; `pods` fills it."""
    sandboxed: bool = False
    """Whether a process without rights parses what users of the node wrote (`perfd.sandbox`)."""
    printed: PrintedOutput | None = field(default=None, compare=False)
    """What the job prints, where the agent's own program runs the job; `training_log` takes it."""
    run: str | None = None
    """Id of the `perfd run` whose processes are read; None for all of the node."""


class RecordedStream(Collector, Protocol):
    """Plays a recorded stream: `collect` returns the records due by the clock in its settings."""

    def span_unix_ns(self) -> tuple[int, int] | None:
        """Times of the first and last record; None when the stream is empty or has no times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column that a collector may put in a `SampleTable`; docs/metrics.md is generated from these."""

    scope: Scope
    name: str
    """The unit is the last word, as in the table: `power_w`, `sm_active_ratio`."""
    help: str
    source: str
    """The call, file or field from which it is read."""
    absent: str
    """When it is absent."""
    kind: ColumnKind = ColumnKind.GAUGE


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSpec:
    """A collector as found by its name in the entry-point group `perfd.collectors`."""

    name: str
    options: type[Options]
    create: Callable[[Any, Settings], Collector]
    """Takes an instance of `options`; raises `Unavailable` with the reason and a fix."""
    interval_s: float = 1.0
    on_unavailable: OnUnavailable = OnUnavailable.RETRY
    enabled: bool = True
    columns: Sequence[Column] = ()
    provides: Sequence[WellKnownColumn] = ()
    """The columns that perfd itself reads and that this collector fills; loading refuses it without them."""
    replay: Mapping[str, Callable[[Path, Settings], RecordedStream]] = field(default_factory=dict)
    """Functions that play a recorded file, by kind of stream (`nvml`, `training-log`)."""
