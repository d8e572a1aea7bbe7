"""The queue between the program that runs a job and the collector of its log."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from perfd.printed_output import PrintedOutput, PrintedPiece

EVERYTHING = 1 << 30


@given(
    pieces=st.lists(st.binary(max_size=20), max_size=20),
    limits=st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_each_byte_comes_once_in_order_with_its_time(pieces, limits):
    printed = PrintedOutput()
    for at, data in enumerate(pieces):
        printed.add(data, at)
    taken: list[PrintedPiece] = []
    for limit in limits:
        part = printed.take(limit)
        assert sum(len(piece.data) for piece in part) <= limit
        taken += part
    taken += printed.take(EVERYTHING)
    of_each = {
        at: b"".join(piece.data for piece in taken if piece.unix_ns == at) for at in range(len(pieces))
    }
    assert list(of_each.values()) == pieces
    assert [piece.unix_ns for piece in taken] == sorted(piece.unix_ns for piece in taken)
    assert printed.complete


def test_a_writer_waits_until_there_is_room():
    printed = PrintedOutput(max_bytes=10, stuck_after_s=3600.0)
    printed.add(b"0123456789", 1)
    writer = threading.Thread(target=printed.add, args=(b"more", 2))
    writer.start()
    taken: list[PrintedPiece] = []
    while len(taken) < 2:
        taken += printed.take(EVERYTHING)
    writer.join()
    assert [piece.data for piece in taken] == [b"0123456789", b"more"]
    assert printed.complete


def test_a_reader_that_takes_nothing_gets_nothing_more():
    printed = PrintedOutput(max_bytes=10, stuck_after_s=0.0)
    for at in range(3):
        printed.add(b"0123456789", at)
    assert not printed.complete
    assert [piece.unix_ns for piece in printed.take(EVERYTHING)] == [0]
    printed.add(b"late", 4)
    assert printed.take(EVERYTHING) == []


def test_the_end_is_the_last_piece_and_says_whether_all_was_taken():
    printed = PrintedOutput()
    printed.add(b"text", 1)
    assert not printed.end(2, 0.0)
    assert printed.take(EVERYTHING) == [PrintedPiece(b"text", 1), PrintedPiece(b"", 2, last=True)]
