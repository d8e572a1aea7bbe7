from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.errors import PerfdError, RecordingError
from perfd.recording import bundled, bundled_names, find_recording, open_recording
from perfd.recording.recording_format import StreamEntry
from perfd.recording.records_stream import plain_file


def write_manifest(directory: Path, **changes: object) -> Path:
    manifest: dict[str, object] = {"format": 1, "streams": [stream()]}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "recording.json").write_text(json.dumps(manifest | changes))
    return directory


def stream(path: str = "node0/stdout.log", kind: str = "training-log") -> dict[str, str]:
    return {"node": "node0", "kind": kind, "path": path}


def write_stream(directory: Path, path: str, content: bytes) -> None:
    (directory / path).parent.mkdir(parents=True, exist_ok=True)
    (directory / path).write_bytes(content)


def test_every_bundled_recording_opens_without_a_warning():
    assert bundled_names() == ("dp2_nccl", "dp4", "dp4_slow2", "pp2dp2", "pp4_few")
    for name in bundled_names():
        recording = open_recording(bundled(name))
        assert recording.name == name
        assert recording.warnings == ()
        assert [len(node.ranks) for node in recording.manifest.nodes] == [recording.manifest.world_size]


def test_the_bundled_recordings_stay_small():
    total = sum(path.stat().st_size for path in bundled("dp4").parent.rglob("*") if path.is_file())
    assert total < 1_200_000


def test_only_the_format_and_the_streams_must_be_there(tmp_path):
    write_stream(tmp_path, "node0/stdout.log", b"hello\n")
    recording = open_recording(write_manifest(tmp_path))
    assert recording.name == tmp_path.name
    assert recording.manifest.world_size is None


def test_keys_of_a_later_writer_are_ignored(tmp_path):
    write_stream(tmp_path, "node0/stdout.log", b"")
    later = {"colour": "blue", "streams": [stream() | {"codec": "none"}], "nodes": [{"name": "a", "rack": 7}]}
    assert open_recording(write_manifest(tmp_path, **later)).manifest.nodes[0].name == "a"


def test_a_listed_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(RecordingError, match=r"node0/stdout\.log, which is not there.*--allow-missing"):
        open_recording(write_manifest(tmp_path))


def test_the_rest_of_a_recording_is_there_when_missing_files_are_allowed(tmp_path):
    write_stream(tmp_path, "node0/stdout.log", b"")
    write_manifest(tmp_path, streams=[stream(), stream("node0/nvml.jsonl", "nvml")])
    recording = open_recording(tmp_path, allow_missing=True)
    assert [s.path for s in recording.manifest.streams] == ["node0/stdout.log"]
    assert recording.warnings == ("node0/nvml.jsonl is missing and was skipped.",)


def test_a_recording_without_any_stream_is_an_error_even_then(tmp_path):
    with pytest.raises(RecordingError, match="nothing to play"):
        open_recording(write_manifest(tmp_path), allow_missing=True)
    with pytest.raises(RecordingError, match="nothing to play"):
        open_recording(write_manifest(tmp_path, streams=[]))


@pytest.mark.parametrize("number", [0, 2, 999])
def test_a_wrong_format_number_is_refused(tmp_path, number):
    with pytest.raises(RecordingError, match=f"format {number}, and this perfd reads format 1"):
        open_recording(write_manifest(tmp_path, format=number))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"format": "one"}', b'{"format": 1}']
)
def test_a_manifest_that_is_none_is_refused_with_its_path(tmp_path, content):
    (tmp_path / "recording.json").write_bytes(content)
    with pytest.raises(RecordingError, match=r"recording\.json does not describe a recording"):
        open_recording(tmp_path)


@given(
    content=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["format", "streams", "nodes", "name", "path", "kind", "node"]), inner
            )
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_a_manifest_holds_the_error_is_one_of_ours(tmp_path_factory, content):
    directory = tmp_path_factory.mktemp("recording")
    (directory / "recording.json").write_bytes(content)
    with pytest.raises(RecordingError):
        open_recording(directory, allow_missing=True)


def test_a_folder_without_a_manifest_is_no_recording(tmp_path):
    with pytest.raises(RecordingError, match=r"is not a recording: there is no recording\.json in it"):
        open_recording(tmp_path)


def test_a_recording_below_the_folder_that_was_named_is_reported(tmp_path):
    inside = tmp_path / "run" / "recording"
    inside.mkdir(parents=True)
    (inside / "recording.json").write_text("{}", encoding="utf-8")

    with pytest.raises(RecordingError, match=re.escape(f"write it; below it is {inside}.")):
        open_recording(tmp_path / "run")


@pytest.mark.parametrize("path", ["../secret", "node0/../../secret", "/etc/hostname", "", ".", "a\0b"])
def test_a_stream_outside_of_the_recording_is_refused(tmp_path, path):
    write_stream(tmp_path, "secret", b"")
    with pytest.raises(RecordingError, match="not a path inside"):
        open_recording(write_manifest(tmp_path / "rec", streams=[stream(path)]), allow_missing=True)


def test_a_link_to_itself_is_a_missing_stream(tmp_path):
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "log").symlink_to("log")
    with pytest.raises(RecordingError, match="lists log, which is not there"):
        open_recording(write_manifest(tmp_path / "rec", streams=[stream("log")]))


def test_a_link_that_leaves_the_recording_is_refused(tmp_path):
    write_stream(tmp_path, "secret", b"")
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "log").symlink_to(tmp_path / "secret")
    with pytest.raises(RecordingError, match="not a path inside"):
        open_recording(write_manifest(tmp_path / "rec", streams=[stream("log")]))


def test_a_recording_is_found_by_path_by_manifest_or_by_bundled_name(tmp_path, monkeypatch):
    write_manifest(tmp_path)
    assert find_recording(str(tmp_path)) == tmp_path
    assert find_recording(str(tmp_path / "recording.json")) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert find_recording("dp4") == bundled("dp4")
    with pytest.raises(RecordingError, match="neither a recording's folder nor the name of a bundled one"):
        find_recording("dp5")


def test_a_path_wins_over_a_bundled_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_manifest(tmp_path / "dp4")
    assert find_recording("dp4") == Path("dp4")


def test_an_unknown_bundled_name_is_answered_with_the_known_ones():
    with pytest.raises(PerfdError, match="dp4, dp4_slow2, pp2dp2, pp4_few"):
        bundled("../dp4")


def packed_recording(directory: Path, content: bytes) -> tuple[Path, StreamEntry]:
    write_stream(directory, "node0/stdout.log.gz", content)
    return write_manifest(directory, streams=[stream("node0/stdout.log.gz")]), StreamEntry(
        node="node0", kind="training-log", path="node0/stdout.log.gz"
    )


def test_a_compressed_stream_is_unpacked_with_its_times_beside_it(tmp_path):
    directory, packed = packed_recording(tmp_path / "rec", gzip.compress(b"one\ntwo\n"))
    write_stream(directory, "node0/stdout.log.times", b"1.5 4\n")
    path, warning = plain_file(open_recording(directory), packed, tmp_path / "scratch")
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.with_name(path.name + ".times").read_bytes() == b"1.5 4\n"
    assert warning is None


def test_a_plain_stream_is_its_own_file(tmp_path):
    write_stream(tmp_path, "node0/stdout.log", b"x")
    recording = open_recording(write_manifest(tmp_path))
    path, warning = plain_file(recording, recording.manifest.streams[0], tmp_path / "scratch")
    assert path == tmp_path / "node0/stdout.log"
    assert warning is None
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("cut", [1, 8, 200, 1500])
def test_a_cut_archive_is_unpacked_up_to_the_cut_with_a_warning(tmp_path, cut):
    content = b"".join(b"line %d %d\n" % (i, i * 7919 % 10007) for i in range(2000))
    directory, packed = packed_recording(tmp_path / "rec", gzip.compress(content)[:-cut])
    path, warning = plain_file(open_recording(directory), packed, tmp_path / "scratch")
    assert content.startswith(path.read_bytes())
    assert warning is not None
    assert warning.startswith("stdout.log.gz is damaged")


def test_a_damaged_archive_never_yields_more_than_what_precedes_the_damage(tmp_path):
    packed_bytes = bytearray(gzip.compress(bytes(range(256)) * 4000, compresslevel=0))
    packed_bytes[600_000] ^= 0xFF
    directory, packed = packed_recording(tmp_path / "rec", bytes(packed_bytes))
    _, warning = plain_file(open_recording(directory), packed, tmp_path / "scratch")
    assert warning is not None


def test_a_file_that_only_claims_to_be_compressed_is_an_error(tmp_path):
    directory, packed = packed_recording(tmp_path / "rec", b"plain text\n")
    with pytest.raises(RecordingError, match=r"is not gzip-compressed, although its name ends in \.gz"):
        plain_file(open_recording(directory), packed, tmp_path / "scratch")


def test_an_empty_archive_is_damaged_not_fatal(tmp_path):
    directory, packed = packed_recording(tmp_path / "rec", b"")
    path, _ = plain_file(open_recording(directory), packed, tmp_path / "scratch")
    assert path.read_bytes() == b""
