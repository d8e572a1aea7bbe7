"""The contract of a capture tool: a profiler that an agent drives on its node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from perfd.errors import CaptureError
from perfd.model import CaptureState, CaptureTool

TRACE_SUFFIXES = (".sqlite", ".trace.json", ".trace.json.gz", ".xplane.pb")
"""Endings of the names of traces that perfd can analyze."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTarget:
    """What the tool starts and stops: an nsys session, a process, a server."""

    handle: str
    """The tool's name for it; enough to stop it later, also by another agent."""
    processes: Mapping[int, int | None]
    """The host's pids in it, each with its rank if known."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in it, sorted."""
        return tuple(sorted({rank for rank in self.processes.values() if rank is not None}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What a tool can capture of a job on this node now."""

    targets: Sequence[CaptureTarget] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    """Requested ranks that cannot be captured, with the reason."""
    shared: Mapping[int, int] = field(default_factory=dict)
    """Requested ranks that are in the process of another one, which is a target or refused: its outcome is
    theirs."""
    reason: str = ""
    """Why there are no targets, with what to do."""

    def mapped(self, target_of: Callable[[CaptureTarget], CaptureTarget]) -> Readiness:
        """With each target as `target_of` makes it; one for which that raises `CaptureError` is refused."""
        targets: list[CaptureTarget] = []
        refused = dict(self.refused)
        for target in self.targets:
            try:
                targets.append(target_of(target))
            except CaptureError as error:
                refused.update(dict.fromkeys(target.ranks, str(error)))
        return replace(self, targets=targets, refused=refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOutcome:
    """The outcome of some ranks; the files are still as the tool left them."""

    state: CaptureState
    ranks: Sequence[int]
    reason: str = ""
    files: Sequence[Path] = ()
    whole_steps: int | None = None
    """Complete steps in the files, by their content; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """The parameters of a capture, apart from its targets."""

    capture_id: str
    directory: Path
    """The folder for all files."""
    max_duration_s: float
    max_bytes: int
    start_unix_ns: int | None = None
    """When all nodes start together; None: the tool chooses, soon."""
    steps: int | None = None
    step_time_s: float | None = None
    """The job's usual step time, if its log has it."""
    end_is_planned: bool = False
    """Whether the job's end is known; otherwise a tool that cannot be stopped must expect it at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A tool's answer about a capture that it started."""

    start_unix_ns: int | None = None
    """When it will collect; None: it does already."""
    length_s: float | None = None
    """When it ends by itself; None: it collects until it is stopped."""
    settle_s: float = 0.0
    """How long processes may take to start collecting: the steps meanwhile do not count."""


class Tool(Protocol):
    """Drives one profiler.

    All calls but `open` and `close` come from one thread of the executor, one capture at a time. Every method
    may raise `CaptureError`; its message becomes the reason of the ranks' outcome.
    A class that names this one as its base inherits what is not abstract here.
    """

    kind: CaptureTool
    lead_s: float = 0.0
    """How long before the agreed start `start` wants to be called."""
    for_hangs: bool = False
    """Whether it is meant for jobs that hang, which no other tool may touch."""

    def open(self) -> None:
        """Acquire the tool's resources, at the agent's start. Raises nothing."""
        return

    def close(self) -> None:
        """Release them, at the agent's stop. May be called twice, and without `open`."""
        return

    @abstractmethod
    def available(self) -> bool:
        """Whether the node has the tool at all; cheap."""

    @abstractmethod
    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:
        """What can be captured now of these ranks (none: of every rank of the job on this node)."""

    @abstractmethod
    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:
        """Start capturing, with every file under `plan.directory`; leaves nothing running if it raises."""

    @abstractmethod
    def alive(self, targets: Sequence[CaptureTarget]) -> bool:
        """Whether any target still runs; cheap, called several times per second."""

    @abstractmethod
    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:
        """End the capture, wait for its files and check them; one outcome per rank."""

    @abstractmethod
    def abort(self, handles: Sequence[str]) -> None:
        """Stop what may still capture under these handles, without a result."""
