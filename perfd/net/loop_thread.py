"""A thread with an event loop of its own, for one coroutine that a stop cancels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


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
