from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.session.job.output_relay import OutputRelay


class Received:
    """A listener that keeps what it heard."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.first = threading.Event()

    def __call__(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.first.set()


def pumped(write, target_fd: int) -> tuple[OutputRelay, Received]:
    read_fd, write_fd = os.pipe()
    got = Received()
    pump = OutputRelay(read_fd, target_fd, got)
    pump.start()
    write(write_fd)
    os.close(write_fd)
    pump.join()
    pump.job_ended()
    return pump, got


@given(st.lists(st.binary(min_size=1, max_size=5000), max_size=20))
def test_every_byte_passes_unchanged_and_is_received(tmp_path_factory, chunks):
    path = tmp_path_factory.mktemp("pump") / "out"
    with path.open("wb") as target:
        _, got = pumped(lambda fd: [os.write(fd, chunk) for chunk in chunks], target.fileno())
    assert path.read_bytes() == b"".join(chunks)
    assert b"".join(got.chunks) == b"".join(chunks)


def test_output_without_a_line_end_passes_at_once(tmp_path):
    read_fd, write_fd = os.pipe()
    with (tmp_path / "out").open("wb") as target:
        got = Received()
        pump = OutputRelay(read_fd, target.fileno(), got)
        pump.start()
        os.write(write_fd, b"50 %")
        assert got.first.wait(30)
        assert (tmp_path / "out").read_bytes() == b"50 %"
        os.close(write_fd)
        pump.join()
        pump.job_ended()


def test_a_reader_that_left_ends_the_stream_as_it_would_without_perfd():
    out_read, out_write = os.pipe()
    os.close(out_read)
    failures: list[BaseException] = []

    def write_for_ever(fd: int) -> None:
        try:
            while True:
                os.write(fd, b"y\n" * 1000)
        except BrokenPipeError as error:
            failures.append(error)

    pumped(write_for_ever, out_write)
    os.close(out_write)
    assert len(failures) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_loses_the_output_but_not_the_job():
    with Path("/dev/full").open("wb", buffering=0) as full:
        pump, got = pumped(lambda fd: [os.write(fd, b"x" * 1000) for _ in range(500)], full.fileno())
    assert len(b"".join(got.chunks)) == 500_000
    assert pump.target_failed is not None
    assert pump.target_failed.strerror == "No space left on device"


def test_a_process_that_keeps_the_stream_open_does_not_keep_us(tmp_path):
    read_fd, write_fd = os.pipe()
    with (tmp_path / "out").open("wb") as target:
        pump = OutputRelay(read_fd, target.fileno(), Received())
        os.write(write_fd, b"last words")
        pump.start()
        pump.job_ended()
        pump.join()
    os.close(write_fd)
    assert (tmp_path / "out").read_bytes() == b"last words"


def test_a_target_that_is_not_blocking_still_gets_everything():
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    received = bytearray()
    reader = threading.Thread(
        target=lambda: received.extend(b"".join(iter(lambda: os.read(read_fd, 999), b"")))
    )
    reader.start()
    pumped(lambda fd: [os.write(fd, bytes([i % 256]) * 10_000) for i in range(100)], write_fd)
    os.close(write_fd)
    reader.join()
    os.close(read_fd)
    assert bytes(received) == b"".join(bytes([i % 256]) * 10_000 for i in range(100))
