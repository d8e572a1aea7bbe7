"""The guide's questions about a training job, answered."""

from perfd.analysis.diagnosis.checklist.mfu_checklist import Check, Checklist, CheckState, checklist

__all__ = ["Check", "CheckState", "Checklist", "checklist"]
