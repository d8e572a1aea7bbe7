"""How commands learn that they shall end, and leave nothing behind when they do."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is inside as an exception, so that its temporary files go.

    A verb that serves takes these signals over; one that the caller ignores, as nohup does, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def set_by_signals(*numbers: signal.Signals) -> threading.Event:
    """An event that any of these signals sets; called in the main thread.

    A handler must not set it by itself: it interrupts the main thread, maybe inside the event's own lock,
    and would wait for itself. Python documents `queue.SimpleQueue.put` as safe there.
    """
    received: queue.SimpleQueue[None] = queue.SimpleQueue()
    told = threading.Event()

    def pass_on() -> None:
        received.get()
        told.set()

    threading.Thread(target=pass_on, name="perfd-signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda *_: received.put(None))
    return told
