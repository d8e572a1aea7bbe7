"""Where the host waits for the GPU, by call and named range; and what of a trace cannot be seen."""

from __future__ import annotations

import pytest

from perfd.analysis.findings import Kind
from perfd.trace.breakdown import sync_points
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.diagnosis import analyse, diagnose
from perfd.trace.readers import kineto_reader
from perfd.trace.readers.trace_files import read_traces
from tests.support.traces import COMPUTE, MATMUL, Call, NsysExport, Op, kineto, write_json


def _traces(tmp_path, operations, **trace):
    return kineto_reader.read(write_json(tmp_path / "t.json", kineto(operations, **trace)))


def test_waits_are_counted_by_call_and_innermost_range(tmp_path):
    operations = [
        Op(COMPUTE, step * 1000 + 10, step * 1000 + 300, launched=step * 1000 + 5) for step in (0, 1)
    ]
    calls = [
        Call("cudaStreamSynchronize", step * 1000 + at, step * 1000 + at + 50)
        for step in (0, 1)
        for at in (400, 500, 600)
    ] + [Call("cudaDeviceSynchronize", 100, 310), Call("cudaEventQuery", 20, 25)]
    ranges = [
        entry
        for step in (0, 1)
        for entry in (
            ("train", step * 1000, step * 1000 + 900),
            ("optimizer", step * 1000 + 390, step * 1000 + 700),
        )
    ]
    (trace,) = _traces(
        tmp_path, operations, calls=calls, ranges=ranges, steps={0: (0, 1000), 1: (1000, 2000)}
    )
    first, second = sync_points(RankTimeline(trace))
    assert (first.call, first.range_name, first.count, first.per_step) == (
        "cudaStreamSynchronize", "optimizer", 6, 3.0,
    )  # fmt: skip
    assert (first.host_s, first.idle_s) == pytest.approx((300e-6, 300e-6))
    assert (second.call, second.range_name, second.count) == ("cudaDeviceSynchronize", "train", 1)
    assert second.idle_s == pytest.approx(10e-6)


def test_the_finding_places_them(tmp_path):
    operations = [Op(COMPUTE, at, at + 20, launched=at - 5) for at in range(100, 1000, 100)]
    calls = [Call("cudaDeviceSynchronize", at + 5, at + 80) for at in range(100, 1000, 100)]
    analysis = analyse(
        _traces(tmp_path, operations, calls=calls, ranges=[("optimizer", 0, 1000)], steps={1: (0, 1000)})
    )
    (found,) = [one for one in diagnose(analysis).findings if one.kind is Kind.SYNCHRONIZATION]
    assert any("cudaDeviceSynchronize in optimizer, 9 per step" in sentence for sentence in found.evidence)


def test_calls_of_nsight_systems_have_names_without_versions(tmp_path):
    export = NsysExport(tmp_path / "n.sqlite")
    export.kernel(COMPUTE, 50_000, 60_000, launched=49_000)
    export.call("cudaStreamSynchronize_v3020", 52_000, 61_000)
    export.kernel(COMPUTE, 70_000, 80_000, launched=69_000)
    (trace,) = read_traces([export.close()])
    assert [point.call for point in sync_points(RankTimeline(trace))] == ["cudaStreamSynchronize"]


@pytest.mark.parametrize(("graphs_us", "seen"), [(800, False), (20, True)])
def test_nothing_is_advised_from_kernels_when_most_are_in_graphs_that_are_opaque(tmp_path, graphs_us, seen):
    export = NsysExport(tmp_path / "n.sqlite")
    export.kernel(COMPUTE, 0, 100_000, launched=-1_000)
    export.graph(110_000, 110_000 + graphs_us * 1000)
    diagnosis = diagnose(analyse(read_traces([export.close()])))
    kind = Kind.MEMORY_BOUND if seen else Kind.COMPUTE_BOUND
    (found,) = [one for one in diagnosis.findings if one.kind is kind]
    assert ("Fuse" in found.advice) is seen
    assert ("--cuda-graph-trace=node" in found.advice) is not seen
    assert any("does not show what they run" in sentence for sentence in found.evidence) is not seen


def test_input_that_takes_most_of_the_idle_time_is_the_class(tmp_path):
    operations = [
        Op(MATMUL, step * 1000 + 620, step * 1000 + 980, launched=step * 1000 + 610) for step in range(3)
    ]
    ranges = [("data_loading", step * 1000, step * 1000 + 600) for step in range(3)]
    steps = {step: (step * 1000.0, step * 1000.0 + 1000) for step in range(3)}
    diagnosis = diagnose(analyse(_traces(tmp_path, operations, ranges=ranges, steps=steps)))
    assert diagnosis.bottleneck is not None
    assert diagnosis.bottleneck.kind is Kind.DATA_LOADING
    assert diagnosis.cause is None
    assert diagnosis.bottleneck.gain_ratio == pytest.approx(0.6, abs=0.01)
