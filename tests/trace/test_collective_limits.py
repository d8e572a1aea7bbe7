"""Collectives of traces against what their links allow."""

from __future__ import annotations

import pytest

from perfd.analysis.findings import Kind
from perfd.gpu_peaks import load_peaks
from perfd.trace.diagnosis import TraceSettings, analyse, diagnose, to_json
from perfd.trace.readers import kineto_reader
from tests.support.traces import MATMUL, NCCL, Op, kineto, write_json

_GROUP = {"pg_name": "0", "pg_desc": "dp", "ranks": [0, 1]}


def _capture(tmp_path, transfer_us):
    args = {
        "Process Group Name": "0", "Process Group Description": "dp", "Process Group Ranks": "[0, 1]",
        "Collective name": "allreduce", "In msg nelems": 225_000_000, "dtype": "BFloat16", "Seq": 0,
    }  # fmt: skip
    traces = []
    for rank in (0, 1):
        operations = [
            Op(MATMUL, 0, 1000, launched=-10),
            Op(NCCL, 1000, 1000 + transfer_us, launched=-5, args=args),
        ]
        trace = kineto(operations, rank=rank, world_size=2, groups=[_GROUP], device=rank)
        traces += kineto_reader.read(write_json(tmp_path / f"{rank}.json", trace))
    return analyse(traces, TraceSettings(peaks=load_peaks()))


def test_a_row_has_its_bus_bandwidth_and_the_least_time_of_a_ring(tmp_path):
    analysis = _capture(tmp_path, 2000)
    row = to_json(analysis, diagnose(analysis))["ranks"][0]["collectives"][0]
    # 450 MB once over each link of two H200s at 450 GB/s.
    assert row["minimum_s"] == pytest.approx(1e-3)
    assert row["bus_bytes_per_s"] == pytest.approx(225e9)


@pytest.mark.parametrize(("transfer_us", "far"), [(1100, False), (10_000, True)])
def test_transfers_far_from_the_links_are_evidence(tmp_path, transfer_us, far):
    diagnosis = diagnose(_capture(tmp_path, transfer_us))
    (found,) = [one for one in diagnosis.findings if one.kind is Kind.COMMUNICATION]
    assert any("10.0% of NVLink" in sentence for sentence in found.evidence) is far
