"""Stacks of hanging processes: py-spy and PyTorch's NCCL flight recorder."""

from perfd.capture.stacks.flight_recorder_tool import FlightRecorderTool
from perfd.capture.stacks.pyspy_tool import PySpyTool, find_py_spy

__all__ = [
    "FlightRecorderTool",
    "PySpyTool",
    "find_py_spy",
]
