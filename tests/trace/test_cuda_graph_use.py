"""Whether CUDA graphs could replace a job's launches, what prevents it, and what they would save."""

from __future__ import annotations

import pytest

from perfd.trace.breakdown.cuda_graph_use import NODE_GAP_NS
from perfd.trace.breakdown.idle_time import HOST_WAIT_NS
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.diagnosis.trace_bottleneck import diagnose
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import tables_of
from tests.support.traces import COMPUTE, MATMUL, Call, NsysExport, Op, kineto, write_json

_KERNELS = [MATMUL, COMPUTE, "softmax_kernel", "layer_norm_kernel"]
_TO_HOST = "Memcpy DtoH (Device -> Pageable)"


def launching(repeats=6, names=_KERNELS, *, every_us=50.0, runs_us=10.0):
    """Small kernels that begin as the host launches them."""
    return [
        Op(name, at * every_us, at * every_us + runs_us, launched=at * every_us - 2)
        for at, name in enumerate(names * repeats)
    ]


def graphs(tmp_path, operations, **options):
    path = write_json(tmp_path / "trace.json", kineto(operations, **options))
    (table,) = tables_of(read_traces([path], detailed=True), ["graphs"])
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def test_what_repeats_without_waits_gains_its_gaps_less_those_between_nodes(tmp_path):
    (row,) = graphs(tmp_path, launching())

    assert (row["repeats_count"], row["operations_count"], row["same_ratio"]) == (6, 4, 1.0)
    assert row["waits_count"] == 0
    assert row["prevented_by"] == ""
    assert row["launch_gap_s"] == pytest.approx(23 * 40e-6)
    assert row["gain_s"] == pytest.approx(23 * (40e-6 - NODE_GAP_NS / 1e9))
    assert row["gain_ratio"] == pytest.approx(row["gain_s"] / (23 * 50e-6 + 10e-6))


@pytest.mark.parametrize(("gap_us", "counts"), [(HOST_WAIT_NS / 1e3, True), (HOST_WAIT_NS / 1e3 + 1, False)])
def test_longer_gaps_are_something_else_than_launching(tmp_path, gap_us, counts):
    (row,) = graphs(tmp_path, launching(every_us=gap_us + 10))

    assert row["launch_gap_s"] == pytest.approx(23 * gap_us / 1e6)
    assert (row["gain_s"] > 0) is counts


def test_gaps_that_nodes_of_a_graph_have_too_gain_nothing(tmp_path):
    (row,) = graphs(tmp_path, launching(every_us=10 + NODE_GAP_NS / 1e3))

    assert row["gain_s"] == 0


def test_launches_ahead_of_the_gpu_gain_nothing(tmp_path):
    (row,) = graphs(
        tmp_path,
        [Op(name, at * 50, at * 50 + 10, launched=at - 100) for at, name in enumerate(_KERNELS * 6)],
    )

    assert row["launch_gap_s"] == row["gain_s"] == 0


def test_waits_cut_what_can_be_captured(tmp_path):
    waits = [Call("cudaDeviceSynchronize", at * 200 + 15, at * 200 + 20) for at in range(6)]

    (row,) = graphs(tmp_path, launching(), calls=waits)

    assert row["waits_count"] == 6
    # The launch behind each wait begins a graph: its gap stays.
    assert row["gain_s"] == pytest.approx((23 - 6) * (40e-6 - NODE_GAP_NS / 1e9))
    assert row["prevented_by"] == "6 other waits for the GPU"


def test_a_value_that_the_host_reads_before_it_goes_on_is_counted(tmp_path):
    names = [*_KERNELS, _TO_HOST]
    operations = [
        Op(name, at * 50, at * 50 + 10, launched=at * 50 + 11, took=13)
        if name == _TO_HOST
        else Op(name, at * 50, at * 50 + 10, launched=at * 50 - 2)
        for at, name in enumerate(names * 5)
    ]

    (row,) = graphs(tmp_path, operations)

    assert (row["waits_count"], row["reads_count"]) == (5, 5)
    assert row["prevented_by"] == "5 waits for copies to the host"


def test_steps_that_launch_other_operations_are_counted(tmp_path):
    names = [*_KERNELS * 2, *_KERNELS[:3], "another_kernel", *_KERNELS]
    steps = {at: (at * 200 - 10, at * 200 + 189) for at in range(4)}

    (row,) = graphs(tmp_path, launching(1, names), steps=steps)

    assert (row["repeats_count"], row["operations_count"]) == (4, 4)
    assert row["same_ratio"] == pytest.approx(1 / 3)
    assert row["prevented_by"] == "66.7% of the steps differ from the step before"


def test_shapes_that_change_are_other_operations(tmp_path):
    operations = launching()
    changing = [
        Op(op.name, op.start, op.end, launched=op.launched, args={"grid": [at, 1, 1], "block": [128, 1, 1]})
        for at, op in enumerate(operations)
    ]

    (row,) = graphs(tmp_path, changing)

    assert row["operations_count"] is None
    assert row["gain_s"] == 0
    assert row["prevented_by"] == "no sequence of operations repeats three times"


@pytest.mark.parametrize(("repeats", "found"), [(2, None), (3, 4)])
def test_a_sequence_repeats_from_three_times_on(tmp_path, repeats, found):
    (row,) = graphs(tmp_path, launching(repeats))

    assert row["operations_count"] == found


@pytest.mark.parametrize(("others", "found"), [(4, True), (6, False)])
def test_a_sequence_repeats_if_95_of_100_operations_come_again(tmp_path, others, found):
    names = _KERNELS * 50
    for number in range(others):
        names[70 + 10 * number] = f"another_kernel_{number}"

    (row,) = graphs(tmp_path, launching(1, names))

    # Each of the others differs from what is a repetition before it and after it, of at most 196 pairs.
    assert (row["operations_count"] == 4) is found


def test_graphs_that_are_there_are_not_advised_again(tmp_path):
    trace = kineto(launching())
    for event in trace["traceEvents"]:
        if event["name"] == "cudaLaunchKernel":
            event["name"] = "cudaGraphLaunch"
    (table,) = tables_of(read_traces([write_json(tmp_path / "trace.json", trace)], detailed=True), ["graphs"])

    (row,) = table.rows

    assert row[1] == 1.0
    assert row[8] == 0
    assert row[-1] == "graphs launch it already"


def test_a_trace_without_the_host_has_no_row(tmp_path):
    assert graphs(tmp_path, [Op(COMPUTE, 0, 5)]) == []


def test_an_export_of_nsight_systems_has_the_same_row(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    for op in launching():
        export.kernel(op.name, int(op.start * 1000), int(op.end * 1000), launched=int(op.launched * 1000))
    (table,) = tables_of(read_traces([export.close()], detailed=True), ["graphs"])

    (expected,) = graphs(tmp_path, launching())

    assert table.rows[0] == pytest.approx(tuple(expected.values()))


def test_a_capture_that_launches_limit_says_what_graphs_would_save(tmp_path):
    path = write_json(tmp_path / "trace.json", kineto(launching()))

    evidence = " ".join(diagnose(analyse(read_traces([path]))).bottleneck.evidence)

    assert (
        "CUDA graphs could save up to 76.3% of the window on rank 0: about 4 operations come again 6 times"
        " (100.0% the same)."
    ) in evidence


def test_each_graph_that_ran_has_its_launches_nodes_and_times(tmp_path):
    """Two graphs of which the trace shows the nodes: three launches of two nodes, one of one."""
    launched = [(MATMUL, COMPUTE), (MATMUL, COMPUTE), (COMPUTE,), (MATMUL, COMPUTE)]
    trace = kineto([Op(MATMUL, 900, 905, launched=899)])
    call = next(one for one in trace["traceEvents"] if one["cat"] == "cuda_runtime")
    kernel = next(one for one in trace["traceEvents"] if one["cat"] == "kernel")
    for number, names in enumerate(launched, start=100):
        at = number * 1000.0
        trace["traceEvents"].append(
            call | {"name": "cudaGraphLaunch", "ts": at, "dur": 5, "args": {"correlation": number}}
        )
        trace["traceEvents"] += [
            kernel
            | {"name": name, "ts": at + 20 + place * 12, "dur": 10}
            | {"args": {**kernel["args"], "correlation": number}}
            for place, name in enumerate(names)
        ]
    path = write_json(tmp_path / "trace.json", trace)
    (table,) = tables_of(read_traces([path], detailed=True), ["graph-launches"])
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    assert [(row["graph"], row["nodes_count"], row["count"]) for row in rows] == [
        (f"from {MATMUL}", 2, 3),
        (f"from {COMPUTE}", 1, 1),
    ]
    assert rows[0]["total_s"] == pytest.approx(3 * 22e-6)
    assert rows[0]["busy_ratio"] == pytest.approx(20 / 22)


def test_graphs_recorded_as_a_whole_differ_by_their_number(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    export.graph(0, 1000)
    export.graph(2000, 3500)
    export.graph(4000, 5000)
    export.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ADD COLUMN graphExecId INTEGER")
    export.execute("UPDATE CUPTI_ACTIVITY_KIND_GRAPH_TRACE SET graphExecId = 2 + (start = 2000)")
    traces = read_traces([export.close()], detailed=True)
    launches, kernels = tables_of(traces, ["graph-launches", "kernels"])
    assert [row[1:3] for row in launches.rows] == [("CUDA graph 2", None), ("CUDA graph 3", None)]
    assert {(row[1], row[2]) for row in kernels.rows} == {
        ("CUDA graph 2", "graph"),
        ("CUDA graph 3", "graph"),
    }
