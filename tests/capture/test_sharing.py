"""What leaves a node: copies in which no secret of the job is, wherever it stood."""

import json
from pathlib import Path

import pytest
from capture.conftest import request
from capture.test_end_to_end import make_system  # noqa: F401  (a fixture)

from perfd.capture.redact_json import redact_trace
from perfd.capture.sharing import Sharing, redacted_copy
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


def names(files):
    return [Path(file.path).name for file in files]


def test_what_cannot_be_redacted_stays_on_the_node(tmp_path):
    files = artefacts(tmp_path / "captures")
    shared, problem = Sharing(directory=tmp_path / "share", node="n1").share("c1", files)
    assert (names(shared), problem) == (["n1-rank3.pt.trace.json", "n1-rank3.stacks.json"], "")
    for path in (tmp_path / "share").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
        assert path.stat().st_mode & 0o077 == 0


def test_an_operator_may_have_it_all(tmp_path):
    files = artefacts(tmp_path / "captures")
    shared, _ = Sharing(directory=tmp_path / "share", node="n1", unredacted=True).share("c1", files)
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
    node.executor(sharing=Sharing(directory=tmp_path / "file" / "share", node="n1")).handle(request())
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
    (copy,) = [path for path in share.rglob("*") if path.is_file()]
    assert str(copy) in [file["path"] for who in capture["ranks"] for file in who["files"]]
    left = [
        *share.rglob("*"),
        *(system.directory).glob("history.sqlite*"),
        *(system.directory / "spool").rglob("*"),
    ]
    for path in left:
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in json.dumps(capture)
