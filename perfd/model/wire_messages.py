"""Messages between agent and aggregator; all records are sent in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from perfd.model.capture_records import (
    CaptureCancel,
    CaptureFilesRemoved,
    CaptureFileUpload,
    CaptureRequest,
    CaptureStatus,
    CaptureTool,
)
from perfd.model.collective_records import CollectiveProgress, CollectiveTimes
from perfd.model.event_records import CollectorHealth, Event
from perfd.model.job_description import JobDescription
from perfd.model.job_origin import JobOrigin
from perfd.model.placement import GpuAllocations, GpuInfo, RankPlacement, ServerInfo
from perfd.model.samples import SampleTable
from perfd.model.training_steps import LogProgress, MemoryReport, StepPhases, TrainingStep

Record: TypeAlias = (
    SampleTable
    | GpuInfo
    | GpuAllocations
    | ServerInfo
    | RankPlacement
    | JobDescription
    | JobOrigin
    | TrainingStep
    | StepPhases
    | MemoryReport
    | Event
    | LogProgress
    | CollectorHealth
    | CollectiveTimes
    | CollectiveProgress
    | CaptureFilesRemoved
    | CaptureFileUpload
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records that an agent sends together. Sequences start at 1 and have no gaps per `agent_id`."""

    sequence: int
    sent_unix_ns: int
    records: Sequence[Record]
    dropped_records: int = 0
    """Records dropped since the agent's start, because a queue or the spool was full."""
    unknown_records: int = 0
    """Set by the receiver: records of unknown kinds, which are not in `records`."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """Set by the receiver: by the name of a bound, the records of which it left something out, or all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of an agent; see `telemetry.proto`."""

    agent_id: str
    node: str
    perfd_version: str
    sent_unix_ns: int
    first_sequence: int
    capture_tools: Sequence[CaptureTool] = ()
    revision: int = 1
    spool_epoch: str = field(default="", repr=False)
    """Proves whose spool this is; empty: an agent that has none."""
    previous_epoch: str = field(default="", repr=False)
    acknowledge_every: int = 0
    """Batches that may wait for their acknowledgment, for 15 s; up to 1: each is acknowledged once stored."""
    keeps_until_stored: bool = False
    """It keeps what it publishes until `Stored` names it."""


@dataclass(frozen=True, slots=True)
class AcknowledgeEach:
    """Takes back `Hello.acknowledge_every`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """The last message of an agent that stops on request."""

    reason: str
    sent_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The aggregator's response to `Hello`."""

    last_sequence: int
    """Stored."""
    sent_unix_ns: int
    revision: int = 1
    renew_identity: bool = False
    """The agent's spool is a copy of another one: it takes a new identity and connects again."""
    received_sequence: int = 0
    """Received, and not to be sent again by this connection; 0 for none after `last_sequence`."""
    known_sequence: int = 0
    """From a gateway: the highest that the aggregator knows of this identity."""
    says_stored: bool = False
    """`Stored` follows for what is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Everything up to and including `sequence` is stored, and up to `received_sequence` received."""

    sequence: int
    received_sequence: int = 0
    """0 for none after `sequence`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """These batches, which were published to this subject, are stored."""

    subject: str
    sequences: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFinding:
    """A job of the node has a finding that it did not have before."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInterval:
    """How often the agent is to send batches while nothing changes on its node."""

    quiet_s: float
    """0: as often as at other times."""


AgentMessage: TypeAlias = Hello | Batch | CaptureStatus | Goodbye | AcknowledgeEach
NodeMessage: TypeAlias = CaptureRequest | CaptureCancel | NewFinding | BatchInterval
"""What goes to the agent of a node besides answers."""
AggregatorMessage: TypeAlias = Welcome | Ack | Stored | NodeMessage
