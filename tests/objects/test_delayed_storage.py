"""What waits while object storage, or the disk for its files, does not do its part."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfd.aggregator.captures import capture_reports, readable_traces
from perfd.aggregator.captures.capture_reports import CaptureReports, ReportStorage
from perfd.capture.policy.capture_record import Capture, CaptureReport, Participant, Removal, StoredFile
from perfd.capture.policy.coordinator import CaptureCoordinator
from perfd.clock import SystemClock
from perfd.errors import StorageError
from perfd.model import CaptureFile, CaptureState, CaptureTool
from perfd.net.object_storage import part_bytes

WITHIN_S = 60
MIB = 1 << 20
KEY = "gpu1/team/llm/1/c1/rank-0/node=n0/rank0.trace.json"
PATH = "/var/lib/perfd/captures/c1/rank0.trace.json"


def captured(*, ended_unix_s: float, job: str = "llm", **who: Any) -> Capture:
    files = tuple(CaptureFile(path=path, size_bytes=9, upload=True) for path in (PATH, f"{PATH}.2"))
    return Capture(
        capture_id=f"c-{job}-{ended_unix_s}",
        job=job,
        tool=CaptureTool.KINETO,
        profile="default",
        requested_unix_s=1.0,
        start_unix_s=1.0,
        max_duration_s=1.0,
        state=CaptureState.DONE,
        ended_unix_s=ended_unix_s,
        participants=(Participant(node="n0", rank=0, state=CaptureState.DONE, **{"files": files, **who}),),
    )


def test_files_wait_from_the_end_of_their_capture_until_they_are_stored_or_removed() -> None:
    coordinator = CaptureCoordinator({})
    there = StoredFile(url=f"s3://traces/{KEY}", unix_s=1.0)
    failed = StoredFile(reason="The bucket is full.", unix_s=1.0)
    coordinator.restore(
        [
            captured(ended_unix_s=100.0, stored={PATH: failed}),
            captured(ended_unix_s=150.0, stored={PATH: there}),
            captured(ended_unix_s=10.0, job="stored", stored={PATH: there, f"{PATH}.2": there}),
            captured(
                ended_unix_s=10.0,
                job="removed",
                stored={PATH: there},
                removed={f"{PATH}.2": Removal(reason="max_bytes", unix_s=11.0)},
            ),
            captured(ended_unix_s=10.0, job="local", files=(CaptureFile(path=PATH, size_bytes=9),)),
        ],
        160.0,
    )
    assert coordinator.waiting_uploads(160.0) == {"llm": (3, 60.0)}


class Away:
    """Storage that fails the given number of times, and has something else than was uploaded then."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.fetched = 0

    def key_of(self, url: str) -> str:
        return url.removeprefix("s3://traces/")

    def url_of(self, key: str) -> str:
        return f"s3://traces/{key}"

    def fetch(self, _key: str, target: Path, _max_bytes: int) -> None:
        self.fetched += 1
        if self.left:
            self.left -= 1
            raise StorageError("No server answers.")
        target.write_bytes(b"other")


def stored_capture(clock: SystemClock, hours_ago: float, key: str = KEY) -> Capture:
    found = StoredFile(url=f"s3://traces/{key}", size_bytes=9, sha256="0", unix_s=1.0)
    file = CaptureFile(path=PATH, size_bytes=9, upload=True)
    ended_unix_s = clock.unix_ns() / 1e9 - hours_ago * 3600.0
    return captured(ended_unix_s=ended_unix_s, files=(file,), stored={PATH: found})


@pytest.mark.parametrize("free_bytes", [None, 8])
def test_a_report_is_made_hours_after_its_capture_once_storage_answers_and_there_is_room(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int | None
) -> None:
    monkeypatch.setattr(capture_reports, "_RETRY_EVERY_S", 0.01)
    monkeypatch.setattr(capture_reports, "_LONGEST_RETRY_S", 0.01)
    asked: list[int] = []

    def usage(_: Path) -> SimpleNamespace:
        asked.append(1)
        return SimpleNamespace(free=free_bytes if free_bytes is not None and len(asked) < 3 else 1 << 40)

    monkeypatch.setattr(readable_traces.shutil, "disk_usage", usage)
    made: list[CaptureReport] = []
    done = threading.Event()

    def take(_: str, report: CaptureReport) -> None:
        made.append(report)
        done.set()

    storage: Any = Away(0 if free_bytes else 3)
    reports = CaptureReports(take, SystemClock(), storage=ReportStorage(files=storage, max_bytes=99))
    reports.submit(stored_capture(SystemClock(), hours_ago=30.0))
    assert done.wait(WITHIN_S)
    reports.stop()
    assert len(asked) >= 3
    assert storage.fetched == (1 if free_bytes else 4)
    assert "has changed since its node uploaded it" in made[0].words


def test_a_new_capture_does_not_wait_for_those_that_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_reports, "_RETRY_EVERY_S", 0.0)

    class HalfAway(Away):
        def fetch(self, key: str, target: Path, max_bytes: int) -> None:
            self.left = int(key == KEY)
            super().fetch(key, target, max_bytes)

    done = threading.Event()
    storage: Any = HalfAway(1)
    reports = CaptureReports(
        lambda *_: done.set(), SystemClock(), storage=ReportStorage(files=storage, max_bytes=99)
    )
    reports.submit(stored_capture(SystemClock(), hours_ago=1.0))
    reports.submit(stored_capture(SystemClock(), hours_ago=2.0, key=KEY.replace("c1", "c2")))
    assert done.wait(WITHIN_S)
    reports.stop()


def test_retries_end_a_week_after_the_capture() -> None:
    storage: Any = Away(99)
    reports = CaptureReports(
        lambda *_: None, SystemClock(), storage=ReportStorage(files=storage, max_bytes=99)
    )
    for capture, retries in (
        (stored_capture(SystemClock(), 24 * 7 - 1), 1),
        (stored_capture(SystemClock(), 24 * 7 + 1), 1),
    ):
        reports._from_storage(capture, reports._storage, 60.0)
        assert len(reports._retries) == retries


@pytest.mark.parametrize(
    ("size_bytes", "part"),
    [
        (0, 8 * MIB),
        (10_000 * 8 * MIB, 8 * MIB),
        (10_000 * 8 * MIB + 1, 8 * MIB + 1),
        (5 << 40, 549_755_814),
    ],
)
def test_a_file_of_any_size_has_at_most_10000_parts(size_bytes: int, part: int) -> None:
    assert part_bytes(size_bytes) == part
    assert -(-size_bytes // part) <= 10_000
