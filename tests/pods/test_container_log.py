"""A container's log through rotation, compression and restarts: no line is lost, none is read twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from perfd_collectors.pods.pod_log import ContainerLog, LogPart
from pods.node_logs import ContainerFolder

LIMIT = 1 << 20


@pytest.fixture
def container(tmp_path: Path) -> ContainerFolder:
    return ContainerFolder(tmp_path / "research_train_uid" / "train")


@pytest.fixture
def log(container: ContainerFolder) -> Iterator[ContainerLog]:
    log = ContainerLog(container.folder)
    yield log
    log.close()


def words(parts: list[LogPart]) -> list[str]:
    """The last word of each line."""
    text = b"".join(part.data for part in parts).decode()
    return [line.split()[-1] for line in text.splitlines()]


def until_silent(log: ContainerLog, limit: int = LIMIT) -> list[str]:
    found: list[LogPart] = []
    for _ in range(50):
        found += log.read(limit)
    return words(found)


def test_a_log_is_read_as_it_grows(container: ContainerFolder, log: ContainerLog) -> None:
    container.prints("one\ntwo")
    assert words(log.read(LIMIT)) == ["one", "two"]
    assert log.read(LIMIT) == []
    container.prints("three")
    assert words(log.read(LIMIT)) == ["three"]


def test_lines_written_to_the_old_file_after_its_rename_are_read(
    container: ContainerFolder, log: ContainerLog
) -> None:
    container.prints("one")
    assert words(log.read(LIMIT)) == ["one"]
    writer = container.live.open("a")
    container.rotates("20260501-100100")
    container.prints("three")
    first = words(log.read(LIMIT))
    writer.write("2026-05-01T10:00:01Z stdout F two\n")
    writer.close()
    assert first + until_silent(log) == ["two", "three"]


@pytest.mark.parametrize("compress", [False, True])
def test_rotation_between_two_reads_loses_nothing(
    container: ContainerFolder, log: ContainerLog, *, compress: bool
) -> None:
    container.prints("one")
    assert words(log.read(LIMIT)) == ["one"]
    container.prints("two")
    container.rotates("20260501-100100", compress=compress)
    container.prints("three")
    container.rotates("20260501-100200")
    container.prints("four")
    assert until_silent(log) == ["two", "three", "four"]


def test_all_files_of_the_newest_start_are_read_oldest_first(
    container: ContainerFolder, log: ContainerLog
) -> None:
    container.prints("before")
    container.restarts()
    container.prints("one")
    container.rotates("20260501-100100", compress=True)
    container.prints("two")
    container.rotates("20260501-100200")
    container.prints("three")
    assert until_silent(log) == ["one", "two", "three"]


def test_a_file_that_is_compressed_after_it_was_read_is_not_read_again(
    container: ContainerFolder, log: ContainerLog
) -> None:
    container.prints("one")
    rotated = container.rotates("20260501-100100")
    container.prints("two")
    assert until_silent(log) == ["one", "two"]
    container.compresses(rotated)
    container.prints("three")
    assert until_silent(log) == ["three"]


def test_a_file_that_is_compressed_while_it_is_read_is_read_once(
    container: ContainerFolder, log: ContainerLog
) -> None:
    container.prints("\n".join(str(number) for number in range(1000)))
    rotated = container.rotates("20260501-100100")
    container.prints("last")
    first = log.read(5000)
    container.compresses(rotated)
    rest: list[LogPart] = []
    for _ in range(100):
        rest += log.read(5000)
    assert words(first + rest) == [*(str(number) for number in range(1000)), "last"]


def test_a_restart_is_reported_with_the_first_bytes_of_it(
    container: ContainerFolder, log: ContainerLog
) -> None:
    container.prints("one")
    log.read(LIMIT)
    container.prints("two")
    container.restarts()
    container.prints("three")
    parts = [part for _ in range(4) for part in log.read(LIMIT)]
    assert [(words([part]), part.restarted) for part in parts] == [(["two"], False), (["three"], True)]


def test_a_damaged_compressed_file_costs_itself_only(container: ContainerFolder, log: ContainerLog) -> None:
    container.prints("one")
    packed = container.rotates("20260501-100100", compress=True)
    packed.write_bytes(packed.read_bytes()[:-12])
    container.prints("two")
    parts = [part for _ in range(4) for part in log.read(LIMIT)][-1:]
    assert (words(parts), parts[0].gap) == (["two"], True)


def test_a_truncated_file_is_read_from_its_start(container: ContainerFolder, log: ContainerLog) -> None:
    container.prints("one\ntwo")
    log.read(LIMIT)
    container.live.write_text("2026-05-01T10:00:01Z stdout F three\n")
    (part,) = log.read(LIMIT)
    assert (words([part]), part.gap) == (["three"], True)


def test_reading_stays_within_the_limit(container: ContainerFolder, log: ContainerLog) -> None:
    container.prints("\n".join("word" for _ in range(100)))
    (part,) = log.read(1000)
    assert len(part.data) == 1000
    rest = b"".join(part.data for _ in range(20) for part in log.read(1000))
    assert part.data + rest == container.live.read_bytes()


def test_a_folder_that_is_gone_is_silent(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "gone")
    assert log.read(LIMIT) == []
    log.close()
    log.close()
