from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from perfd.session.channel.line_merger import MAX_LINE_BYTES, LineMerger


def merged(*chunks: tuple[int, bytes]) -> bytes:
    merger = LineMerger()
    return b"".join([merger.add(stream, chunk) for stream, chunk in chunks] + [merger.rest()])


def test_lines_of_two_streams_never_run_into_each_other():
    assert merged((1, b"loss: 3"), (2, b"warning: 12\n"), (1, b".25\n")) == b"warning: 12\nloss: 3.25\n"


def test_what_has_no_line_end_at_the_end_comes_last_one_below_the_other():
    assert merged((1, b"a\nb"), (2, b"c")) == b"a\nb\nc"


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=20))))
def test_no_byte_is_lost_or_changed_and_each_stream_keeps_its_order(chunks):
    both = merged(*chunks)
    for stream in (1, 2):
        printed = b"".join(chunk for s, chunk in chunks if s == stream)
        alone = merged(*[c for c in chunks if c[0] == stream])
        assert alone == printed
        lines = iter(re.split(rb"[\r\n]", both))
        assert all(line in lines for line in re.split(rb"[\r\n]", printed) if line)


def test_a_progress_bar_is_passed_on_before_its_line_ends():
    merger = LineMerger()

    assert merger.add(1, b"\r 4/90 [00:01<") == b"\r"
    assert merger.add(2, b"loss 1\n") == b"loss 1\n"
    assert merger.add(1, b"00:30]\r 5/90") == b" 4/90 [00:01<00:30]\r"


def test_a_line_without_end_is_left_out_and_the_next_one_is_not():
    merger = LineMerger()
    assert merger.add(1, b"good\n") == b"good\n"
    for _ in range(200):
        assert merger.add(1, b"x" * (MAX_LINE_BYTES // 100)) == b""
    assert merger.add(1, b"tail of it\n") == b""
    assert merger.add(1, b"good again\n") == b"good again\n"


def test_an_overlong_line_that_ends_mid_chunk_takes_nothing_else_with_it():
    merger = LineMerger()
    merger.add(1, b"x" * (MAX_LINE_BYTES + 1))
    assert merger.add(1, b"tail\nwhole\nhalf") == b"whole\n"
    assert merger.add(1, b"\n") == b"half\n"
