"""A coroutine in a thread of its own, from its start to a stop that cancels it."""

from __future__ import annotations

import asyncio
import threading

from perfd.net import LoopThread

WAIT_S = 60.0


def test_a_stop_cancels_the_work_and_waits_for_what_it_finishes() -> None:
    begun, finished = threading.Event(), threading.Event()
    asked: list[bool] = []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            asked.append(thread.stopping)
            await asyncio.sleep(0)
            finished.set()

    thread = LoopThread(work, name="test")
    thread.start()
    assert begun.wait(WAIT_S)

    thread.stop(WAIT_S)
    thread.stop(WAIT_S)

    assert finished.is_set()
    assert asked == [True]


def test_work_that_is_stopped_before_its_start_does_nothing() -> None:
    begun = threading.Event()

    async def work() -> None:
        begun.set()

    thread = LoopThread(work, name="test")
    thread.stop(WAIT_S)
    thread.start()
    thread._thread.join(WAIT_S)

    assert not begun.is_set()


def test_what_is_submitted_runs_beside_the_work_and_is_dropped_once_it_is_over() -> None:
    begun, done = threading.Event(), threading.Event()
    done_late = threading.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def report(to: threading.Event) -> None:
        to.set()

    thread = LoopThread(work, name="test")
    thread.submit(report(done_late))
    thread.start()
    assert begun.wait(WAIT_S)
    thread.submit(report(done))
    assert done.wait(WAIT_S)
    thread.stop(WAIT_S)
    thread.submit(report(done_late))

    assert not done_late.is_set()
