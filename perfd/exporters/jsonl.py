"""One JSON line per round, for scripts and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from perfd.config import JsonLinesConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.job_numbers import job_numbers
from perfd.model import alert_json

SCHEMA = "perfd.round/1"


class JsonLinesExporter:
    """Appends to a file; a full one is renamed to FILE.1."""

    def __init__(self, config: JsonLinesConfig, context: ExporterContext) -> None:
        if config.path is None:
            raise ConfigError("exporters.jsonl.path: required.")
        self._path = Path(config.path)
        self._max_bytes = config.max_bytes
        self._tally = context.tally
        self._file: BinaryIO | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        except OSError as error:
            raise ConfigError(
                f"exporters.jsonl.path: cannot write {self._path}: {error.strerror}."
            ) from error

    def export(self, round_: Round) -> None:
        line = msgspec.json.encode(round_json(round_)) + b"\n"
        try:
            file = self._room_for(len(line))
            file.write(line)
            file.flush()
        except OSError:
            self._tally.lost += 1
            self.close()
            raise
        self._tally.sent += 1

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _room_for(self, size: int) -> BinaryIO:
        file = self._file or self._path.open("ab")
        self._file = file
        if file.tell() and file.tell() + size > self._max_bytes:
            self.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = file = self._path.open("ab")
        return file


def round_json(round_: Round) -> dict[str, Any]:
    """One line of schema perfd.round/1."""
    return {
        "schema": SCHEMA,
        "time_unix_s": round_.time_unix_s,
        "jobs": [
            {
                "job": job.summary.name,
                "step": job.step,
                "attempt": job.attempt,
                "ended": job.ended,
                "bottleneck": job.summary.bottleneck.kind.value,
                "numbers": job_numbers(job),
            }
            for job in round_.jobs
        ],
        "alerts": [alert_json(alert) for alert in round_.changes],
    }
