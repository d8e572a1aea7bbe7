"""Captures of jobs on H100s that were written for them: what is read is what the jobs did."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.trace_tables import compared, reports_beside_tables
from perfd.cli import main
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import tables_of

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
NCCL_JOB = FIXTURES / "nsys-2025.3-2xh100-nccl.sqlite.gz"
GRAPH_JOB = FIXTURES / "nsys-2025.3-h100-graph-nodes.sqlite.gz"
JAX_JOB = FIXTURES / "jax-0.11-2xh100.xplane.pb.gz"
_BIAS, _WEIGHT = 2, 4096 * 1024 * 2
"""Bytes of a bias per element, and of a weight of the model: bfloat16."""


def test_nccls_calls_have_the_sizes_groups_and_peers_of_the_job():
    for rank, trace in enumerate(read_traces([NCCL_JOB])):
        assert trace.gpu == "NVIDIA H100 80GB HBM3"
        assert {one.group_ranks for one in trace.collectives} == {(0, 1)}
        # A communicator for the gradients, and one of the group for parameters and their gradients.
        by_communicator = {
            communicator: {one.name for one in trace.collectives if one.communicator == communicator}
            for communicator in {one.communicator for one in trace.collectives}
        }
        assert sorted(map(sorted, by_communicator.values())) == [
            ["allgather", "reducescatter"],
            ["allreduce", "alltoall", "sendrecv"],
        ]
        # Two steps of four layers: each weight with its bias is a bucket.
        assert Counter((one.name, one.size_bytes) for one in trace.collectives) == {
            ("allreduce", _WEIGHT + 1024 * _BIAS): 8,
            ("allreduce", _WEIGHT + 4096 * _BIAS): 8,
            ("allreduce", 4): 2,
            ("allgather", 2 << 21): 2,
            ("reducescatter", 2 << 21): 2,
            ("alltoall", 2 * 65_536 * 4): 2,
            ("sendrecv", 256 * 1024 * 2): 2,
            ("sendrecv", 2 * 256 * 1024 * 2): 2,
        }
        peer = 1 - rank
        messages = [
            [(one.peer, one.sent) for one in found.messages]
            for found in trace.collectives
            if found.name == "sendrecv"
        ]
        assert messages == [[(peer, rank == 0)], [(peer, True), (peer, False)]] * 2


def test_numbers_that_the_job_gives_with_its_ranges_are_read():
    for trace in read_traces([NCCL_JOB]):
        given = [(one.name, one.domain, one.payload) for one in trace.phases if one.payload is not None]
        assert sorted(given) == [
            ("load batch", "loader", 12.0),
            ("load batch", "loader", 13.0),
            ("pipeline", "", 0.5),
            ("pipeline", "", 0.5),
        ]


def test_the_rank_with_the_extra_kernel_is_the_straggler_and_its_peer_waits():
    analysis = analyse(read_traces([NCCL_JOB]))
    finding = diagnose(analysis).findings[0]
    assert (finding.kind, [one.id for one in finding.culprits]) == ("straggler", [1])
    assert "spin_kernel" in " ".join(finding.evidence)
    sends = {
        rank: row
        for rank, rows in analysis.collectives.by_rank.items()
        for row in rows
        if row.operation == "sendrecv"
    }
    # It sleeps for about 1.5 ms before each exchange in both directions: the other waits for it.
    assert sends[0].wait_s > 2e-3 > 10 * sends[1].wait_s
    assert sends[0].transfer_s == sends[1].transfer_s < 1e-4


def test_a_graph_whose_nodes_were_captured_is_one_row():
    (table,) = tables_of(read_traces([GRAPH_JOB], detailed=True), ["graph-launches"])
    names = [column.name for column in table.columns]
    (row,) = (dict(zip(names, cells, strict=True)) for cells in table.rows)
    assert (row["count"], row["nodes_count"]) == (6, 300)
    assert row["busy_ratio"] == pytest.approx(0.965, abs=0.002)


def test_each_module_of_a_step_has_its_time_and_its_products_are_all_counted(capsys):
    cost = json.loads((FIXTURES / "jax-0.11-2xh100-cost.json").read_text())
    found = {}
    for name in ("grads", "update"):
        module = str(FIXTURES / f"jax-0.11-2xh100-{name}.hlo.txt.gz")
        assert main(["roofline", "--hlo", module, "--trace", str(JAX_JOB), "--gpu", "H100", "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)["module"]
    grads, update = found["grads"], found["update"]
    assert grads["other_modules_s"] == {"jit_update": pytest.approx(update["time_s"])}
    # The steps of the trace were waited for, those that the job timed were not.
    assert grads["time_s"] + update["time_s"] == pytest.approx(cost["step_s"], rel=0.05)
    products = [one for one in grads["operations"] if one["precision"] == "bf16"]
    # Of the job: two products of 2048 x 1024 x 4096 in each of six layers, three times, on two devices.
    assert sum(one["flops"] * one["count"] for one in products) == pytest.approx(
        3 * 6 * 2 * (2 * 2048 * 1024 * 4096) / 2, rel=1e-3
    )
    # XLA's own count has neither the calls of cuBLAS nor the loops' repetitions: three products of the body.
    assert cost["grads"]["flops"] == pytest.approx(3 * 2 * 2048 * 1024 * 4096 / 2, rel=0.01)


def test_ends_of_asynchronous_operations_cost_nothing_and_their_beginnings_once(capsys):
    module = str(FIXTURES / "jax-0.11-2xh100-grads.hlo.txt.gz")
    assert main(["roofline", "--hlo", module, "--gpu", "H100", "--json"]) == 0
    operations = {one["name"]: one for one in json.loads(capsys.readouterr().out)["module"]["operations"]}
    assert not [name for name in operations if "-done" in name]
    # A slice of 1024 x 4096 of an array of six: read and written.
    assert operations["fusion-start.9"]["traffic_bytes"] == pytest.approx(2 * 1024 * 4096 * 2, abs=8)
    # In place.
    assert operations["fusion-start.4"]["traffic_bytes"] == pytest.approx(2 * 1024 * 4096 * 2, abs=8)


def beside_nsys_stats(capture):
    return [
        compared(name, "nsys stats", ours, theirs) for name, ours, theirs in reports_beside_tables(capture)
    ]


@pytest.mark.parametrize(
    ("capture", "reports", "numbers"),
    [(NCCL_JOB, 3, 242), (GRAPH_JOB, 3, 28), (FIXTURES / "nsys-2025.3-h100-training.sqlite.gz", 9, 779)],
)
def test_tables_have_the_numbers_of_nsys_stats(capture, reports, numbers):
    found = beside_nsys_stats(capture)
    assert len(found) == reports
    assert sum(one["common"] for one in found) == numbers
    assert [one for one in found if one["different"] or one["only_perfd"]] == []
    # Ranges of steps are no rows of `ranges`: perfd takes them as the steps of the job.
    assert {one["table"] for one in found if one["only_other"]} <= {"nvtx_sum", "nvtx_gpu_proj_sum"}


def test_tables_of_four_processes_have_them_too(shared):
    found = beside_nsys_stats(shared.nsys)
    assert sum(one["common"] for one in found) == 538
    assert [one for one in found if one["different"] or one["only_perfd"] or one["only_other"]] == []
