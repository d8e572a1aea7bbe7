"""Following files: whatever happens to them, each byte is read once and no line is put together wrongly."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from perfd_collectors.file_follower import Chunk, FileFollower
from perfd_collectors.training_log.log_sources import StdinSource, matching_files, torchrun_files

EVERYTHING = 1 << 30


class Reader:
    """What a follower gave, as text by stream; each beginning anew is marked."""

    def __init__(self, follower: FileFollower) -> None:
        self.follower = follower
        self.text: dict[str, str] = {}

    def poll(self, limit: int = EVERYTHING) -> list[Chunk]:
        chunks = self.follower.poll(limit)
        for chunk in chunks:
            mark = "<anew>" if chunk.begins_anew else "<attached>" if chunk.attached else ""
            self.text[chunk.stream] = self.text.get(chunk.stream, "") + mark + chunk.data.decode()
        return chunks


@pytest.fixture
def follow() -> Callable[..., Reader]:
    def open_reader(*patterns: object, from_start: bool = True) -> Reader:
        names = tuple(str(pattern) for pattern in patterns)
        return Reader(FileFollower(partial(matching_files, names), from_start=from_start))

    return open_reader


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_is_appended_is_read_once(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log = tmp_path / "train.log"
    append(log, "one\ntw")
    reader = follow(log)
    reader.poll()
    append(log, "o\n")
    reader.poll()
    reader.poll()

    assert reader.text == {str(log): "one\ntwo\n"}


def test_a_file_may_appear_later(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log = tmp_path / "train.log"
    reader = follow(log, from_start=False)
    assert reader.poll() == []
    append(log, "one\n")
    reader.poll()

    assert reader.text == {str(log): "one\n"}


def test_what_is_there_already_can_be_skipped(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log = tmp_path / "train.log"
    append(log, "old\nhal")
    reader = follow(log, from_start=False)
    reader.poll()
    append(log, "f\nnew\n")
    reader.poll()

    assert reader.text == {str(log): "<attached>f\nnew\n"}


def test_rotation_by_renaming_loses_nothing(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log = tmp_path / "train.log"
    append(log, "one\n")
    reader = follow(log)
    reader.poll()
    append(log, "two\n")
    log.rename(tmp_path / "train.log.1")
    append(log, "three\n")
    for _ in range(3):
        reader.poll()

    assert reader.text == {str(log): "one\ntwo\n<anew>three\n"}


def test_a_rotated_file_that_matches_too_is_not_read_twice(
    tmp_path: Path, follow: Callable[..., Reader]
) -> None:
    log = tmp_path / "train.log"
    append(log, "one\n")
    reader = follow(tmp_path / "train.log*")
    reader.poll()
    log.rename(tmp_path / "train.log.1")
    append(log, "two\n")
    for _ in range(3):
        reader.poll()

    assert "".join(reader.text.values()).replace("<anew>", "") == "one\ntwo\n"


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log = tmp_path / "train.log"
    append(log, "one\nunfini")
    reader = follow(log)
    reader.poll()
    log.write_text("two\n")
    reader.poll()

    assert reader.text == {str(log): "one\nunfini<anew>two\n"}


def test_a_file_that_was_emptied_and_grew_beyond_is_noticed(
    tmp_path: Path, follow: Callable[..., Reader]
) -> None:
    log = tmp_path / "train.log"
    append(log, "one\n")
    reader = follow(log)
    reader.poll()
    with log.open("r+") as same:
        same.truncate(0)
        same.write("a much longer line\n")
    reader.poll()

    assert reader.text == {str(log): "one\n<anew>a much longer line\n"}


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log, new = tmp_path / "train.log", tmp_path / "new"
    append(log, "one\n")
    reader = follow(log)
    reader.poll()
    new.write_text("two\n")
    new.replace(log)
    for _ in range(2):
        reader.poll()

    assert reader.text == {str(log): "one\n<anew>two\n"}


def test_a_deleted_file_that_comes_back_is_read(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log = tmp_path / "train.log"
    append(log, "one\n")
    reader = follow(log)
    reader.poll()
    log.unlink()
    reader.poll()
    append(log, "two\n")
    reader.poll()

    assert reader.text == {str(log): "one\n<anew>two\n"}


def test_reading_is_bounded_and_files_take_turns(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    for name in ("a", "b"):
        append(tmp_path / name, "x" * 5000)
    reader = follow(tmp_path / "*")
    for _ in range(2):
        assert sum(len(chunk.data) for chunk in reader.poll(1000)) <= 1000
    for _ in range(20):
        reader.poll(1000)

    assert {len(text) for text in reader.text.values()} == {5000}
    assert len(reader.text) == 2


def test_a_directory_and_a_dangling_link_are_no_logs(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")

    assert follow(tmp_path / "*").poll() == []


def test_a_fully_read_file_shows_when_it_was_written(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    log = tmp_path / "train.log"
    append(log, "one\n")
    os.utime(log, ns=(5, 1_000_000_000))

    (chunk,) = follow(log).poll()

    assert chunk.newest_unix_ns == 1_000_000_000


def test_closing_is_legal_twice(tmp_path: Path, follow: Callable[..., Reader]) -> None:
    append(tmp_path / "train.log", "one\n")
    reader = follow(tmp_path / "train.log")
    reader.poll()

    reader.follower.close()
    reader.follower.close()


def torchrun_log(root: Path, run: str, attempt: int, rank: int, text: str) -> Path:
    path = root / run / f"attempt_{attempt}" / str(rank) / "stdout.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_newest_attempt_of_a_torchrun_tree_wins(tmp_path: Path) -> None:
    torchrun_log(tmp_path, "run_a", 0, 0, "old\n")
    newest = torchrun_log(tmp_path, "run_a", 1, 0, "new\n")
    tenth = torchrun_log(tmp_path, "run_a", 10, 0, "newest\n")

    assert torchrun_files(tmp_path) == {"0/stdout.log": tenth}
    assert newest.is_file()


def test_every_local_rank_has_a_stream(tmp_path: Path) -> None:
    for rank in (0, 1, 10, 2):
        torchrun_log(tmp_path, "run", 0, rank, "")
    (tmp_path / "run" / "attempt_0" / "2" / "stderr.log").touch()

    assert list(torchrun_files(tmp_path)) == [
        "0/stdout.log",
        "1/stdout.log",
        "2/stdout.log",
        "2/stderr.log",
        "10/stdout.log",
    ]


def test_a_new_attempt_is_followed_under_the_old_name(tmp_path: Path) -> None:
    reader = Reader(FileFollower(partial(torchrun_files, tmp_path), from_start=True))
    assert reader.poll() == []
    torchrun_log(tmp_path, "run", 0, 0, "first\n")
    reader.poll()
    torchrun_log(tmp_path, "run", 1, 0, "second\n")
    for _ in range(2):
        reader.poll()

    assert reader.text == {"0/stdout.log": "first\n<anew>second\n"}


def test_standard_input_is_read_without_waiting() -> None:
    reading, writing = os.pipe()
    source = StdinSource(reading)

    assert source.poll(EVERYTHING) == []
    os.write(writing, b"one\n")
    assert [chunk.data for chunk in source.poll(EVERYTHING)] == [b"one\n"]
    os.close(writing)
    assert [(chunk.data, chunk.ended) for chunk in source.poll(EVERYTHING)] == [(b"", True)]
    assert source.poll(EVERYTHING) == []
    source.close()
    os.close(reading)
