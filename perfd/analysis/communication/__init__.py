"""How much of a step is communication, and how much of it is exposed."""

from perfd.analysis.communication.evidence_from_capture import CaptureEvidence, capture_evidence, not_used
from perfd.analysis.communication.exposed_by_dimension import Dimension, costliest, known_in_all
from perfd.analysis.communication.exposed_communication import (
    Communication,
    communication,
    with_capture,
    with_kernels,
)

__all__ = [
    "CaptureEvidence",
    "Communication",
    "Dimension",
    "capture_evidence",
    "communication",
    "costliest",
    "known_in_all",
    "not_used",
    "with_capture",
    "with_kernels",
]
