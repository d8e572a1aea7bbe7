"""NCCL's own lines among those of a training log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from perfd_collectors.training_log.log_document import LogDocument

from perfd.cli import main
from perfd.model import EventKind

LOG = """\
[titan] 2026-11-21 04:46:13,988 - root - INFO - Building 1-D device mesh with ['dp_replicate'], [2]
NCCL version 2.28.9+cuda13.0
[rank0]: node0:71:71 [0] NCCL INFO cudaDriverVersion 13000
node0:71:95 [0] NCCL INFO Using network Socket
node0:71:95 [0] NCCL INFO ncclCommInitRankConfig comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 \
commId 0x2a - Init COMPLETE
node0:71:96 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
node0:71:96 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct
node1:72:96 [1] NCCL INFO NCCL version 2.27.3+cuda12.9
node1:72:96 [1] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.1 failed
[titan] 2026-11-21 04:46:14,284 - root - INFO - step:  1  loss: 10.61673  grad_norm:  1.0000  \
memory: 12.35GiB(8.84%)  tps: 27,744  tflops: 119.88  mfu: 12.12%
"""


def read(text: str) -> LogDocument:
    understanding = LogDocument()
    understanding.read(io.BytesIO(text.encode()))
    return understanding


def test_transports_versions_and_warnings_of_nccl_are_reported_once_and_steps_all_the_same():
    understanding = read(LOG)

    messages = [event.message for event in understanding.events if event.kind is EventKind.NCCL_WARNING]
    assert len(messages) == 3
    assert any("through host memory (SHM)" in message for message in messages)
    assert any("different NCCL versions: 2.27.3 and 2.28.9" in message for message in messages)
    assert any(message.startswith("NCCL WARN socketStartConnect") for message in messages)
    assert [step.step for step in understanding.steps] == [1]


def test_communicators_with_their_ranks_and_how_these_are_connected_are_reported():
    assert read(LOG).document()["nccl"] == {
        "versions": ["2.27.3", "2.28.9"],
        "networks": ["Socket"],
        "connections": {"SHM": 1},
        "communicators": [{"id": "2a", "ranks": 2, "members": [{"rank": 0, "host": "node0", "pid": 71}]}],
    }
    assert read("step: 1").document()["nccl"] is None


def test_logs_of_several_ranks_are_one_jobs():
    understanding = read(LOG)
    other = LOG.replace("rank 0 nranks", "rank 1 nranks").replace("node0:71", "node1:80")
    understanding.read(io.BytesIO(other.encode()))

    (communicator,) = understanding.document()["nccl"]["communicators"]
    assert [member["host"] for member in communicator["members"]] == ["node0", "node1"]


def test_people_are_shown_communicators_by_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "nccl").write_text(LOG.split("\n", 1)[1].rsplit("[titan]", 1)[0])

    for name in ("log", "nccl"):
        assert main(["parse", str(tmp_path / name)]) == 0
        printed = capsys.readouterr().out
        assert "1 of 2 ranks" in printed
        assert "1 by SHM" in printed


def test_lines_of_nccl_are_no_unknown_progress():
    assert read(LOG).unrecognized_lines == 0
    assert read(LOG).examples == []


def test_a_cut_line_says_nothing():
    assert read(LOG[: LOG.index("via SHM") + 7]).events == []
