"""Recordings: one run of a job as an agent saw it, on disk."""

from perfd.recording.recording_format import bundled, bundled_names, find_recording, open_recording

__all__ = ["bundled", "bundled_names", "find_recording", "open_recording"]
