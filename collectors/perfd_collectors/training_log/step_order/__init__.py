"""The order of a job's progress lines: repeats, restarts, and a second run beside it."""

from perfd_collectors.training_log.step_order.step_log import ProgressSource, StepLog

__all__ = ["ProgressSource", "StepLog"]
