"""What leaves a node: copies in which no secret of the job is, wherever it stood."""

import json
import os
import threading
from pathlib import Path

import pytest
from capture.conftest import request
from capture.test_end_to_end import make_system  # noqa: F401  (a fixture)

from perfd.capture.node.artifact_sharing import FolderSharing
from perfd.capture.node.shared_folder import SharedFolder
from perfd.capture.redact.redact_json import redact_trace
from perfd.capture.redact.redaction import redacted_copy
from perfd.errors import CaptureError
from perfd.model import CaptureFile, CaptureState

SECRET = "hunter2-4e1243bd22c66e76c2ba9eddc1f91394"
TRACE = {
    "schemaVersion": 1,
    "trace_id": "c1",
    "distributedInfo": {"rank": 3, "world_size": 8},
    "baseTimeNanoseconds": 7,
    "arguments_of_the_program": ["--token", SECRET],
    "traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "args": {"device": 0}}],
    "traceName": f"/home/{SECRET}/trace.json",
}
STACKS = [
    {
        "pid": 7,
        "thread_id": 8,
        "thread_name": "MainThread",
        "process_info": {"pid": 7, "command_line": f"python train.py --token {SECRET}", "parent": None},
        "frames": [
            {"name": "step", "filename": "train.py", "line": 3, "locals": [{"name": "token", "repr": SECRET}]}
        ],
    }
]


def artefacts(folder):
    """One file of each kind that captures leave, each with the secret in it."""
    folder.mkdir()
    (folder / "rank3.pt.trace.json").write_text(json.dumps(TRACE))
    (folder / "rank3.stacks.json").write_text(json.dumps(STACKS))
    (folder / "session.nsys-rep").write_text(SECRET)
    (folder / "session.qdstrm").write_text(SECRET)
    (folder / "rank3.flight_recorder.pickle").write_text(SECRET)
    return [CaptureFile(path=str(path), size_bytes=path.stat().st_size) for path in sorted(folder.iterdir())]


def sharing(directory, *, timeout_s=45, **settings):
    return FolderSharing(SharedFolder(directory=directory, node="n1", **settings), timeout_s=timeout_s)


def never():
    return False


def names(files):
    return [Path(file.path).name for file in files]


def test_what_cannot_be_redacted_stays_on_the_node(tmp_path):
    files = artefacts(tmp_path / "captures")
    shared, problem = sharing(tmp_path / "share").copy("c1", files, never)
    assert (names(shared), problem) == (["n1-rank3.pt.trace.json", "n1-rank3.stacks.json"], "")
    for path in (tmp_path / "share").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
        assert path.stat().st_mode & 0o077 == 0


def test_an_operator_may_have_it_all(tmp_path):
    files = artefacts(tmp_path / "captures")
    shared, _ = sharing(tmp_path / "share", unredacted=True).copy("c1", files, never)
    assert len(shared) == len(files)
    assert (tmp_path / "share/c1/n1-session.nsys-rep").read_text() == SECRET
    assert SECRET not in (tmp_path / "share/c1/n1-rank3.stacks.json").read_text(), "what can be redacted is"


def test_a_redacted_trace_keeps_what_an_analysis_reads(tmp_path):
    artefacts(tmp_path / "captures")
    redacted_copy(tmp_path / "captures" / "rank3.pt.trace.json", tmp_path / "copy")
    copy = json.loads((tmp_path / "copy").read_text())
    assert copy["traceEvents"] == TRACE["traceEvents"]
    assert copy["distributedInfo"] == TRACE["distributedInfo"]
    assert copy.keys() == TRACE.keys() - {"arguments_of_the_program", "traceName"}


def test_redacted_stacks_keep_who_is_where(tmp_path):
    artefacts(tmp_path / "captures")
    redacted_copy(tmp_path / "captures" / "rank3.stacks.json", tmp_path / "copy")
    (thread,) = json.loads((tmp_path / "copy").read_text())
    assert thread["frames"] == [{"name": "step", "filename": "train.py", "line": 3}]


@pytest.mark.parametrize("name", ["x.trace.json", "x.stacks.json", "x.sqlite", "x.nsys-rep"])
@pytest.mark.parametrize("content", [b"", b"[1", b"{}", b'{"other": 1}', b'{"traceEvents": [', b"\xff\xfe"])
def test_a_damaged_file_leaves_nothing_there_and_says_why(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CaptureError, match=name):
        redacted_copy(tmp_path / name, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_disk_that_is_full_is_said_and_not_hidden_by_what_is_still_open(tmp_path):
    artefacts(tmp_path / "captures")
    with pytest.raises(OSError, match="No space left"):
        redact_trace(tmp_path / "captures" / "rank3.pt.trace.json", Path("/dev/full"))


def test_a_folder_that_cannot_be_written_costs_the_copies_and_not_the_capture(node, tmp_path):
    (tmp_path / "file").touch()
    node.launch()
    node.executor(sharing=sharing(tmp_path / "file" / "share")).handle(request())
    done = node.until_state(CaptureState.DONE)
    assert [Path(file.path).suffix for file in done.files] == [".nsys-rep", ".sqlite"]
    assert "Not shared" in done.reason
    assert "Not a directory" in done.reason


def test_no_secret_of_a_job_leaves_the_node_in_any_way(node, make_system, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TOKEN", SECRET)
    share = node.directory / "share"
    system = make_system(ranks="all")
    aggregator = system.aggregator()
    agent = system.agent(share_directory=str(share))
    capture = system.until(aggregator, lambda capture: capture["state"] != "open")
    agent.stop()
    aggregator.stop()
    report = next(node.captures.rglob("*.nsys-rep"))
    assert SECRET.encode() in report.read_bytes(), "the job's environment is in the report"
    (copy,) = share.glob("*/*.sqlite")
    assert str(copy) in [file["path"] for who in capture["ranks"] for file in who["files"]]
    left = [
        *share.rglob("*"),
        *(system.directory).glob("history.sqlite*"),
        *(system.directory / "spool").rglob("*"),
    ]
    for path in left:
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in json.dumps(capture)


@pytest.fixture
def stacks(tmp_path):
    path = tmp_path / "rank3.stacks.json"
    path.write_text(json.dumps(STACKS))
    return [CaptureFile(path=str(path), size_bytes=path.stat().st_size)]


def captures_in(share):
    return sorted(path.name for path in share.iterdir())


def test_the_oldest_captures_leave_for_new_ones_and_what_is_not_perfds_stays(tmp_path):
    (tmp_path / "rank3.flight_recorder.pickle").write_bytes(b"x" * 1000)
    files = [CaptureFile(path=str(tmp_path / "rank3.flight_recorder.pickle"), size_bytes=1000)]
    share = tmp_path / "share"
    (share / "aaa").mkdir(parents=True)
    (share / "aaa" / "thesis.tex").write_text("x" * 10_000)
    shared = sharing(share, max_bytes=2999, unredacted=True)
    for number in range(1, 6):
        copies, problem = shared.copy(f"c{number}", files, never)
        assert (names(copies), problem) == (["n1-rank3.flight_recorder.pickle"], "")
        # As old as it would be if an hour were between them.
        os.utime(share / f"c{number}" / ".perfd-capture", (3600 * number, 3600 * number))
    assert captures_in(share) == ["aaa", "c4", "c5"]
    assert (share / "aaa" / "thesis.tex").stat().st_size == 10_000


def test_a_capture_does_not_make_room_for_itself_in_itself(tmp_path):
    files = []
    for rank in (0, 1):
        path = tmp_path / f"rank{rank}.flight_recorder.pickle"
        path.write_bytes(b"x" * 1000)
        files.append(CaptureFile(path=str(path), size_bytes=1000))
    shared = sharing(tmp_path / "share", max_bytes=2000, unredacted=True)
    shared.copy("c1", files[:1], never)
    shared.copy("c2", files[:1], never)
    # A node whose ranks end later than those of a capture that began after it.
    os.utime(tmp_path / "share" / "c1" / ".perfd-capture", (0, 0))
    assert shared.copy("c1", files, never)[1] == ""
    assert captures_in(tmp_path / "share") == ["c1"]
    assert len(list((tmp_path / "share" / "c1").glob("n1-*"))) == 2


def test_what_is_put_beside_a_capture_leaves_with_it_but_folders_of_others_do_not(tmp_path, stacks):
    share = tmp_path / "share"
    shared = sharing(share, max_bytes=stacks[0].size_bytes)
    shared.copy("c1", stacks, never)
    (share / "c1" / "perfd.report.html").touch()
    (share / "c1" / "mine").mkdir()
    (share / "c1" / "mine" / "notes").touch()
    assert shared.copy("c2", stacks, never)[1] == ""
    assert [path.name for path in (share / "c1").iterdir()] == ["mine"]


def test_a_file_beyond_the_quota_removes_nothing_and_says_so(tmp_path, stacks):
    share = tmp_path / "share"
    shared = sharing(share, max_bytes=stacks[0].size_bytes)
    shared.copy("c1", stacks, never)
    large = tmp_path / "rank4.stacks.json"
    large.write_text(json.dumps(STACKS * 2))
    copies, problem = shared.copy("c2", [CaptureFile(path=str(large), size_bytes=1)], never)
    assert not copies
    assert "too much for capture.share_max_bytes" in problem
    assert names(shared.copy("c1", stacks, never)[0]) == ["n1-rank3.stacks.json"]


def test_the_floor_of_free_space_holds_where_it_is_shared_too(tmp_path, stacks):
    copies, problem = sharing(tmp_path, free=lambda _: 10**6, min_free_bytes=10**6).copy("c1", stacks, never)
    assert not copies
    assert f"{tmp_path} has 1.0 MB free, of which 1.0 MB must stay free" in problem


@pytest.fixture
def mount():
    """A file system that can hang: what asks it how much is free gets its answer when it is `awake`."""

    class Mount:
        def __init__(self):
            self.awake = threading.Event()
            self.asked = threading.Event()

        def free(self, _):
            self.asked.set()
            self.awake.wait()
            return 10**12

    mount = Mount()
    yield mount
    mount.awake.set()


def until_idle():
    for thread in threading.enumerate():
        if thread.name == "perfd-share":
            thread.join()


def test_a_hung_file_system_costs_the_copies_once_and_what_comes_too_late_is_removed(tmp_path, stacks, mount):
    shared = sharing(tmp_path / "share", timeout_s=0.2, free=mount.free)
    copies, problem = shared.copy("c1", stacks, never)
    assert not copies
    assert "took longer than capture.share_timeout_s, 0.2 s" in problem
    copies, problem = shared.copy("c2", stacks, never)
    assert not copies
    assert "still hangs since capture c1" in problem
    mount.awake.set()
    until_idle()
    assert not list((tmp_path / "share" / "c1").glob("*n1*")), "nobody was told of it"
    assert names(sharing(tmp_path / "share").copy("c3", stacks, never)[0]) == ["n1-rank3.stacks.json"]


def test_a_capture_is_done_although_its_copies_hang(node, tmp_path, mount):
    node.launch()
    node.executor(sharing=sharing(tmp_path / "share", timeout_s=0.2, free=mount.free)).handle(request())
    done = node.until_state(CaptureState.DONE)
    assert [Path(file.path).suffix for file in done.files] == [".nsys-rep", ".sqlite"]
    assert "capture.share_timeout_s" in done.reason


def test_an_agent_stops_although_copies_hang_and_keeps_the_capture(node, tmp_path, mount):
    node.launch()
    executor = node.executor(sharing=sharing(tmp_path / "share", timeout_s=3600, free=mount.free))
    executor.handle(request())
    node.until(mount.asked.is_set)
    executor.stop(timeout_s=3600)
    done = node.until_state(CaptureState.DONE)
    assert "Not all is shared: it was interrupted." in done.reason
    assert all(Path(file.path).is_file() for file in done.files)
