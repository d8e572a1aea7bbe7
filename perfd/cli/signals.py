"""How commands learn that they shall end, and leave nothing behind when they do."""

from __future__ import annotations

import signal
import socket
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
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        # It was that while modules were imported; what is inside may have something to leave in order.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        yield
    except RuntimeError as error:
        # Python 3.11 wraps what a handler raises while a class is made, as while modules are imported.
        if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
            raise error.__cause__ from None
        raise
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def set_by_signals(*numbers: signal.Signals) -> threading.Event:
    """An event that any of these signals sets, and a hang-up unless the caller ignores it, as nohup does.

    Called in the main thread, once in a process.

    Python runs a handler in the main thread, maybe inside the event's own lock, where it would wait for
    itself; and never while the main thread waits and the kernel gave the signal to another one. So a thread
    reads the numbers that the interpreter writes to a socket at once, whichever thread was interrupted.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers = (*numbers, signal.SIGHUP)
    event = threading.Event()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def pass_on() -> None:
        # For ever: a signal after the first one must find both ends open.
        with ours, theirs:
            while True:
                if not set(numbers).isdisjoint(ours.recv(64)):
                    event.set()

    threading.Thread(target=pass_on, name="perfd-signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    return event
