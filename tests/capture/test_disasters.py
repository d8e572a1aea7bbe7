"""Captures whose disk is full or whose profiler hangs: a clear outcome, and nothing left behind."""

import ctypes
import os
from pathlib import PurePosixPath

import pytest
from capture.conftest import request

from perfd.capture.node.capture_storage import CaptureRecord, CaptureStore, free_bytes
from perfd.capture.node.retention import FolderWatch
from perfd.capture.node.trace_directory import TraceDirectory
from perfd.capture.nsys import nsys_cli
from perfd.errors import CaptureError
from perfd.model import CaptureState

_LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def with_small_disk():
    """Mounts 2 MiB of memory where a node keeps its captures."""
    mounted = []

    def mount(node):
        node.captures.mkdir(parents=True, mode=0o700)
        target = os.fsencode(node.captures)
        if _LIBC.mount(b"tmpfs", target, b"tmpfs", 0, b"size=2m,mode=0700") != 0:
            pytest.skip(f"a small disk needs the right to mount: {os.strerror(ctypes.get_errno())}")
        mounted.append((node, target))

    yield mount
    for node, target in mounted:
        node.end()
        _LIBC.umount2(target, 2)


def left_in(node):
    """The files of the capture but its record."""
    return [path.name for path in (node.captures / "c1").iterdir() if path.name != "capture.json"]


def test_a_disk_that_others_fill_in_mid_capture_ends_it(node, with_small_disk):
    with_small_disk(node)
    node.launch()
    node.executor().handle(request(max_duration_s=300))
    node.until_state(CaptureState.RUNNING)
    (node.captures / "of-others").write_bytes(b"x" * free_bytes(node.captures))
    assert "Free space fell" in node.until_state(CaptureState.FAILED).reason
    assert node.session_state() == "Launched"
    assert left_in(node) == []


def test_a_report_that_does_not_fit_leaves_no_part_of_it(make_node, with_small_disk):
    node = make_node(report_bytes=8 << 20)
    with_small_disk(node)
    node.launch()
    store = CaptureStore(node.captures, max_bytes=10**9, min_free_bytes=0)
    node.executor(store=store).handle(request())
    assert "No space left" in node.until_state(CaptureState.FAILED).reason
    assert node.session_state() == "Launched"
    assert left_in(node) == []


def fill(node, *, but=0):
    (node.captures / "of-others").write_bytes(b"x" * (free_bytes(node.captures) - but))


def test_a_capture_that_cannot_even_begin_on_a_full_disk_leaves_no_folder(node, with_small_disk):
    with_small_disk(node)
    node.launch()
    fill(node)
    store = CaptureStore(node.captures, max_bytes=10**9, min_free_bytes=0)
    node.executor(store=store).handle(request())
    assert "c1: No space left" in node.until_state(CaptureState.FAILED).reason
    assert [path.name for path in node.captures.iterdir()] == ["of-others"]


def test_a_trace_of_kineto_that_does_not_fit_leaves_no_part_of_it(node, with_small_disk, tmp_path):
    with_small_disk(node)
    fill(node, but=1 << 16)
    box = TraceDirectory(root=tmp_path, place=PurePosixPath("/"), name="perfd-kineto-x")
    (tmp_path / box.name).mkdir()
    (tmp_path / box.name / "trace_1.json").write_bytes(b"x" * (1 << 20))
    with pytest.raises(CaptureError, match=r"cannot be kept as .*/rank0\.json: No space left"):
        box.fetch("trace_1.json", node.captures / "rank0.json", max_bytes=1 << 30)
    assert [path.name for path in node.captures.iterdir()] == ["of-others"]


def test_old_captures_leave_a_disk_that_is_full(node, with_small_disk):
    with_small_disk(node)
    store = CaptureStore(node.captures, max_bytes=10**9, min_free_bytes=0)
    store.create(CaptureRecord(request=request(), open=False))
    watch = FolderWatch(node.captures, 3600.0, who="agent", option="capture.retention_days")
    store.remove_old(watch, lambda *_: None, 0)
    fill(node)
    store.remove_old(watch, lambda *_: None, 3600)
    assert not (node.captures / "c1").exists()


def test_a_session_that_never_stops_is_shut_down_and_its_job_goes_on(make_node, monkeypatch):
    monkeypatch.setattr(nsys_cli, "STOP_TIMEOUT_S", 2.0)
    node = make_node(slow_stop_s=3600)
    job = node.launch()
    executor = node.executor()
    executor.handle(request())
    assert "did not end within 2 s" in node.until_state(CaptureState.FAILED).reason
    assert node.session_state() == "Shutdown"
    assert job.poll() is None
    assert left_in(node) == []
    executor.handle(request("c2"))
    assert node.until_state(CaptureState.REFUSED).capture_id == "c2", "the node takes requests as before"
