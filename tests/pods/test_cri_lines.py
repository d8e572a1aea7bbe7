"""Lines of the container runtime interface, taken apart."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.pods.cri_lines import CriLines

T = b"2026-05-01T10:00:00.000000000Z"


def feed(*pieces: bytes) -> dict[str, bytes]:
    lines = CriLines()
    found: dict[str, bytes] = {}
    for piece in pieces:
        for stream, data in lines.feed(piece).items():
            found[stream] = found.get(stream, b"") + data
    return found


def test_streams_are_distinguished_and_each_line_keeps_its_time() -> None:
    data = T + b" stdout F one\n" + T + b" stderr F two\n" + T + b" stdout F three\n"
    assert feed(data) == {"stdout": T + b" one\n" + T + b" three\n", "stderr": T + b" two\n"}


def test_parts_of_a_line_are_joined_also_with_lines_of_the_other_stream_between() -> None:
    data = T + b" stdout P iterat\n" + T + b" stderr F bar\n" + T + b" stdout F ion 1\n"
    assert feed(data) == {"stdout": T + b" iteration 1\n", "stderr": T + b" bar\n"}


def test_each_turn_of_a_progress_bar_has_a_time() -> None:
    data = T + b" stderr F  1/9\r 2/9\r\n"
    assert feed(data) == {"stderr": T + b"  1/9\r" + T + b"  2/9\n"}


@pytest.mark.parametrize("line", [b"garbage", b"", b"2026-05-01 10:00 stdout F x", T + b" stdin F x"])
def test_what_is_no_such_line_is_dropped(line: bytes) -> None:
    assert feed(line + b"\n" + T + b" stdout F one\n") == {"stdout": T + b" one\n"}


def test_an_empty_line_and_further_tags_are_lines() -> None:
    assert feed(T + b" stdout F \n" + T + b" stdout F:x one\n") == {"stdout": T + b" \n" + T + b" one\n"}


def test_after_a_gap_reading_goes_on_at_the_next_line() -> None:
    lines = CriLines()
    lines.feed(T + b" stdout P begun, ")
    lines.gap()
    assert lines.feed(b"the rest\n" + T + b" stdout F one\n") == {"stdout": T + b" one\n"}


def test_a_line_without_end_is_not_held_for_ever() -> None:
    lines = CriLines()
    for _ in range(40):
        assert lines.feed(b"x" * 8192) == {}
    assert lines.feed(b"\n" + T + b" stdout F one\n") == {"stdout": T + b" one\n"}
    assert lines.dropped_lines > 0


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_how_bytes_are_cut_changes_nothing(data: bytes, cuts: list[int]) -> None:
    whole = T + b" stdout P a\n" + T + b" stdout F b\n" + data + b"\n" + T + b" stderr F c\n"
    edges = [0, *sorted(cut % len(whole) for cut in cuts), len(whole)]
    assert feed(*(whole[a:b] for a, b in pairwise(edges))) == feed(whole)
