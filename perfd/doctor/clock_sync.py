"""Reads the synchronization state of the wall clock from the kernel."""

from __future__ import annotations

import ctypes
import ctypes.util

from perfd.doctor.node_facts import ClockFacts

_STA_UNSYNC = 0x40
_TIME_ERROR = 5
"""Status bit and state of <sys/timex.h> for an unsynchronized clock."""


class _Timeval(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_usec", ctypes.c_long))


class _Timex(ctypes.Structure):
    """`struct timex` of <sys/timex.h>; unused members are padding."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", _Timeval),
        ("room", ctypes.c_long * 32),
    )


def read_clock() -> ClockFacts | None:
    """The state of the clock's synchronization; None when unknown."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    timex = _Timex()  # With modes 0 the call only reads, and needs no privilege.
    state = adjtimex(ctypes.byref(timex))
    if state < 0:
        return None
    return clock_facts(state, timex.status, timex.maxerror)


def clock_facts(state: int, status: int, max_error_us: int) -> ClockFacts:
    """The synchronization from the state, status bits and maximum error of adjtimex(2)."""
    synchronized = state != _TIME_ERROR and not status & _STA_UNSYNC
    return ClockFacts(synchronized=synchronized, max_error_s=max_error_us / 1e6)
