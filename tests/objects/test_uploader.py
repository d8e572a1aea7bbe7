"""Captured files reach object storage in the end, and stay on their node until then."""

import hashlib
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from perfd.capture.redact import redacted_copy
from perfd.capture.upload import Uploader, UploadQueue
from perfd.clock import SystemClock
from perfd.errors import SpoolError, StorageError
from perfd.model import CaptureFile, CaptureRequest, CaptureTool

WITHIN_S = 60
SECRET = "hunter2-4e1243bd22c66e76c2ba9eddc1f91394"
STACKS = [
    {
        "pid": 7,
        "thread_id": 8,
        "thread_name": "MainThread",
        "process_info": {"pid": 7, "command_line": f"python train.py --token {SECRET}", "parent": None},
        "frames": [{"name": "step", "filename": "train.py", "line": 3}],
    }
]
REQUEST = CaptureRequest(
    capture_id="c1", job="llm", tool=CaptureTool.NSYS, max_duration_s=1.0, object_folder="gpu1/team/llm/1"
)
KEY = "gpu1/team/llm/1/c1/rank-3/node=n1/rank3.stacks.json"


class Storage:
    """Object storage that fails with the given errors first."""

    def __init__(self, *errors):
        """None among the errors is no failure."""
        self.files = {}
        self.errors = list(errors)
        self.tried = threading.Semaphore(0)
        self.blocked = False

    def put(self, key, file, given_up):
        self.tried.release()
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        while self.blocked:
            if given_up():
                raise StorageError("interrupted.")
            threading.Event().wait(0.01)
        self.files[key] = file.read_bytes()

    def url_of(self, key):
        return f"s3://traces/{key}"


class Reports:
    """What the aggregator gets."""

    def __init__(self, error=None):
        self.all = []
        self.error = error
        self.more = threading.Condition()

    def __call__(self, upload):
        with self.more:
            if self.error is not None:
                error, self.error = self.error, None
                self.more.notify_all()
                raise error
            self.all.append(upload)
            self.more.notify_all()

    def wait(self, number):
        with self.more:
            assert self.more.wait_for(lambda: len(self.all) >= number, WITHIN_S), self.all
            return self.all[:number]


@pytest.fixture
def captures(tmp_path):
    folder = tmp_path / "captures" / "c1"
    folder.mkdir(parents=True)
    (folder / "rank3.stacks.json").write_text(json.dumps(STACKS))
    (folder / "session.nsys-rep").write_text(SECRET)
    return tmp_path / "captures"


@pytest.fixture
def uploader(captures):
    made = []

    def make(storage, reports, **options):
        queue = UploadQueue(captures, "n1")
        made.append(
            Uploader(storage, queue, clock=SystemClock(), report=reports, first_wait_s=0.01, **options)
        )
        return made[-1]

    yield make
    for one in made:
        one.stop()


def files_of(captures):
    return [
        CaptureFile(path=str(path), size_bytes=path.stat().st_size)
        for path in sorted((captures / "c1").iterdir())
        if ".uploads." not in path.name
    ]


def share(uploader, captures, ranks=(3,)):
    return uploader.share(REQUEST, ranks, files_of(captures), lambda: False)


def names(captures):
    return sorted(path.name for path in (captures / "c1").iterdir() if ".uploads." not in path.name)


def test_a_redacted_copy_is_stored_and_reported_with_its_checksum(captures, uploader):
    storage, reports = Storage(), Reports()
    one = uploader(storage, reports)
    one.start()
    files, problem = share(one, captures)
    assert problem == ""
    assert {Path(file.path).name: file.upload for file in files} == {
        "rank3.stacks.json": True,
        "session.nsys-rep": False,
    }
    (stored,) = reports.wait(1)
    assert list(storage.files) == [KEY]
    assert SECRET.encode() not in storage.files[KEY]
    assert (stored.url, stored.reason) == (f"s3://traces/{KEY}", "")
    assert stored.path == str(captures / "c1" / "rank3.stacks.json")
    assert stored.sha256 == hashlib.sha256(storage.files[KEY]).hexdigest()
    assert stored.size_bytes == len(storage.files[KEY])
    assert names(captures) == ["rank3.stacks.json", "session.nsys-rep"]


def test_files_that_cannot_be_redacted_are_stored_only_if_that_is_configured(captures, uploader):
    storage, reports = Storage(), Reports()
    one = uploader(storage, reports, unredacted=True)
    one.start()
    files, _ = share(one, captures)
    assert all(file.upload for file in files)
    reports.wait(2)
    assert sorted(Path(key).name for key in storage.files) == ["rank3.stacks.json", "session.nsys-rep"]
    assert SECRET.encode() not in storage.files[KEY], "what can be redacted is"


def test_a_failure_is_reported_once_and_retried_until_the_file_is_stored(captures, uploader):
    storage, reports = Storage(*(StorageError("The bucket is full.") for _ in range(5))), Reports()
    one = uploader(storage, reports)
    one.start()
    share(one, captures)
    failed, stored = reports.wait(2)
    assert failed.url == ""
    assert (
        failed.reason == "The bucket is full. The file stays on its node, and the agent retries the upload."
    )
    assert stored.url == f"s3://traces/{KEY}"
    assert storage.errors == []
    assert len(reports.all) == 2


def test_a_file_is_redacted_once_however_often_its_upload_is_tried(captures, uploader, monkeypatch):
    copied = []

    def counted(source, target):
        copied.append(source.name)
        redacted_copy(source, target)

    monkeypatch.setattr("perfd.capture.upload.uploader.redacted_copy", counted)
    storage, reports = Storage(*(StorageError("The bucket is full.") for _ in range(5))), Reports()
    one = uploader(storage, reports)
    one.start()
    share(one, captures)
    *_, stored = reports.wait(2)
    assert storage.errors == []
    assert copied == ["rank3.stacks.json"]
    assert stored.sha256 == hashlib.sha256(storage.files[KEY]).hexdigest()
    one.stop()
    assert names(captures) == ["rank3.stacks.json", "session.nsys-rep"], "the copy is gone"


def test_a_file_that_changed_since_its_copy_was_made_is_redacted_again(captures, uploader):
    class Changing(Storage):
        def put(self, key, file, given_up):
            if self.errors:
                (captures / "c1" / "rank3.stacks.json").write_text(json.dumps([{**STACKS[0], "pid": 88}]))
            super().put(key, file, given_up)

    storage, reports = Changing(StorageError("The bucket is full.")), Reports()
    one = uploader(storage, reports)
    one.start()
    share(one, captures)
    *_, stored = reports.wait(2)
    assert json.loads(storage.files[KEY])[0]["pid"] == 88
    assert stored.sha256 == hashlib.sha256(storage.files[KEY]).hexdigest()


def test_the_copy_of_a_file_that_was_removed_is_removed_too(captures, uploader):
    class Removing(Storage):
        def put(self, key, file, given_up):
            (captures / "c1" / "rank3.stacks.json").unlink()
            super().put(key, file, given_up)

    storage, reports = Removing(StorageError("The bucket is full.")), Reports()
    one = uploader(storage, reports)
    one.start()
    share(one, captures)
    _, removed = reports.wait(2)
    assert "was removed before it was uploaded" in removed.reason
    one.stop()
    assert names(captures) == ["session.nsys-rep"]


def test_a_list_of_uploads_is_on_disk_before_it_takes_its_name_and_then_the_name(
    captures, uploader, monkeypatch
):
    synced = []

    def fsync(descriptor):
        found = os.fstat(descriptor)
        named = list((captures / "c1").glob("*.uploads.json"))
        synced.append((stat.S_ISDIR(found.st_mode), found.st_ino, len(named)))

    monkeypatch.setattr(os, "fsync", fsync)
    share(uploader(Storage(), Reports()), captures)
    (path,) = (captures / "c1").glob("*.uploads.json")
    assert synced == [(False, path.stat().st_ino, 0), (True, path.parent.stat().st_ino, 1)]


@pytest.mark.parametrize("error", [StorageError("The bucket is full."), MemoryError()])
def test_a_file_that_fails_is_tried_again_though_the_next_one_is_stored(captures, uploader, error):
    storage, reports = Storage(error, None), Reports()
    one = uploader(storage, reports)
    share(one, captures, (3,))
    share(one, captures, (4,))
    one.start()
    found = reports.wait(3)
    assert [bool(one.url) for one in found] == [False, True, True]
    assert sorted(storage.files) == [KEY, KEY.replace("rank-3", "rank-4")]


def test_another_reason_is_reported_too(captures, uploader):
    storage = Storage(StorageError("The bucket is full."), StorageError("The key is wrong."))
    reports = Reports()
    one = uploader(storage, reports)
    one.start()
    share(one, captures)
    found = reports.wait(3)
    assert [one.reason.partition(".")[0] for one in found] == ["The bucket is full", "The key is wrong", ""]


def test_the_next_agent_uploads_what_this_one_did_not(captures, uploader):
    hanging, reports = Storage(), Reports()
    hanging.blocked = True
    first = uploader(hanging, reports)
    first.start()
    share(first, captures)
    assert hanging.tried.acquire(timeout=WITHIN_S)
    assert first.needs("c1")
    first.stop()
    assert (hanging.files, reports.all) == ({}, [])
    assert names(captures) == ["rank3.stacks.json", "session.nsys-rep"], "the copy is gone"
    # As after a kill: the copy of the upload that ran is still there.
    (captures / "c1" / ".rank3.stacks.json.upload").write_text("half")
    storage = Storage()
    second = uploader(storage, reports)
    second.start()
    reports.wait(1)
    assert SECRET.encode() not in storage.files[KEY]
    assert json.loads(storage.files[KEY])[0]["thread_id"] == 8


def test_what_cannot_be_reported_is_uploaded_again(captures, uploader):
    storage, reports = Storage(), Reports(SpoolError("The spool is full."))
    one = uploader(storage, reports)
    one.start()
    share(one, captures)
    found = reports.wait(2)
    assert found[-1].url == f"s3://traces/{KEY}"
    assert storage.tried.acquire(timeout=WITHIN_S)
    assert storage.tried.acquire(timeout=WITHIN_S), "it was stored twice, under one key"


def test_a_file_that_cannot_be_redacted_is_named_and_does_not_block_the_others(captures, uploader):
    (captures / "c1" / "rank2.stacks.json").write_text("no JSON")
    storage, reports = Storage(), Reports()
    one = uploader(storage, reports)
    one.start()
    share(one, captures)
    refused, stored = reports.wait(2)
    assert Path(refused.path).name == "rank2.stacks.json"
    assert refused.reason.endswith("It stays on its node.")
    assert stored.url == f"s3://traces/{KEY}"


def test_a_damaged_list_does_not_stop_uploads(captures, uploader):
    (captures / "c1" / "0.uploads.json").write_bytes(b'[{"capture_id": "c1", "name"')
    (captures / "c1" / "1.uploads.json").write_text('[{"capture_id": "c1", "name": "../../x", "key": "k"}]')
    storage, reports = Storage(), Reports()
    one = uploader(storage, reports)
    assert not one.needs("c1")
    one.start()
    share(one, captures)
    reports.wait(1)
    assert list(storage.files) == [KEY]


def test_several_outcomes_of_one_capture_are_queued(captures, uploader):
    storage, reports = Storage(), Reports()
    one = uploader(storage, reports)
    share(one, captures, (3,))
    share(one, captures, (4,))
    one.start()
    reports.wait(2)
    assert sorted(storage.files) == [KEY, KEY.replace("rank-3", "rank-4")]


def test_a_folder_that_leads_elsewhere_is_named_in_the_outcome(captures, uploader):
    one = uploader(Storage(), Reports())
    request = CaptureRequest(
        capture_id="c1", job="llm", tool=CaptureTool.NSYS, max_duration_s=1.0, object_folder="../../x"
    )
    files, problem = one.share(request, (3,), files_of(captures), lambda: False)
    assert not any(file.upload for file in files)
    assert problem.startswith("Not uploaded: '../../x' is not CLUSTER/NAMESPACE/JOB/ATTEMPT")
