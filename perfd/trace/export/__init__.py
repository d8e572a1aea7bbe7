"""Traces in formats of other tools."""

from perfd.trace.export.capture_tracks import capture_tracks
from perfd.trace.export.perfetto_file import write_perfetto

__all__ = ["capture_tracks", "write_perfetto"]
