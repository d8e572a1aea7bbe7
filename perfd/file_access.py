"""Files and sockets in folders that other users write to: no link of theirs is followed with our rights."""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import queue
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TypeVar

_T = TypeVar("_T")
_CLONE_FS = 0x200
"""The flag of unshare(2): this thread's working folder becomes its own."""
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""Numbers of the system call that changes one thread only; that of libc changes all."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""Symbolic links on one path, as many as Linux follows."""
_ROOT = 0
"""The user id of root."""


@contextmanager
def opened_folder(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of a folder, opened part by part; raises `OSError`, with ELOOP for a link of others.

    A link is followed when only root and this user can have made it: it and the folder that it is in are
    theirs, and no other user may write there.
    """
    descriptor = _open_folder(path, create=create, links=_MOST_LINKS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_inside(root: Path, inside: PurePath) -> Iterator[int]:
    """A descriptor of a folder of another process, whose root is `root` to us; raises `OSError` for a link.

    A link in a container's file system would be followed in ours, and could point at our files; `..` could
    lead out of it.
    """
    if ".." in inside.parts:
        raise OSError(errno.EINVAL, "a path with `..`", str(inside))
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in inside.parts[1:]:
            deeper = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def is_gone(path: Path) -> bool:
    """Whether nothing is at `path`; an open file there can be removed. False if that cannot be known."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def bind_socket(server: socket.socket, path: Path, mode: int, *, create_folder: bool = False) -> None:
    """Bind a Unix socket with these permissions, without changing those of what is there by then.

    It is bound in a thread whose umask is its own, so that no `chmod` by path follows. The name has its
    folder in it, since clients read it as the sender's: libkineto aborts its process at one that does not
    begin with the folder that it was given. Raises `OSError`, also when the folder was exchanged meanwhile.
    """
    with opened_folder(path.parent, create=create_folder) as folder:

        def bind() -> None:
            _own_file_system_attributes()
            _bind_with(0o777 & ~mode, server, path)

        _require_same(folder, path.parent)
        try:
            _in_thread(bind)
        except _CannotUnshareError:
            # The default seccomp profile of container runtimes. There the moment is one of the whole process.
            _bind_with(0o777 & ~mode, server, path)
        _require_same(folder, path.parent)


def _bind_with(umask: int, server: socket.socket, path: Path) -> None:
    before = os.umask(umask)
    try:
        server.bind(str(path))
    finally:
        os.umask(before)


def _require_same(folder: int, path: Path) -> None:
    """Raise `OSError` unless the path still leads to the folder that was opened."""
    if not os.path.samestat(os.fstat(folder), path.stat()):
        raise OSError(errno.ELOOP, "its folder was exchanged", str(path))


def remove_socket(path: Path) -> None:
    """Delete a socket, and nothing else; legal when there is none."""
    try:
        with opened_folder(path.parent) as folder:
            if stat.S_ISSOCK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(path.name, dir_fd=folder)
    except OSError:
        return


def open_as_owner(path: Path) -> int:
    """A descriptor to read a file, opened with the rights of whoever chose what is there.

    That is the first user but root to whom a part of the path belongs: what comes after it, that user may
    have linked to anything. Raises `OSError`. Without the right to become that user, the file must be theirs
    and no part of the path may be a link.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    user = None if os.geteuid() != _ROOT else _first_owner(path)
    if user is None:
        return os.open(path, flags)
    return open_as(user, path, flags)


def open_as(uid: int, path: Path, flags: int) -> int:
    """A descriptor of a file, opened as a user; raises `OSError`. Needs root to open as another one."""
    if os.geteuid() != _ROOT or uid == _ROOT:
        return os.open(path, flags)
    try:
        return _in_thread(lambda: _open_in_thread(uid, path, flags))
    except _CannotBecomeError:
        with opened_folder(path.parent) as folder:
            descriptor = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
        if os.fstat(descriptor).st_uid != uid:
            os.close(descriptor)
            raise PermissionError(errno.EACCES, "it is not the user's file", str(path)) from None
        return descriptor


def as_user(uid: int, action: Callable[[], _T]) -> _T:
    """What a function returns that works on files, with the rights of a user; raises what it raises.

    Without the right to become that user it has our rights.
    """
    if os.geteuid() != _ROOT or uid == _ROOT:
        return action()

    def act() -> _T:
        _become_in_thread(uid)
        return action()

    try:
        return _in_thread(act)
    except _CannotBecomeError:
        return action()


class _CannotUnshareError(Exception):
    """This process may not have a thread with attributes that differ from the others'."""


class _CannotBecomeError(Exception):
    """This process lacks CAP_SETUID or CAP_SETGID."""


def _open_folder(path: Path, *, create: bool, links: int) -> int:
    absolute = Path.cwd() / path
    if ".." in absolute.parts:
        raise OSError(errno.EINVAL, "a path with `..`", str(path))
    descriptor = os.open(absolute.anchor, _FOLDER)
    try:
        for number, part in enumerate(absolute.parts[1:], 1):
            if create:
                _make(part, descriptor)
            try:
                deeper = os.open(part, _FOLDER, dir_fd=descriptor)
            except OSError as error:
                if error.errno not in {errno.ELOOP, errno.ENOTDIR} or not _is_link(part, descriptor):
                    raise
                if not _is_trusted_link(part, descriptor):
                    raise OSError(errno.ELOOP, "a link that another user can change", str(path)) from error
                if links == 0:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
                before = Path(*absolute.parts[:number])
                target = before / os.readlink(part, dir_fd=descriptor)
                rest = Path(os.path.normpath(target), *absolute.parts[number + 1 :])
                deeper = _open_folder(rest, create=create, links=links - 1)
                os.close(descriptor)
                return deeper
            os.close(descriptor)
            descriptor = deeper
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make(part: str, folder: int) -> None:
    try:
        os.mkdir(part, 0o755, dir_fd=folder)
    except FileExistsError:
        return


def _is_link(part: str, folder: int) -> bool:
    return stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)


def _is_trusted_link(part: str, folder: int) -> bool:
    around, link = os.fstat(folder), os.stat(part, dir_fd=folder, follow_symlinks=False)
    ours = {_ROOT, os.geteuid()}
    shared = around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return link.st_uid in ours and around.st_uid in ours and not shared


def _first_owner(path: Path) -> int | None:
    """The first user but root that a part of a path belongs to, links included; None when all is root's."""
    waiting = list((Path.cwd() / path).parts)
    current = Path(waiting.pop(0))
    for _ in range(_MOST_LINKS * 16):
        if not waiting:
            return None
        current = current / waiting.pop(0)
        status = current.lstat()
        if status.st_uid != _ROOT:
            return status.st_uid
        if stat.S_ISLNK(status.st_mode):
            target = current.parent / current.readlink()
            waiting[:0] = target.parts[1:]
            current = Path(target.anchor)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _open_in_thread(uid: int, path: Path, flags: int) -> int:
    _become_in_thread(uid)
    return os.open(path, flags)


def _become_in_thread(uid: int) -> None:
    """Take a user's rights on files, for this thread."""
    gid, groups = _groups_of(uid)
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SETGROUPS.get(os.uname().machine)
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if number is None or libc.syscall(number, len(groups), array) != 0:
        raise _CannotBecomeError
    # These return what was before, so a second call shows whether the first one worked.
    for change, wanted in ((libc.setfsgid, gid), (libc.setfsuid, uid)):
        change(ctypes.c_uint32(wanted))
        if ctypes.c_uint32(change(ctypes.c_uint32(-1 & 0xFFFFFFFF))).value != wanted:
            raise _CannotBecomeError


def _groups_of(uid: int) -> tuple[int, list[int]]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        # A user of a container. Its number as a group is free.
        return uid, [uid]
    return user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)


def _own_file_system_attributes() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS) != 0:
        if ctypes.get_errno() == errno.EPERM:
            raise _CannotUnshareError
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _in_thread(function: Callable[[], _T]) -> _T:
    """What a function returns or raises in a separate thread, which keeps what it changes of itself."""
    found: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            found.put((function(), None))
        except BaseException as error:  # noqa: BLE001  (it is raised where it is waited for)
            found.put((None, error))

    thread = threading.Thread(target=call, name="perfd-file-access", daemon=True)
    thread.start()
    value, error = found.get()
    thread.join()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # None only when the function returns it.
