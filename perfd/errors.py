"""Every error that perfd raises on purpose; each message is a sentence that says what to do."""

from __future__ import annotations


class PerfdError(Exception):
    """The base of all errors that a caller of perfd may want to catch."""


class ConfigError(PerfdError):
    """A configuration, rules or profile file is wrong; the message names the file and the path in it."""


class Unavailable(PerfdError):
    """A collector or tool cannot work on this node; the message names what the node lacks."""


class NothingHere(Unavailable):
    """A node has, by its nature, nothing for a collector to read, as one without GPUs: no failure."""


class RecordingError(PerfdError):
    """A recording cannot be read or written."""


class WireError(PerfdError):
    """A message from the other side of the wire cannot be understood."""


class BatchError(WireError):
    """The records of a batch cannot be understood; its sequence is known."""

    def __init__(self, reason: str, *, sequence: int) -> None:
        super().__init__(reason)
        self.sequence = sequence


class RefusedError(PerfdError):
    """The other side may not do what it asked for; the message goes to it and holds no secret."""


class SpoolError(PerfdError):
    """The spool on disk cannot be opened or written."""


class SandboxError(PerfdError):
    """A reader without rights refused its input, or its process ended; the message is the reason."""


class StorageError(PerfdError):
    """Object storage did not take or give a file; the message holds no secret and says what to do."""


class CaptureError(PerfdError):
    """A capture could not be carried out; the message is the reason shown to the user."""


class TraceError(PerfdError):
    """A profiler's trace cannot be read."""


class WithoutGpuError(TraceError):
    """A trace without GPU activity, such as that of a rank without a GPU."""


class RulesError(ConfigError):
    """One or more rules are wrong; the message lists all mistakes with file, line and column."""


def reason_of(error: Exception) -> str:
    """Why something failed, in words; of the system's errors without number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
