"""How a job ended, as the script that a scheduler runs at its end writes it."""

from __future__ import annotations

from perfd.model.event_records import Event, EventKind, JobOutcome


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
    exit_text = f" with exit code {code}" if values else ""
    return Event(
        kind=EventKind.JOB_ENDED,
        time_unix_ns=now_unix_ns,
        message=f"The job ended: {outcome.value.replace('_', ' ')}{exit_text}.",
        job=job,
        values=values,
        outcome=outcome,
    )
