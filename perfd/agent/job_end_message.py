"""How a job ended, from a file written by the script that ends the agent."""

from __future__ import annotations

from pathlib import Path

from perfd.model import Event, EventKind, JobOutcome

_MOST_BYTES = 4096


def read_job_end(path: Path, job: str | None, now_unix_ns: int) -> Event | None:
    """The job's end from the file; None if there is no such file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return None
    return job_end(content.decode("utf-8", "replace"), job, now_unix_ns)


def job_end(text: str, job: str | None, now_unix_ns: int) -> Event:
    """The event of `outcome=NAME exit_code=N`, of which either may be missing; other words are ignored.

    Without an outcome it follows from the exit code; 128 + n is signal n.
    """
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    code = words.get("exit_code", "")
    values = {"exit_code": float(code)} if code.isascii() and code.isdigit() and len(code) < 10 else {}
    name = words.get("outcome", "")
    if name in set(JobOutcome):
        outcome = JobOutcome(name)
    else:
        outcome = JobOutcome.of_exit_code(int(code)) if values else JobOutcome.UNKNOWN
    said = f" with exit code {code}" if values else ""
    return Event(
        kind=EventKind.JOB_ENDED,
        time_unix_ns=now_unix_ns,
        message=f"The job ended: {outcome.value.replace('_', ' ')}{said}.",
        job=job,
        values=values,
        outcome=outcome,
    )
