"""Waiting for what may hang, such as a look at a file system of a cluster, no longer than one may."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


class TimeoutCall:
    """Does one thing at a time; from any thread.

    Nothing can end a thread that hangs in a file system: it is left behind, and until it comes back nothing
    else is begun, so that there is never more than one.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._free = threading.Semaphore()

    def call(self, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises; `TimeoutError` when that, or what came before it, takes too long."""
        if not self._free.acquire(timeout=self._timeout_s):
            raise TimeoutError("something before it still hangs")
        answer: Future[_T] = Future()
        threading.Thread(target=self._run, args=(work, answer), name="perfd-patience", daemon=True).start()
        return answer.result(self._timeout_s)

    def _run(self, work: Callable[[], _T], answer: Future[_T]) -> None:
        try:
            answer.set_result(work())
        except Exception as error:  # noqa: BLE001 - Whoever waits gets it.
            answer.set_exception(error)
        finally:
            self._free.release()
