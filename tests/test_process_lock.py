"""One process at a time, and the second one learns which has the lock."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from perfd.process_lock import HeldElsewhereError, ProcessLock


def test_a_second_holder_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "lock")

    with pytest.raises(HeldElsewhereError) as refused:
        ProcessLock(tmp_path / "lock")

    assert refused.value.holder == str(os.getpid())
    lock.close()
    lock.close()
    ProcessLock(tmp_path / "lock").close()


def test_the_id_of_a_longer_number_does_not_stay_behind(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789123\n")
    lock = ProcessLock(tmp_path / "lock")

    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.close()


def test_a_file_system_without_locks_is_an_error_only_where_one_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match="No locks available"):
        ProcessLock(tmp_path / "lock")

    assert not _is_open(tmp_path / "lock")
    lock = ProcessLock(tmp_path / "lock", required=False)
    assert lock.missing is not None
    assert lock.missing.errno == errno.ENOLCK
    lock.close()


def _is_open(path: Path) -> bool:
    return any(one.is_symlink() and one.readlink() == path for one in Path("/proc/self/fd").iterdir())
