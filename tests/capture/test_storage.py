"""Where captures lie, what may be in there, and what is remembered."""

import stat

import pytest
from capture.conftest import request

from perfd.capture.node.capture_storage import CaptureRecord, CaptureStore
from perfd.errors import CaptureError


@pytest.fixture
def store(tmp_path):
    return CaptureStore(tmp_path / "captures", max_bytes=1000, min_free_bytes=1)


def test_everything_in_a_capture_becomes_private_and_only_its_own_files_are_named(store, tmp_path):
    folder = store.create(CaptureRecord(request=request()))
    (tmp_path / "outside").write_text("x")
    (folder / "report").write_text("12345")
    (folder / "report").chmod(0o666)
    (folder / "link").symlink_to(tmp_path / "outside")
    sealed = store.seal("c1", [folder / "report", folder / "link", tmp_path / "outside", folder / "nosuch"])
    assert [(file.path, file.size_bytes) for file in sealed] == [(str(folder / "report"), 5)]
    assert stat.S_IMODE((folder / "report").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) != 0o600


def test_a_capture_is_discarded_whole_but_its_record_stays(store):
    folder = store.create(CaptureRecord(request=request()))
    (folder / "report").write_text("x")
    (folder / "sub").mkdir()
    (folder / "sub" / "x").write_text("x")
    store.discard("c1")
    assert [file.name for file in folder.iterdir()] == ["capture.json"]


def test_an_id_is_used_once(store):
    store.create(CaptureRecord(request=request()))
    with pytest.raises(CaptureError, match="used once"):
        store.create(CaptureRecord(request=request()))


def test_an_unfinished_capture_is_found_again_and_a_strangers_folder_is_not(store, tmp_path):
    assert store.unfinished() == []
    store.create(CaptureRecord(request=request("open"), handles=("s",)))
    store.create(CaptureRecord(request=request("closed"), open=False))
    (tmp_path / "captures" / "stranger").mkdir()
    (tmp_path / "captures" / "broken").mkdir()
    (tmp_path / "captures" / "broken" / "capture.json").write_text('{"request": 7}')
    (tmp_path / "captures" / "link").symlink_to(tmp_path / "captures" / "open")
    (tmp_path / "captures" / "not an id").mkdir()
    (record,) = store.unfinished()
    assert (record.request.capture_id, list(record.handles)) == ("open", ["s"])


def test_a_directory_that_cannot_be_made_is_one_clear_sentence(tmp_path):
    (tmp_path / "file").touch()
    store = CaptureStore(tmp_path / "file" / "captures", max_bytes=1, min_free_bytes=0)
    with pytest.raises(CaptureError, match="Cannot create"):
        store.create(CaptureRecord(request=request()))


def test_a_capture_may_grow_to_what_it_asked_for_but_not_beyond_the_quota(store, tmp_path):
    assert store.room_bytes(request()) == 1000
    assert store.room_bytes(request(max_bytes=10)) == 10
    assert store.room_bytes(request(max_bytes=10**9)) == 1000
    folder = store.create(CaptureRecord(request=request()))
    (folder / "report").write_bytes(b"x" * 900)
    assert store.room_bytes(request()) < 100
