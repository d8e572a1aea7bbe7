"""Communicators, sizes and peers in exports of Nsight Systems, from what NCCL notes on its NVTX ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.trace.breakdown.collective_matching import CollectiveMatching
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.readers.nsys.nccl_calls import decoded, schema_fields
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import NCCL, NsysExport

_SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_REPLICAS, _STAGES = 0xABC, 0xDEF
_MB = 1_000_000


def _work(export: NsysExport, process: int, device: int) -> None:
    """Keep a process' GPU busy from 0 to 10 ms but for what is added."""
    export.kernel("gemm", 0, _MB, process=process, device=device, launched=-6000)


def _one(export, name, kernel, process, began_ns, took_ns, payload):
    """A call outside of groups, whose kernel begins 10 µs after the launch."""
    export.nccl(name, began_ns - 20_000, began_ns - 8_000, payload, process=process)
    export.kernel(
        kernel, began_ns, began_ns + took_ns, process=process, device=process, launched=began_ns - 10_000
    )


def _in_group(export, calls, kernel, process, began_ns, took_ns):
    """Calls in a group, as PyTorch makes them: the end of the outer one launches."""
    at = began_ns - 100_000
    export.nccl("ncclGroupStart", at, at + 100, process=process)
    for name, payload in calls:
        at += 1000
        export.nccl("ncclGroupStart", at, at + 100, process=process)
        export.nccl(name, at + 200, at + 300, payload, process=process)
        export.nccl("ncclGroupEnd", at + 400, at + 500, process=process)
    export.nccl("ncclGroupEnd", began_ns - 20_000, began_ns - 8_000, process=process)
    export.kernel(
        kernel, began_ns, began_ns + took_ns, process=process, device=process, launched=began_ns - 10_000
    )


def _capture(tmp_path):
    """Four ranks: 0 and 1 are replicas, so are 2 and 3; 0 sends to 2, and 1 to 3."""
    export = NsysExport(tmp_path / "c.sqlite")
    for rank in range(4):
        _work(export, rank, rank)
        replicas = _REPLICAS + rank // 2
        took = 300_000 if rank % 2 else 500_000
        _one(export, "ncclAllReduce", NCCL, rank, 2 * _MB, took, (replicas, 64 * _MB, 0))
        _one(export, "ncclAllGather", _GATHER, rank, 4 * _MB, took, (replicas, 8 * _MB, 0))
        call = "ncclSend" if rank < 2 else "ncclRecv"
        calls = [(call, (_STAGES + rank % 2, 16 * _MB, 1 if rank < 2 else 0))]
        _in_group(export, calls, _SENDRECV, rank, 6 * _MB, 200_000 if rank < 2 else 900_000)
        _one(export, "ncclAllReduce", NCCL, rank, 8 * _MB, 20_000, (replicas, 4, 0))
    export.captured(10 * _MB)
    return export.close()


def test_a_communicators_ranks_are_those_that_use_it_and_sizes_are_of_whole_messages(tmp_path):
    traces = read_traces([_capture(tmp_path)])
    found = {(trace.rank, one.name, one.elements): one for trace in traces for one in trace.collectives}

    assert found[0, "allreduce", None].group_ranks == (0, 1)
    assert found[3, "allreduce", None].group_ranks == (2, 3)
    assert found[0, "allreduce", None].group == "ranks 0, 1 (communicator abc)"
    assert found[0, "allreduce", None].size_bytes == 64 * _MB
    assert found[0, "allgather", None].size_bytes == 16 * _MB
    assert found[2, "allreduce", 1].size_bytes == 4
    (sent,) = found[1, "sendrecv", None].messages
    (received,) = found[3, "sendrecv", None].messages
    assert (sent.peer, sent.sent) == (3, True)
    assert (received.peer, received.sent) == (1, False)


def test_transfer_and_waiting_are_known_as_from_pytorchs_profiler(tmp_path):
    rows = {
        (rank, row.operation, row.barrier): row
        for rank, found in analyse(read_traces([_capture(tmp_path)])).collectives.by_rank.items()
        for row in found
    }

    reduce = rows[0, "allreduce", False]
    assert (reduce.transfer_s, reduce.wait_s) == pytest.approx((0.3e-3, 0.2e-3))
    assert reduce.matching is CollectiveMatching.ORDER
    assert rows[1, "allreduce", False].wait_s == 0
    assert rows[2, "sendrecv", False].wait_s == pytest.approx(0.7e-3)
    assert rows[2, "sendrecv", False].matching is CollectiveMatching.MESSAGES
    assert rows[0, "allreduce", True].count == 1


def test_collectives_of_one_kind_in_a_group_may_share_a_kernel_and_others_may_not(tmp_path):
    export = NsysExport(tmp_path / "c.sqlite")
    for rank in (0, 1):
        _work(export, rank, rank)
        gathers = [("ncclAllGather", (_REPLICAS, 3 * _MB, 0)), ("ncclAllGather", (_REPLICAS, 5 * _MB, 0))]
        _in_group(export, gathers, _GATHER, rank, 2 * _MB, 100_000)
        mixed = [("ncclAllGather", (_REPLICAS, _MB, 0)), ("ncclSend", (_REPLICAS, _MB, 1 - rank))]
        _in_group(export, mixed, _GATHER, rank, 4 * _MB, 100_000)
    traces = read_traces([export.close()])

    assert [(one.name, one.size_bytes) for one in traces[0].collectives] == [("allgather", 16 * _MB)]


def test_a_rank_whose_partners_were_not_traced_has_no_group_ranks_and_no_whole_size(tmp_path):
    export = NsysExport(tmp_path / "c.sqlite")
    _work(export, 1, 1)
    _one(export, "ncclAllGather", _GATHER, 1, 2 * _MB, 100_000, (_REPLICAS, 8 * _MB, 0))
    _one(export, "ncclAllReduce", NCCL, 1, 4 * _MB, 100_000, (_REPLICAS, 8 * _MB, 0))
    (trace,) = read_traces([export.close()])

    assert [(one.group, one.group_ranks, one.size_bytes) for one in trace.collectives] == [
        ("communicator abc", (), None),
        ("communicator abc", (), 8 * _MB),
    ]


def test_a_group_that_began_before_the_capture_launches_nothing_that_is_known(tmp_path):
    export = NsysExport(tmp_path / "c.sqlite")
    _work(export, 1, 1)
    export.nccl("ncclSend", 1000, 2000, (_REPLICAS, _MB, 1))
    export.nccl("ncclGroupEnd", 3000, 9000)
    export.kernel(_SENDRECV, 20_000, 30_000, device=1, launched=8000)
    (trace,) = read_traces([export.close()])

    assert trace.collectives == []


def test_an_export_without_blobs_says_how_to_get_them(tmp_path, capsys):
    export = NsysExport(tmp_path / "c.sqlite")
    _work(export, 1, 1)
    _one(export, "ncclAllReduce", NCCL, 1, 2 * _MB, 100_000, None)
    path = export.close()

    assert main(["analyze", str(path)]) == 0
    assert capsys.readouterr().out.count("--include-blobs=true") == 1


_FIELDS = schema_fields([(1, 7, "NCCL communicator ID", None), (1, 7, "Message size [bytes]", 8)])


@given(st.one_of(st.binary(max_size=80), st.text(max_size=80), st.none(), st.integers()), st.integers(0, 2))
def test_any_blob_is_a_payload_or_nothing(blob, domain):
    found = decoded(blob, domain, _FIELDS)

    assert found is None or (domain == 1 and 0 <= found.communicator < 2**64)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(), st.text(max_size=3)),
            st.integers(),
            st.sampled_from(["NCCL communicator ID", "Message size [bytes]", "Peer rank", None, 5]),
            st.one_of(st.none(), st.integers(), st.text(max_size=3)),
        ),
        max_size=5,
    ),
    st.binary(min_size=32, max_size=64),
)
def test_any_table_of_schemas_is_read(rows, blob):
    fields = schema_fields(rows)

    for domain, _schema in fields:
        decoded(blob, domain, fields)
