"""A recorder whose failures do not stop the session, and what copies a collector's records to it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfd.clock import Clock
from perfd.collector import Collector, CollectorSpec, Settings
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


Sink = Callable[[str, Sequence[Record]], None]
"""Takes the collector's name and its records; raises nothing."""


def tapped(spec: CollectorSpec, sink: Sink) -> CollectorSpec:
    """The same collector, whose records also go to `sink`, in the collector's own thread."""

    def create(options: Any, settings: Settings) -> Collector:  # noqa: ANN401  (as in CollectorSpec)
        return _Tapped(spec.name, spec.create(options, settings), sink)

    return replace(spec, create=create)


class _Tapped:
    def __init__(self, name: str, collector: Collector, sink: Sink) -> None:
        self._name = name
        self._collector = collector
        self._sink = sink

    def collect(self) -> Sequence[Record]:
        records = self._collector.collect()
        if records:
            self._sink(self._name, records)
        return records

    def close(self) -> None:
        self._collector.close()
