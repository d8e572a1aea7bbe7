"""One format for what perfd logs: a constant message, then its facts as key=value, or JSON lines.

Code logs with the standard library and hands facts over in `extra`:
`log.warning("The spool is full.", extra={"dropped_batches": 3})`.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO

from perfd.formatting import printable_text

LEVELS = ("debug", "info", "warning", "error")
_OURS = ("perfd", "perfd_collectors")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str = "info", *, json_lines: bool = False, stream: TextIO | None = None) -> None:
    """Send what perfd logs at `level` and above to `stream`, standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter())
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


class TextFormatter(logging.Formatter):
    """For people: time, level, message, facts."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={_quoted(value)}" for key, value in _facts(record).items())
        text = f"{self.formatTime(record)} {record.levelname.lower()}: {record.getMessage()}{facts}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """For log stores: one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time_unix_s": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _quoted(value: object) -> str:
    text = str(value)
    quoted = not text or any(c in text for c in ' "=') or not text.isprintable()
    return printable_text(json.dumps(text, ensure_ascii=False)) if quoted else text
