"""Jobs that stopped making progress, and errors in their logs."""

from perfd.analysis.hang.error_events import ErrorSummary, message_of, troubles
from perfd.analysis.hang.hang_detection import Hang, hang
from perfd.analysis.hang.silence import without_steps

__all__ = [
    "ErrorSummary",
    "Hang",
    "hang",
    "message_of",
    "troubles",
    "without_steps",
]
