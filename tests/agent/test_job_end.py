"""How a job ended, as it is written for the agent."""

from pathlib import Path

import pytest

from perfd.agent.job_end_message import read_job_end
from perfd.model import EventKind, JobOutcome, job_end


@pytest.mark.parametrize(
    ("text", "outcome", "code"),
    [
        ("exit_code=0\n", JobOutcome.COMPLETED, 0),
        ("exit_code=1", JobOutcome.FAILED, 1),
        ("exit_code=128", JobOutcome.FAILED, 128),
        ("exit_code=129", JobOutcome.SIGNAL, 129),
        ("exit_code=139", JobOutcome.SIGNAL, 139),
        ("exit_code=130", JobOutcome.CANCELLED, 130),
        ("exit_code=143", JobOutcome.CANCELLED, 143),
        ("outcome=node_failure", JobOutcome.NODE_FAILURE, None),
        ("outcome=out_of_memory exit_code=137", JobOutcome.OUT_OF_MEMORY, 137),
        ("outcome=sunspots exit_code=3", JobOutcome.FAILED, 3),
        ("outcome=unknown", JobOutcome.UNKNOWN, None),
        ("exit_code=-1", JobOutcome.UNKNOWN, None),
        ("exit_code=99999999999999999999", JobOutcome.UNKNOWN, None),
        ("= == nothing of this", JobOutcome.UNKNOWN, None),
        ("", JobOutcome.UNKNOWN, None),
    ],
)
def test_the_end_is_an_outcome_an_exit_code_or_both(text: str, outcome: JobOutcome, code: int | None) -> None:
    event = job_end(text, "7", 42)
    assert (event.kind, event.job, event.time_unix_ns) == (EventKind.JOB_ENDED, "7", 42)
    assert event.outcome is outcome
    assert event.values == ({} if code is None else {"exit_code": code})


def test_without_a_file_nothing_is_said_and_garbage_is_an_unknown_end(tmp_path: Path) -> None:
    path = tmp_path / "end"
    assert read_job_end(path, None, 1) is None
    assert read_job_end(tmp_path, None, 1) is None
    path.write_bytes(b"\xff" * 10_000)
    event = read_job_end(path, None, 1)
    assert event is not None
    assert event.outcome is JobOutcome.UNKNOWN
