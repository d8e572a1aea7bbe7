"""Events and actions of the capture policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from perfd.capture.policy.capture_record import Capture
from perfd.capture.selection import JobView
from perfd.model import Alert, CaptureCancel, CaptureRequest, CaptureStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFired:
    """An alert with a `capture` label began to fire."""

    alert: Alert
    job: JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualRequest:
    """A request by hand. None values come from the profile; the id makes a repeat harmless."""

    capture_id: str
    job: JobView
    profile: str = "default"
    ranks: str | None = None
    steps: int | None = None
    max_duration_s: float | None = None
    asked_by: str = ""
    """The requester's name, as the client gave it; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """A cancel by hand."""

    capture_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReceived:
    """An agent reported the state of a capture on its node."""

    node: str
    status: CaptureStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGone:
    """The stream of a node's agent broke."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConnected:
    """A node's agent connected, for the first time or again."""

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
class SendRequest:
    """Request a capture from a node's agent; a repeat has no effect."""

    node: str
    message: CaptureRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCancel:
    """Order a node's agent to stop a capture, whatever its state."""

    node: str
    message: CaptureCancel


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Keep this as the newest state of a capture."""

    capture: Capture


Action: TypeAlias = SendRequest | SendCancel | Record
