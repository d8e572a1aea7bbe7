"""The record of a capture: its state, that of each of its ranks with the files, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd.model import CaptureFile, CaptureState, CaptureTool, TraceShares


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A file was removed."""

    unix_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file in object storage, or why it is not there yet."""

    url: str = ""
    """`s3://BUCKET/KEY`; empty while its upload fails."""
    size_bytes: int = 0
    sha256: str = ""
    reason: str = ""
    unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One rank of a capture. `rank` is None for "all ranks of the job on that node"."""

    node: str
    rank: int | None
    state: CaptureState | None = None
    """None: requested, no answer yet."""
    reason: str = ""
    armed_unix_ns: int | None = None
    started_unix_ns: int | None = None
    stopped_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    """When its agent reported the outcome; None if the aggregator decided it."""
    files: Sequence[CaptureFile] = ()
    removed: Mapping[str, Removal] = field(default_factory=dict)
    """Its removed files, by path."""
    stored: Mapping[str, StoredFile] = field(default_factory=dict)
    """Its files that are in object storage, or whose upload failed so far, by path."""
    whole_steps: int | None = None
    """Complete steps in its trace; None if unknown."""

    @property
    def files_there(self) -> Sequence[CaptureFile]:
        """Its files that are not known to be removed."""
        return tuple(file for file in self.files if file.path not in self.removed)

    @property
    def final(self) -> bool:
        """Whether this rank's outcome is settled."""
        return self.state is not None and self.state.final


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """The verdict of a capture's traces, or why there is none."""

    path: str | None
    """None if it could not be made, or was removed."""
    perfetto_path: str | None = None
    """The same traces in one file for ui.perfetto.dev; None as for `path`."""
    words: str
    """What limits the job, in a sentence or two; otherwise why that is unknown."""
    made_unix_s: float
    overlap_ratio: float | None = None
    """The share of communication that compute covers, the mean over ranks; None without communication."""
    shares: TraceShares | None = None
    """None if no rank has all its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A capture as a whole; `state` is None until every rank has its outcome."""

    capture_id: str
    job: str
    """A server is called `NODE/ADDRESS`."""
    server: bool = False
    """Whether it covers a serving engine, not a job."""
    tool: CaptureTool | None
    """None if neither the profile nor the server's engine determines it; such a capture is refused."""
    profile: str
    alert: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float | None = None
    """The value of the alert's expression when it began to fire; None by hand and from Alertmanager."""
    summary: str = ""
    """The alert's `summary`."""
    asked_by: str = ""
    """Who requested it by hand, as the client gave it; empty if unknown."""
    fired_at_unix_s: float | None = None
    """When the alert began to fire, by the clock of the engine that evaluated its rule."""
    requested_unix_s: float
    start_unix_s: float
    """When the agents are to start."""
    object_folder: str = ""
    """Where its files are in object storage, below the configured URL."""
    ranks: str = ""
    """The ranks option with which it can be repeated by hand; empty for its profile's."""
    steps: int | None = None
    step_time_s: float | None = None
    """The job's usual one when it was requested."""
    max_duration_s: float
    participants: Sequence[Participant] = ()
    state: CaptureState | None = None
    reason: str = ""
    put_off: bool = False
    """Refused only because of another capture of the job: when that has ended the alert tries again."""
    ended_unix_s: float | None = None
    report: CaptureReport | None = None
    """None until it is made, and if the aggregator cannot read the traces."""
