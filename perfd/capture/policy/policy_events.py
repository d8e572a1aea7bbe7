"""What the capture policy is told, what it decides, and the record that it keeps of a capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from perfd.capture.selection import JobView
from perfd.model import (
    Alert,
    CaptureCancel,
    CaptureFile,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    TraceShares,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFired:
    """An alert with a `capture` label began to fire."""

    alert: Alert
    job: JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualRequest:
    """A person asks. What is None comes from the profile; the id makes a replay harmless."""

    capture_id: str
    job: JobView
    profile: str = "default"
    ranks: str | None = None
    steps: int | None = None
    max_duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """A person wants a capture to end now."""

    capture_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReceived:
    """An agent said where a capture stands on its node."""

    node: str
    status: CaptureStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGone:
    """The stream of a node's agent broke."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConnected:
    """A node's agent is there, for the first time or again."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The aggregator started and found these captures in its history."""

    captures: Sequence[Capture]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


Event: TypeAlias = (
    AlertFired
    | ManualRequest
    | CancelRequested
    | StatusReceived
    | AgentGone
    | AgentConnected
    | Restored
    | Tick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """An artefact is gone."""

    unix_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One rank of a capture. `rank` is None for "all ranks of the job on that node"."""

    node: str
    rank: int | None
    state: CaptureState | None = None
    """None: asked, no answer yet."""
    reason: str = ""
    started_unix_ns: int | None = None
    stopped_unix_ns: int | None = None
    files: Sequence[CaptureFile] = ()
    removed: Mapping[str, Removal] = field(default_factory=dict)
    """Those of its files, by path, that are no longer there."""
    whole_steps: int | None = None
    """Steps that its trace holds from begin to end; None when that cannot be told."""

    @property
    def files_there(self) -> Sequence[CaptureFile]:
        """Its files that nobody removed, as far as is known."""
        return tuple(file for file in self.files if file.path not in self.removed)

    @property
    def final(self) -> bool:
        """Whether this rank's outcome is settled."""
        return self.state is not None and self.state.final


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What the traces of a capture say, or why they say nothing."""

    path: str | None
    """None when it could not be made, or was removed."""
    words: str
    """What limits the job, in a sentence or two; else why that is not known."""
    made_unix_s: float
    overlap_ratio: float | None = None
    """The share of communication that compute covers, the mean over ranks; None without communication."""
    shares: TraceShares | None = None
    """None when no rank has all its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A capture as a whole; `state` is None until every rank has its outcome."""

    capture_id: str
    job: str
    """A server is called `NODE/ADDRESS`."""
    server: bool = False
    """Whether it is of a serving engine, and not of a job."""
    tool: CaptureTool | None
    """None when neither a profile nor what is known of the server says it; such a capture is refused."""
    profile: str
    alert: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    fired_at_unix_s: float | None = None
    """When the alert began to fire, by the clock of whoever evaluated its rule."""
    requested_unix_s: float
    start_unix_s: float
    """When the agents are to start."""
    steps: int | None = None
    max_duration_s: float
    participants: Sequence[Participant] = ()
    state: CaptureState | None = None
    reason: str = ""
    put_off: bool = False
    """Refused for nothing but another capture of the job: when that has ended the alert asks once more."""
    ended_unix_s: float | None = None
    report: CaptureReport | None = None
    """None as long as it is not made, and where the aggregator cannot read the traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Ask a node's agent to capture; sent again it does nothing twice."""

    node: str
    message: CaptureRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCancel:
    """Tell a node's agent to stop a capture, whatever it is doing."""

    node: str
    message: CaptureCancel


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Keep this as the newest state of a capture."""

    capture: Capture


Action: TypeAlias = SendRequest | SendCancel | Record
