"""What NCCL prints: communicators, transports, versions and warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfd_collectors.nccl.debug_log.debug_files import DebugFiles
from perfd_collectors.nccl.debug_log.debug_lines import DebugLog

from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.model import EventKind

VERSION = "node1:10:10 [0] NCCL INFO NCCL version 2.28.9+cuda13.0"
INIT = (
    "[rank0]: node1:10:77 [0] NCCL INFO ncclCommInitRankConfig comm 0x55aa rank 3 nranks 8 cudaDev 3"
    " nvmlDev 3 busId 1b000 commId 0xe5ccb016b8db7e - Init COMPLETE"
)
OLD_INIT = (
    "node1:10:77 [0] NCCL INFO comm 0x55aa rank 3 nRanks 8 nNodes 1 busId 1b000 commId 0xab - Init COMPLETE"
)
SHM = "node1:10:77 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
WARN = "node1:10:77 [0] misc/socket.cc:50 NCCL WARN socketPollConnect: connect returned Connection refused"


def reported(*lines: str) -> tuple[DebugLog, list[str]]:
    log = DebugLog()
    return log, [remark.message for line in lines for remark in log.feed(line)]


@pytest.mark.parametrize(("line", "identity"), [(INIT, "e5ccb016b8db7e"), (OLD_INIT, "ab")])
def test_a_communicator_is_known_by_the_id_that_the_plugin_reports_too(line: str, identity: str):
    log, remarks = reported(line)

    one = log.communicators[identity, 3]
    assert (one.rank, one.ranks, one.host, one.pid) == (3, 8, "node1", 10)
    assert remarks == []


@pytest.mark.parametrize(
    ("via", "transport"),
    [
        ("P2P/CUMEM", "P2P"),
        ("P2P/IPC/read", "P2P"),
        ("SHM/direct/direct", "SHM"),
        ("NET/IB/0/GDRDMA", "NET/IB"),
        ("NET/Socket/1", "NET/Socket"),
    ],
)
def test_a_pair_is_counted_once_by_its_transport(via: str, transport: str):
    line = "node1:10:77 [0] NCCL INFO Channel {:02d}/0 : 0[0] -> 1[1] via {}"

    log, _ = reported(line.format(0, via), line.format(1, via))

    assert dict(log.transports) == {transport: 1}


def test_a_detour_through_the_host_is_reported_once():
    _, remarks = reported(SHM, SHM.replace("0[0] -> 1[1]", "1[1] -> 2[2]"))

    (remark,) = remarks
    assert "SHM" in remark
    assert "NCCL_P2P_DISABLE" in remark


def test_two_versions_in_one_job_are_reported():
    log, remarks = reported(
        VERSION, VERSION, VERSION.replace("2.28.9", "2.26.2"), "NCCL version 2.28.9+cuda13.0"
    )

    assert list(log.versions) == ["2.28.9", "2.26.2"]
    assert remarks == ["Processes of the job use different NCCL versions: 2.26.2 and 2.28.9."]


def test_warnings_are_reported_with_what_they_say():
    assert reported(WARN)[1] == ["NCCL WARN socketPollConnect: connect returned Connection refused"]


@given(st.text(max_size=300))
def test_any_text_is_read(text: str):
    reported(text, f"node1:10:77 [0] NCCL INFO {text}", f"node1:10:77 [0] NCCL WARN {text}")


@given(st.integers(0, len(INIT)))
def test_a_cut_line_never_invents_a_communicator(cut: int):
    log, _ = reported(INIT[:cut])

    assert set(log.communicators) <= {("e5ccb016b8db7e", 3)}
    assert cut == len(INIT) or not log.communicators


def test_files_are_followed_and_cut_lines_wait_for_their_rest(tmp_path: Path):
    path = tmp_path / "nccl.node1.10.log"
    files = DebugFiles([str(tmp_path / "nccl.*")], Settings(node="n", job="j", clock=VirtualClock(7)))
    path.write_text(f"{VERSION}\n{SHM}\n{WARN[:30]}")
    (first,) = files.collect()
    with path.open("a") as file:
        file.write(f"{WARN[30:]}\n{WARN}\n")

    (second,) = files.collect()

    assert (first.kind, first.job, first.time_unix_ns) == (EventKind.NCCL_WARNING, "j", 7)
    assert first.message.startswith("NCCL connects GPUs of node1")
    assert second.message.startswith("NCCL WARN socketPollConnect")
    files.close()
