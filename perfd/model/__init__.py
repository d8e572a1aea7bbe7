"""The records that collectors produce, the wire transports and the analysis reads.

Every record is frozen. Units are SI base units and the last word of a name
(`_s`, `_ns`, `_bytes`, `_flops`, `_ratio` from 0 to 1). Unknown values are
`None`, never zero; in the columns of a `SampleTable` they are NaN.
"""

from perfd.model.alert_records import Alert, AlertState, alert_json
from perfd.model.capture_records import (
    CaptureCancel,
    CaptureFile,
    CaptureFilesRemoved,
    CaptureFileUpload,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    GroupShares,
    TraceShares,
)
from perfd.model.collective_records import CollectiveProgress, CollectiveTimes, TimingSource
from perfd.model.event_records import CollectorHealth, Event, EventKind, JobOutcome
from perfd.model.job_description import (
    JobDescription,
    MlaShape,
    ModelShape,
    ModelSource,
    MoeShape,
    ParallelLayout,
    Recompute,
)
from perfd.model.job_end import job_end
from perfd.model.job_labels import JOB_LABEL, JOB_LABELS, OWNER_LABELS, job_labels
from perfd.model.job_origin import JobOrigin, job_origin
from perfd.model.placement import (
    GpuAllocation,
    GpuAllocations,
    GpuInfo,
    RankPlacement,
    ServerInfo,
    ServerRole,
)
from perfd.model.samples import ColumnBlock, ColumnKind, SampleTable, Scope
from perfd.model.training_steps import (
    HOOK_MARK,
    LogProgress,
    MemoryReport,
    PhaseTime,
    StepDoubt,
    StepPhases,
    StepSource,
    TrainingStep,
    one_step,
    several_steps,
)
from perfd.model.well_known_columns import GpuColumn, NicColumn, RankColumn, ServerColumn, WellKnownColumn
from perfd.model.wire_messages import (
    Ack,
    AcknowledgeEach,
    AgentMessage,
    AggregatorMessage,
    Batch,
    Goodbye,
    Hello,
    NewFinding,
    NodeMessage,
    Record,
    Stored,
    Welcome,
)

__all__ = [
    "HOOK_MARK",
    "JOB_LABEL",
    "JOB_LABELS",
    "OWNER_LABELS",
    "Ack",
    "AcknowledgeEach",
    "AgentMessage",
    "AggregatorMessage",
    "Alert",
    "AlertState",
    "Batch",
    "CaptureCancel",
    "CaptureFile",
    "CaptureFileUpload",
    "CaptureFilesRemoved",
    "CaptureRequest",
    "CaptureState",
    "CaptureStatus",
    "CaptureTool",
    "CollectiveProgress",
    "CollectiveTimes",
    "CollectorHealth",
    "ColumnBlock",
    "ColumnKind",
    "Event",
    "EventKind",
    "Goodbye",
    "GpuAllocation",
    "GpuAllocations",
    "GpuColumn",
    "GpuInfo",
    "GroupShares",
    "Hello",
    "JobDescription",
    "JobOrigin",
    "JobOutcome",
    "LogProgress",
    "MemoryReport",
    "MlaShape",
    "ModelShape",
    "ModelSource",
    "MoeShape",
    "NewFinding",
    "NicColumn",
    "NodeMessage",
    "ParallelLayout",
    "PhaseTime",
    "RankColumn",
    "RankPlacement",
    "Recompute",
    "Record",
    "SampleTable",
    "Scope",
    "ServerColumn",
    "ServerInfo",
    "ServerRole",
    "StepDoubt",
    "StepPhases",
    "StepSource",
    "Stored",
    "TimingSource",
    "TraceShares",
    "TrainingStep",
    "Welcome",
    "WellKnownColumn",
    "alert_json",
    "job_end",
    "job_labels",
    "job_origin",
    "one_step",
    "several_steps",
]
