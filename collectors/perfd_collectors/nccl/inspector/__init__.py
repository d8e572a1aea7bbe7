"""Output of NCCL's Inspector plugin."""

from perfd_collectors.nccl.inspector.inspector_files import InspectorDirectory, RecordedInspector

__all__ = [
    "InspectorDirectory",
    "RecordedInspector",
]
