"""From bytes to lines: completeness, bounds, prefixes."""

from __future__ import annotations

import json
import tracemalloc
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.training_log.log_parser import MAX_LINE_BYTES, LineBuffer, LogParser, new_job, read_line
from training_log.logs import iteration, records_of

from perfd.model import TrainingStep


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_lines_do_not_depend_on_how_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    buffer = LineBuffer()
    places = sorted({min(cut, len(data)) for cut in cuts})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    blocks = [block for piece in pieces for block in buffer.feed(piece)]

    whole = LineBuffer()
    expected = b"".join(whole.feed(data))
    # A carriage return that is parted from its newline ends a line too, an empty one.
    lines = [line for line in b"".join(blocks).split(b"\n") if line]
    assert lines == [line for line in expected.split(b"\n") if line]
    assert buffer.rest() == whole.rest()


def test_a_line_of_100_megabytes_is_dropped_in_bounded_memory() -> None:
    job = new_job("job")
    parser = LogParser(job)
    piece = b"iteration 5/ 9 | lm loss: 1.5 | " * 2048
    tracemalloc.start()
    for _ in range(100 * 2**20 // len(piece)):
        parser.feed(piece)
    parser.feed(b"\n" + iteration(10).encode())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    (step,) = (record for record in job.out.take(0) if isinstance(record, TrainingStep))
    assert step.step == 10
    assert parser.unrecognized_lines == 1
    assert peak_bytes < 8 * MAX_LINE_BYTES


def test_a_line_over_a_mebibyte_that_arrives_at_once_is_dropped_too() -> None:
    long = b"x" * MAX_LINE_BYTES + iteration(5).encode()

    assert [step.step for step in records_of(long + iteration(10).encode(), TrainingStep)] == [10]


def test_after_a_gap_reading_goes_on_at_the_next_line() -> None:
    job = new_job("job")
    parser = LogParser(job)
    parser.feed(iteration(10).encode()[:170])
    parser.gap()
    parser.feed(iteration(20).encode()[150:] + iteration(30).encode())

    steps = [record.step for record in job.out.take(0) if isinstance(record, TrainingStep)]
    assert steps == [30]


_PREFIXES = (
    "[default3]:",
    "[rank3]: ",
    "[host:0]:",
    " 3: ",
    "(WorkerDict pid=393228, ip=172.16.0.197) ",
    "2025-08-01T08:04:42.123456789Z stdout F ",
    "\x1b[36m(TaskRunner pid=1)\x1b[0m ",
)


@pytest.mark.parametrize(("first", "second"), list(permutations(_PREFIXES, 2)))
def test_prefixes_of_launchers_are_stripped_however_they_are_stacked(first: str, second: str) -> None:
    assert read_line(f"{first}{second}iteration 5/ 9 |".encode()).text == "iteration 5/ 9 |"


def test_the_rank_in_a_prefix_is_known_only_when_it_is_the_global_one() -> None:
    assert read_line(b"[rank12]: text").rank == 12
    assert read_line(b"[default3]:text").rank is None


def test_a_container_runtimes_json_is_unwrapped() -> None:
    wrapped = json.dumps({"log": "[default3]: text\n", "stream": "stdout", "time": "2025-08-01T08:05:42Z"})

    line = read_line(wrapped.encode())

    assert line.text == "text"
    assert line.unix_ns == 1754035542 * 10**9


@pytest.mark.parametrize(
    "text", ['{"log": 5}', '{"a": "b"}', "{'loss': 1.0}", "{", '{"log": "x"', "[1]", "[Rank 3] x"]
)
def test_what_only_looks_like_a_prefix_stays(text: str) -> None:
    assert read_line(text.encode()).text == text


def test_lines_are_counted_exactly() -> None:
    text = "\n\nfirst\n\n\nsecond\n" + iteration(10) + "\nthird\n"
    job = new_job("job")
    parser = LogParser(job)
    parser.feed(text.encode())
    parser.finish()

    assert parser.lines == text.count("\n")
    assert parser.unrecognized_lines == 3
