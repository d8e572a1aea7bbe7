"""The system calls that a process keeps that only computes: a filter in the kernel (seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_AT_NUMBER, _AT_ARCHITECTURE = 0, 4
"""Offsets in the kernel's `struct seccomp_data`."""
_INSTRUCTION = struct.Struct("=HBBI")
"""The kernel's `struct sock_filter`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An architecture, as the kernel numbers it and its system calls."""

    audit_architecture: int
    """AUDIT_ARCH_* of linux/audit.h."""
    allowed: Sequence[int]


_CALLS: Mapping[str, tuple[int, int | None]] = {
    "brk": (12, 214),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getpid": (39, 172),
    "getrandom": (318, 278),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "lseek": (8, 62),
    "madvise": (28, 233),
    "membarrier": (324, 283),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "poll": (7, None),
    "ppoll": (271, 73),
    "pread64": (17, 67),
    "read": (0, 63),
    "readv": (19, 65),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "sigaltstack": (131, 132),
    "write": (1, 64),
    "writev": (20, 66),
}
"""What is kept, with the numbers of x86_64 and aarch64 in the kernel's tables of system calls."""
_MACHINES = {
    "x86_64": Machine(audit_architecture=0xC000003E, allowed=[mine for mine, _ in _CALLS.values()]),
    "aarch64": Machine(
        audit_architecture=0xC00000B7, allowed=[mine for _, mine in _CALLS.values() if mine is not None]
    ),
}


def filter_program(machine: Machine) -> bytes:
    """The filter: what is not in the list fails with EPERM; calls of another architecture end the process."""
    calls = sorted(machine.allowed)
    allow_at = 4 + len(calls) + 1
    program = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, machine.audit_architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _AT_NUMBER),
        *((_JUMP_IF_EQUAL, allow_at - at - 1, 0, number) for at, number in enumerate(calls, 4)),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


def forbid_new_privileges() -> None:
    """From now on no program that is executed gains rights; raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def filter_system_calls() -> bool:
    """Keep only the calls of the list, for ever; whether this kernel and architecture can."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return False
    program = filter_program(machine)
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    described = Program(len(program) // _INSTRUCTION.size, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0) == 0)
