"""The records of a log that is complete."""

from __future__ import annotations

from collections.abc import Sequence

from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.timestamps import TimeZoneGuess

from perfd.model import Record


def parse_log(data: bytes) -> Sequence[Record]:
    """All of them; printed times are taken as UTC."""
    job = new_job("default", TimeZoneGuess(0))
    parser = LogParser(job)
    parser.feed(data)
    parser.finish()
    return job.out.take(0)
