"""Incidents: what one attempt of a job, or the hardware itself, blamed a node or a GPU for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IncidentKind(StrEnum):
    """What a node or GPU was blamed for."""

    STRAGGLER = "straggler"
    THROTTLING = "throttling"
    HOST_CONTENTION = "host_contention"
    HANG = "hang"
    SLOW_LINK = "slow_link"
    HARDWARE_ERROR = "hardware_error"
    """An XID that is not most often a program's error, or a lost GPU."""
    MEMORY_ERROR = "memory_error"
    """An uncorrectable ECC error, or a row of memory that could not be remapped."""
    LINK_DOWN = "link_down"
    CAPTURE_FAILED = "capture_failed"

    @property
    def weight(self) -> float:
        """How much one of them counts: captures fail for reasons of software most often."""
        return 0.25 if self is IncidentKind.CAPTURE_FAILED else 1.0

    @property
    def text(self) -> str:
        """Its name as people read it."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What one attempt of a job blamed a node for. The same blame again makes it longer, not more."""

    node: str
    kind: IncidentKind
    gpu: str = ""
    """The index of the GPU; empty for the node as a whole."""
    gpu_uuid: str = ""
    """Of the GPU that was there then; empty when it is not known."""
    job: str = ""
    """Empty when no job was there."""
    attempt: int = 0
    first_unix_s: float
    last_unix_s: float
    weight: float = 1.0
    """1 divided by how many were blamed together, times that of its kind."""
    seen_s: float = 0.0
    """How long it was seen, in time of the job."""
    lost_gpu_s: float = 0.0
    """GPU-seconds that the job lost by it, at most: those of all ranks that waited."""
    count: int = 0
    """How often, for errors that come one by one."""
    evidence: str = ""
    """The newest sentence about it."""

    @property
    def key(self) -> str:
        """What distinguishes it on its node."""
        return f"{self.kind}/{self.gpu}/{self.gpu_uuid}/{self.attempt}/{self.job}"


def decayed(value: float, age_s: float, half_life_s: float) -> float:
    """What is left of a value after a time; all of it for a time in the future, of a clock set back."""
    return float(value * 2.0 ** (-max(0.0, age_s) / half_life_s))
