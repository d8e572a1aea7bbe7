"""The system calls that a process keeps: a filter in the kernel (seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
"""Options of prctl(2) and the mode of a filter (linux/seccomp.h)."""
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
"""Instructions of classic BPF (linux/bpf_common.h)."""
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
"""What a filter returns (linux/seccomp.h)."""
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`."""
_INSTRUCTION = struct.Struct("=HBBI")
"""The kernel's `struct sock_filter`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An architecture, as the kernel numbers it and its system calls."""

    audit_architecture: int
    """AUDIT_ARCH_* of linux/audit.h."""
    allowed: Sequence[int]
    denied: Sequence[int]
    starting: Sequence[int] = ()
    """The calls in `denied` that start programs."""
    limits: int = -1
    """prlimit64."""


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
"""What a process keeps that only computes; numbers of x86_64 and aarch64, from the kernel's tables."""
_STARTING: Mapping[str, tuple[int | None, int | None]] = {"execve": (59, 221), "execveat": (322, 281)}
_LIMITS = (302, 261)
"""prlimit64. Processes may use it on themselves, as many libraries do."""
_DENIED: Mapping[str, tuple[int | None, int | None]] = {
    # Programs, and the network.
    **_STARTING,
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # Other processes.
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    # Users, owners and modes, which Landlock leaves alone.
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "setgroups": (116, 159),
    "capset": (126, 91),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    # The system, and parts of the kernel that were often its weakest.
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
}
"""What a process loses that also reads and writes files."""


def _machine(audit_architecture: int, column: int) -> Machine:
    def numbers(calls: Mapping[str, tuple[int | None, int | None]]) -> Sequence[int]:
        return sorted(number for both in calls.values() if (number := both[column]) is not None)

    return Machine(
        audit_architecture=audit_architecture,
        allowed=numbers(_CALLS),
        denied=numbers(_DENIED),
        starting=numbers(_STARTING),
        limits=_LIMITS[column],
    )


_MACHINES = {"x86_64": _machine(0xC000003E, 0), "aarch64": _machine(0xC00000B7, 1)}
_OTHER_NUMBERS = 0x40000000
"""From here on x86_64 has the calls of its ABI x32 again, under other numbers."""


def filter_program(machine: Machine) -> bytes:
    """What is not allowed fails with EPERM; calls of another architecture end the process."""
    return _program(machine, machine.allowed, _ALLOW, _ERROR | errno.EPERM)


def deny_program(machine: Machine, *, programs: bool = False) -> bytes:
    """Denied calls fail with EPERM; calls of another architecture end the process.

    With `programs`, the process may start programs.
    """
    denied = [number for number in machine.denied if not (programs and number in machine.starting)]
    # prlimit64: the first argument is a process id, 0 for the caller.
    limits = [
        (_JUMP_IF_EQUAL, 0, 4, machine.limits),
        (_LOAD, 0, 0, _AT_FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
    ]
    return _program(machine, denied, _ERROR | errno.EPERM, _ALLOW, limits if machine.limits >= 0 else ())


def _program(
    machine: Machine,
    calls: Sequence[int],
    listed: int,
    other: int,
    first: Sequence[tuple[int, int, int, int]] = (),
) -> bytes:
    calls_at = 6 + len(first)
    listed_at = calls_at + len(calls) + 1
    program = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, machine.audit_architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _AT_NUMBER),
        (_JUMP_IF_AT_LEAST, 0, 1, _OTHER_NUMBERS),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        *first,
        *((_JUMP_IF_EQUAL, listed_at - at - 1, 0, number) for at, number in enumerate(calls, calls_at)),
        (_RETURN, 0, 0, other),
        (_RETURN, 0, 0, listed),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


def forbid_new_privileges() -> None:
    """From now on no program that is executed gains rights; raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def filter_system_calls() -> bool:
    """Keep only the calls of the list, for ever; whether this kernel and architecture can."""
    machine = _MACHINES.get(os.uname().machine)
    return machine is not None and _install(filter_program(machine))


def deny_system_calls(*, programs: bool = False) -> bool:
    """Permanently deny the calls, except those that start programs if `programs`; False if unsupported."""
    machine = _MACHINES.get(os.uname().machine)
    return machine is not None and _install(deny_program(machine, programs=programs))


def _install(program: bytes) -> bool:
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    described = Program(len(program) // _INSTRUCTION.size, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0) == 0)
