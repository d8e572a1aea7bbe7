from __future__ import annotations

import os

import pytest

from perfd.clock import VirtualClock
from perfd.session.channel.monitor_channel import FrameKind, MonitorChannel, read_frames

OUT, ERR = FrameKind.STDOUT, FrameKind.STDERR


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as reader:
        yield reader, write_fd


def received(reader) -> list[tuple[FrameKind, bytes]]:
    return [(frame.kind, frame.payload) for frame in read_frames(reader)]


def test_frames_arrive_in_order_with_the_time_at_which_they_were_offered(pipe):
    reader, write_fd = pipe
    clock = VirtualClock(1_000)
    feed = MonitorChannel(write_fd, clock)
    feed.send(FrameKind.STARTED, "42")
    clock.advance(1.0)
    feed.offer(OUT, b"hello\n")
    feed.start()
    feed.close(10.0)
    frames = list(read_frames(reader))
    assert [(f.kind, f.payload) for f in frames] == [(FrameKind.STARTED, b"42"), (OUT, b"hello\n")]
    assert [f.unix_ns for f in frames] == [1_000, 1_000_001_000]


def test_a_monitor_that_reads_nothing_never_blocks_the_job_and_the_loss_is_counted(pipe):
    reader, write_fd = pipe
    feed = MonitorChannel(write_fd, VirtualClock(), max_queued_bytes=1000)
    for i in range(10_000):
        feed.offer(OUT, b"line %d\n" % i)
    feed.report_dropped()
    feed.send(FrameKind.ENDED, "0")
    feed.start()
    feed.close(10.0)
    frames = received(reader)
    kept = sum(len(payload) for kind, payload in frames if kind is OUT)
    dropped = sum(int(payload) for kind, payload in frames if kind is FrameKind.DROPPED)
    assert kept <= 1000
    assert kept + dropped == sum(len(b"line %d\n" % i) for i in range(10_000))
    assert frames[-1] == (FrameKind.ENDED, b"0")


def test_a_gap_never_leaves_half_a_line_to_be_read_as_a_value(pipe):
    reader, write_fd = pipe
    feed = MonitorChannel(write_fd, VirtualClock(), max_queued_bytes=40)
    feed.offer(OUT, b"step 1 loss 2.5\nstep 2 lo")
    feed.offer(ERR, b"war")
    feed.offer(OUT, b"ss 12")
    feed.offer(OUT, b"34567890 and much more that does not fit")
    feed.offer(OUT, b"\nstep 3 loss 2.3\nste")
    feed.offer(OUT, b"p 4 loss 2.2\n")
    feed.offer(ERR, b"ning\n")
    feed.start()
    feed.close(10.0)
    frames = received(reader)
    out = b"".join(payload for kind, payload in frames if kind is OUT)
    assert set(out.splitlines()) <= {b"step 1 loss 2.5", b"step 3 loss 2.3", b"step 4 loss 2.2"}
    assert out.startswith(b"step 1 loss 2.5\n")
    assert b"".join(payload for kind, payload in frames if kind is ERR) == b"warning\n"


def test_output_is_taken_again_when_the_monitor_catches_up(pipe):
    reader, write_fd = pipe
    feed = MonitorChannel(write_fd, VirtualClock(), max_queued_bytes=100)
    feed.offer(OUT, b"x" * 90 + b"\n")
    feed.offer(OUT, b"this one is dropped\n")
    feed.start()
    frames = read_frames(reader)
    assert next(frames).payload == b"x" * 90 + b"\n"
    feed.offer(OUT, b"lost to the gap\n")
    feed.offer(OUT, b"there again\n")
    feed.report_dropped()
    feed.close(10.0)
    rest = [(f.kind, f.payload) for f in frames if f.payload]
    assert rest == [(OUT, b"there again\n"), (FrameKind.DROPPED, b"36")]


def test_a_monitor_that_died_costs_nothing_but_the_summary():
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    feed = MonitorChannel(write_fd, VirtualClock())
    feed.start()
    for _ in range(100):
        feed.offer(OUT, b"still printing\n" * 1000)
    feed.send(FrameKind.ENDED, "0")
    feed.close(10.0)


def test_a_pipe_that_ends_inside_a_frame_gives_the_frames_before_it(pipe):
    reader, write_fd = pipe
    feed = MonitorChannel(write_fd, VirtualClock())
    feed.offer(OUT, b"whole")
    feed.offer(OUT, b"cut")
    feed.start()
    feed.close(10.0)
    content = reader.read()
    read_fd, write_fd = os.pipe()
    os.write(write_fd, content[:-1])
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as cut:
        assert received(cut) == [(OUT, b"whole")]
