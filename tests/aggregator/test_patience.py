"""What may hang is waited for no longer than one may."""

from __future__ import annotations

import contextlib
import threading

import pytest

from perfd.aggregator.captures.call_with_timeout import TimeoutCall


def test_what_is_done_in_time_is_returned_and_errors_are_raised() -> None:
    patience = TimeoutCall(60.0)

    assert patience.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        patience.call(lambda: 1 // 0)
    assert patience.call(lambda: 8) == 8


def test_while_something_hangs_nothing_else_is_begun() -> None:
    patience, back, begun = TimeoutCall(0.05), threading.Event(), threading.Event()
    with pytest.raises(TimeoutError):
        patience.call(back.wait)
    with pytest.raises(TimeoutError):
        patience.call(begun.set)
    assert not begun.is_set()

    back.set()
    while not begun.is_set():
        with contextlib.suppress(TimeoutError):
            patience.call(begun.set)
