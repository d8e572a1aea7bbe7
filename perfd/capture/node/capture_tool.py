"""The contract of a capture tool: a profiler that an agent drives on its node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfd.model import CaptureState, CaptureTool

TRACE_SUFFIXES = (".sqlite", ".trace.json", ".trace.json.gz")
"""How the names of traces end that perfd can analyse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTarget:
    """One thing that the tool switches on and off: an nsys session, a process, a server."""

    handle: str
    """What the tool calls it; enough to stop it later, by another agent too."""
    processes: Mapping[int, int | None]
    """The host's pids in it, each with its rank where that is known."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in it, sorted."""
        return tuple(sorted({rank for rank in self.processes.values() if rank is not None}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What a tool could capture of a job on this node now."""

    targets: Sequence[CaptureTarget] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    """Ranks that were asked for and cannot be captured, with the reason."""
    reason: str = ""
    """Why there are no targets, with what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOutcome:
    """How the capture of some ranks ended; the files are still as the tool left them."""

    state: CaptureState
    ranks: Sequence[int]
    reason: str = ""
    files: Sequence[Path] = ()
    whole_steps: int | None = None
    """Steps that the files hold from begin to end, by what is in them; None when they do not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """What is asked of a tool beside who."""

    capture_id: str
    directory: Path
    """Where every file goes."""
    max_duration_s: float
    max_bytes: int
    start_unix_ns: int | None = None
    """When all nodes start together; None: the tool chooses, soon."""
    steps: int | None = None
    step_time_s: float | None = None
    """The job's usual one, where its log tells."""
    end_is_planned: bool = False
    """Whether the job's end is known; a tool that cannot be stopped must else fear one during the capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a tool says about a capture that it began."""

    start_unix_ns: int | None = None
    """When it will collect; None: it does already."""
    length_s: float | None = None
    """When it ends by itself; None: it collects until it is stopped."""
    settle_s: float = 0.0
    """How long processes may take to switch on what is collected: the steps meanwhile do not count."""


class Tool(Protocol):
    """Drives one profiler.

    All calls but `open` and `close` come from one thread of the executor, one capture at a time. Every method
    may raise `CaptureError`; its message becomes the reason of the ranks' outcome.
    A class that names this one as its base inherits what is not abstract here.
    """

    lead_s: float = 0.0
    """How long before the agreed start `start` wants to be called."""
    for_hangs: bool = False
    """Whether it is meant for jobs that hang, which no other tool may touch."""

    @property
    @abstractmethod
    def kind(self) -> CaptureTool:
        """Which tool this is."""

    def open(self) -> None:
        """Take what the tool needs of the node; the agent starts. Raises nothing."""
        return

    def close(self) -> None:
        """Give it back; the agent stops. Legal twice, and without `open`."""
        return

    @abstractmethod
    def available(self) -> bool:
        """Whether the node has the tool at all; cheap."""

    @abstractmethod
    def ready(self, job: str, ranks: Sequence[int]) -> Readiness:
        """What could be captured now of these ranks (none: of every rank of the job on this node)."""

    @abstractmethod
    def start(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Begun:
        """Begin to capture, with every file under `plan.directory`; leaves nothing running if it raises."""

    @abstractmethod
    def alive(self, targets: Sequence[CaptureTarget]) -> bool:
        """Whether anything of the targets still runs; cheap, asked several times a second."""

    @abstractmethod
    def stop(self, targets: Sequence[CaptureTarget], plan: CapturePlan) -> Sequence[CaptureOutcome]:
        """End the capture, wait for its files and check them; one outcome for each rank."""

    @abstractmethod
    def abort(self, handles: Sequence[str]) -> None:
        """Stop what may still capture under these handles, without a result; legal when nothing does."""
