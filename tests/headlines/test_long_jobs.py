"""Long jobs are made of a recording's steps: what is printed goes on in numbers and in time."""

from __future__ import annotations

import pytest

from benchmarks.headlines.alterations import Piece
from benchmarks.headlines.repeated_job import LongJob, Stretch

S = 1_000_000_000


@pytest.mark.parametrize(
    ("printed", "repeated"),
    [
        (
            b" [2026-11-25 23:59:58.345678] iteration        7/      80 | elapsed",
            b" [2026-11-26 00:00:02.345678] iteration        9/      80 | elapsed",
        ),
        (b"[2026-11-25T03:59:58] step=7 lr 1.0", b"[2026-11-25T04:00:02] step=9 lr 1.0"),
        (b"step: 7, loss 2.5", b"step: 9, loss 2.5"),
    ],
)
def test_a_repeated_step_is_printed_with_its_own_number_and_time(printed: bytes, repeated: bytes):
    found = [Piece(2 * S, "vm", printed=printed), Piece(6 * S, "vm", printed=b"done")]
    steps = Stretch(fault="healthy", ranks=frozenset(), begin_ns=S, end_ns=5 * S, first_step=6, steps=2)
    job = LongJob(found, steps)
    job.add(steps)
    job.add(steps)
    assert [(one.unix_ns // S, one.printed) for one in job.pieces if one.printed] == [
        (2, printed),
        (6, repeated),
    ]
