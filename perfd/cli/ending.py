"""How commands that serve learn that they shall end."""

from __future__ import annotations

import queue
import signal
import threading


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
