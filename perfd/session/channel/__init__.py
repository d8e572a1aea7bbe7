"""The channel between `perfd run` and its monitor process."""

from perfd.session.channel.line_merger import LineMerger
from perfd.session.channel.monitor_channel import Frame, FrameKind, MonitorChannel, read_frames

__all__ = [
    "Frame",
    "FrameKind",
    "LineMerger",
    "MonitorChannel",
    "read_frames",
]
