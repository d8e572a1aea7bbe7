"""Files in folders of other users: what root opens there, it opens with that user's rights."""

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perfd.file_access import bind_socket, open_as, open_as_owner, opened_folder, remove_socket

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has the rights that are given up here")


@pytest.fixture
def place(tmp_path):
    """A folder of root that a user can enter, with a folder of that user and a secret of root."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    user = tmp_path / "user"
    user.mkdir()
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    (secret / "key").write_text("root only")
    (secret / "key").chmod(0o600)
    if os.geteuid() == 0:
        os.chown(user, NOBODY, NOBODY)
    return tmp_path


def content(descriptor):
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode()


def of_user(path):
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


@needs_root
def test_a_users_own_file_is_read(place):
    log = place / "user" / "train.log"
    log.write_text("steps")
    log.chmod(0o600)
    of_user(log)
    assert content(open_as_owner(log)) == "steps"


@needs_root
@pytest.mark.parametrize("middle", [False, True])
def test_a_users_link_to_a_file_of_root_is_not_read(place, middle):
    link = place / "user" / "link"
    link.symlink_to(place / "secret" if middle else place / "secret" / "key")
    of_user(link)
    with pytest.raises(PermissionError):
        open_as_owner(link / "key" if middle else link)


@needs_root
def test_roots_own_file_is_read_also_behind_roots_link(place):
    (place / "link").symlink_to(place / "secret")
    assert content(open_as_owner(place / "link" / "key")) == "root only"


@needs_root
def test_opening_as_a_user_changes_nothing_for_this_process(place):
    before = (os.geteuid(), os.getegid(), os.getgroups())
    with pytest.raises(PermissionError):
        open_as(NOBODY, place / "secret" / "key", os.O_RDONLY)
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    assert content(open_as(0, place / "secret" / "key", os.O_RDONLY)) == "root only"


def test_who_is_not_root_opens_as_ever(place, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file = place / "user" / "f"
    file.write_text("x")
    assert content(open_as_owner(file)) == "x"


@pytest.mark.parametrize("mode", [0o666, 0o600, 0o620])
def test_a_socket_has_its_permissions_from_the_beginning(tmp_path, mode):
    umask = os.umask(0o022)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            bind_socket(server, tmp_path / "made" / "s", mode, create_folder=True)
            status = (tmp_path / "made" / "s").lstat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == mode
            assert server.getsockname() == str(tmp_path / "made" / "s"), "libkineto reads its folder in it"
    finally:
        assert os.umask(umask) == 0o022
    assert threading.active_count() >= 1
    remove_socket(tmp_path / "made" / "s")
    assert not (tmp_path / "made" / "s").exists()


IN_A_CONTAINER = """
import ctypes, errno, os, socket, stat, struct, sys
from pathlib import Path
from perfd.file_access import bind_socket

# A filter of system calls, as container runtimes have by default: unshare is not permitted, all else is.
number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, header, 0, 0) == 0, ctypes.get_errno()
assert libc.unshare(0x200) == -1 and ctypes.get_errno() == errno.EPERM

os.umask(0o022)
path = Path(sys.argv[1])
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
    bind_socket(server, path, 0o666)
assert stat.S_IMODE(path.lstat().st_mode) == 0o666
assert os.umask(0o022) == 0o022
"""


def test_a_container_that_may_not_unshare_binds_sockets_too(tmp_path):
    program = [sys.executable, "-c", IN_A_CONTAINER, str(tmp_path / "s")]
    found = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


@needs_root
def test_no_socket_is_bound_behind_a_link_of_a_user(place):
    of_user_link = place / "user" / "sockets"
    of_user_link.symlink_to(place / "secret")
    of_user(of_user_link)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server, pytest.raises(OSError, match="link"):
        bind_socket(server, of_user_link / "s", 0o666)
    assert [one.name for one in (place / "secret").iterdir()] == ["key"]


def test_a_folder_behind_a_link_of_ours_is_opened(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with opened_folder(tmp_path / "link") as folder:
        assert os.fstat(folder).st_ino == (tmp_path / "there").stat().st_ino


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"), opened_folder(tmp_path / "a"):
        pass


def test_only_a_socket_is_removed(tmp_path):
    (tmp_path / "file").write_text("x")
    remove_socket(tmp_path / "file")
    remove_socket(tmp_path / "missing")
    remove_socket(tmp_path / "nowhere" / "s")
    assert (tmp_path / "file").exists()
    assert isinstance(Path(tmp_path), Path)
