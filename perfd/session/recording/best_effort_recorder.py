"""A recorder whose failures do not stop the session."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from perfd.clock import Clock
from perfd.errors import RecordingError
from perfd.model import Record
from perfd.recording.recording_writer import RecordingWriter

log = logging.getLogger(__name__)


class BestEffortRecorder:
    """Writes a recording; the first failure ends it, is reported through `say`, and stops nothing else."""

    def __init__(
        self,
        directory: Path,
        *,
        job: str,
        node: str,
        clock: Clock,
        start_unix_ns: int,
        say: Callable[[str], None],
    ) -> None:
        self._node = node
        self._clock = clock
        self._say = say
        self._writer: RecordingWriter | None = None
        self._attempt(lambda: self._open(directory, job, start_unix_ns))

    def add_log(self, chunk: bytes, unix_ns: int) -> None:
        """Append the job's output up to `unix_ns`."""
        writer = self._writer
        if writer is not None:
            self._attempt(lambda: writer.add_log(self._node, chunk, unix_ns))

    def add_records(self, records: Sequence[Record]) -> None:
        """Append a collector's newest records."""
        writer = self._writer
        if writer is not None:
            self._attempt(lambda: writer.add_records(self._node, records, self._clock.unix_ns()))

    def describe(self, records: Sequence[Record]) -> None:
        """Take the job's description from records that another stream already holds."""
        writer = self._writer
        if writer is not None:
            self._attempt(lambda: writer.describe(self._node, records))

    def close(self) -> None:
        """Finish the recording; may be called twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._attempt(writer.close)

    def _open(self, directory: Path, job: str, start_unix_ns: int) -> None:
        self._writer = RecordingWriter(directory, name=job, start_unix_ns=start_unix_ns)

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except RecordingError as error:
            writer, self._writer = self._writer, None
            if writer is not None:
                with contextlib.suppress(RecordingError):
                    writer.close()
            log.warning("The recording ends here.", extra={"reason": str(error)})
            self._say(f"perfd: the recording ends here: {error}")
