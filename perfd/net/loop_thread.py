"""A thread with an event loop of its own, for one coroutine that a stop cancels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_CLEANED_UP_WITHIN_S = 5.0
"""Longer than what tasks do after their cancellation takes: that is not to be interrupted."""


async def end_tasks(*tasks: asyncio.Future[Any], again_after_s: float = _CLEANED_UP_WITHIN_S) -> None:
    """Cancel tasks, again and again until they end; what they raise is dropped.

    Up to Python 3.11 `asyncio.wait_for`, which libraries use, returns its result instead of a cancellation
    that comes at the same moment: a loop around it would go on for ever.
    """
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=again_after_s)
    for task in tasks:
        if not task.cancelled():
            task.exception()


class LoopThread:
    """Runs `work` from `start` until it returns or `stop` cancels it. Thread-safe."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._work = work
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: what a canceled coroutine asks."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Begin; legal once."""
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Cancel the work and wait for its end; legal at any time, also twice and before the start."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if (running := self._running) is not None:
            loop, task = running
            with contextlib.suppress(RuntimeError):  # It has ended.
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive():
            self._thread.join(within_s)

    def submit(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine beside the work, from any thread; dropped where nothing runs."""
        if (running := self._running) is not None:
            try:
                asyncio.run_coroutine_threadsafe(coroutine, running[0])
                return
            except RuntimeError:  # The loop has ended.
                pass
        coroutine.close()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        task = asyncio.create_task(self._work())
        self._running = asyncio.get_running_loop(), task
        if self._stopping.is_set():
            # A stop before this moment found nothing to cancel.
            task.cancel()
        await task
