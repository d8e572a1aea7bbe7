"""Complete logs as `perfd parse` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfd_collectors.training_log.log_document import LogDocument


def read_logs(paths: Iterable[Path]) -> LogDocument:
    """Read all logs of a job: of several ranks, or consecutive ones."""
    document = LogDocument()
    for path in paths:
        with path.open("rb") as log:
            document.read(log)
    return document
