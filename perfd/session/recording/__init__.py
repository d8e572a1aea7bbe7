"""Writing a recording while a job runs, and playing one."""

from perfd.session.recording.best_effort_recorder import BestEffortRecorder, tapped
from perfd.session.recording.record_session import record
from perfd.session.recording.recorded_streams import Playback, installed_players, open_playback

__all__ = [
    "BestEffortRecorder",
    "Playback",
    "installed_players",
    "open_playback",
    "record",
    "tapped",
]
