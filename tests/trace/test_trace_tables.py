"""Tables of traces: by hand, the same from both profilers, and against plain SQL on a real capture."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from perfd.cli import main
from perfd.cli.commands import trace as trace_verb
from perfd.cli.traces.table_output import _headings
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import TABLES, needs_spans, tables_of
from perfd.trace.tables.range_tables import pattern_of
from tests.support import example_traces
from tests.support.traces import COMPUTE, COPY, MATMUL, Call, NsysExport, Op, kineto, write_json


def rows_of(path, name):
    (table,) = tables_of(read_traces([path], detailed=True), [name])
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def span(category, name, start, end, thread=4242, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start,
            "dur": end - start, "args": args}  # fmt: skip


def kineto_file(tmp_path, operations, *events, **more):
    content = kineto(operations, **more)
    host = next((one for one in content["traceEvents"] if one["cat"] == "cuda_runtime"), None)
    for event in events:
        if event["tid"] == 4242 and host:
            event |= {"pid": host["pid"], "tid": host["tid"]}
    content["traceEvents"] += events
    return write_json(tmp_path / "trace.json", content)


def test_the_verb_knows_all_tables():
    assert set(trace_verb._TABLES) == set(TABLES)


def test_no_two_columns_have_one_heading(tmp_path, capsys):
    example_traces.main(tmp_path)
    traces = read_traces(sorted(tmp_path.iterdir()), detailed=True)
    for found in tables_of(traces, list(TABLES), None):
        headings = _headings([column.name for column in found.columns])
        assert len(set(headings)) == len(headings), found.name

    assert main(["trace", "table", "path-gains", str(tmp_path)]) == 0
    assert re.search(r"\bgain\s+gain share\b", capsys.readouterr().out)


def test_kernels_have_their_distribution(tmp_path):
    path = kineto_file(
        tmp_path, [Op(MATMUL, at * 100, at * 100 + took) for at, took in enumerate((1, 2, 4, 9))]
    )
    (row,) = rows_of(path, "kernels")
    assert (row["count"], row["class"], row["share_ratio"]) == (4, "matmul", 1.0)
    assert row["total_s"] == pytest.approx(16e-6)
    assert row["mean_s"] == pytest.approx(4e-6)
    assert row["median_s"] == pytest.approx(3e-6)
    assert (row["min_s"], row["max_s"]) == (pytest.approx(1e-6), pytest.approx(9e-6))
    assert row["deviation_s"] == pytest.approx(3.559026e-6)


def test_copies_have_sizes_and_bandwidth_by_direction_and_size(tmp_path):
    sizes = [(1000, 1), (1_000_000, 100), (100_000_000, 2000)]
    path = kineto_file(
        tmp_path,
        [
            Op(COPY, at * 5000, at * 5000 + took, args={"bytes": size})
            for at, (size, took) in enumerate(sizes)
        ],
    )
    (row,) = rows_of(path, "copies")
    assert (row["size_bytes"], row["min_bytes"], row["median_bytes"]) == (101_001_000, 1000, 1_000_000)
    assert row["bytes_per_s"] == pytest.approx(101_001_000 / 2101e-6)
    by_size = rows_of(path, "copy-sizes")
    assert [row["count"] for row in by_size] == [1, 1, 1]
    assert [row["max_bytes"] for row in by_size] == [100_000_000, 1_000_000, 1000]


def test_a_copy_without_its_size_has_no_bandwidth(tmp_path):
    (row,) = rows_of(kineto_file(tmp_path, [Op(COPY, 1, 2)]), "copies")
    assert row["size_bytes"] is row["bytes_per_s"] is None


def test_both_profilers_give_the_same_tables(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    for at in (0, 100_000):
        export.kernel(MATMUL, at + 10_000, at + 30_000, launched=at + 5_000)
        export.copy(at + 40_000, at + 45_000)
    operations = [
        op
        for at in (0, 100)
        for op in (Op(MATMUL, at + 10, at + 30, launched=at + 5), Op(COPY, at + 40, at + 45))
    ]
    database, path = export.close(), kineto_file(tmp_path, operations)
    for name in ("kernels", "streams"):
        one, other = rows_of(database, name), rows_of(path, name)
        times = [key for key in one[0] if key.endswith(("_s", "_ratio", "count"))]
        assert [[row[key] for key in times] for row in one] == [[row[key] for key in times] for row in other]


def test_calls_are_all_there_also_those_that_launch_nothing(tmp_path):
    calls = [Call("cudaEventQuery", 60, 61), Call("cudaEventQuery", 70, 73)]
    path = kineto_file(tmp_path, [Op(COMPUTE, 10, 20, launched=5)], calls=calls)
    assert [(row["call"], row["count"]) for row in rows_of(path, "api")] == [
        ("cudaLaunchKernel", 1),
        ("cudaEventQuery", 2),
    ]


def test_launches_say_what_is_short_slow_and_late(tmp_path):
    path = kineto_file(
        tmp_path,
        [
            Op(COMPUTE, 10, 13, launched=6, took=5),
            Op(COMPUTE, 300, 400, launched=199, took=49),
            Op(COMPUTE, 600, 700, launched=500, took=51),
        ],
    )
    (row,) = rows_of(path, "launches")
    assert (row["short_count"], row["slow_call_count"], row["late_count"]) == (1, 1, 1)
    assert row["queue_median_s"] == pytest.approx(100e-6)


def test_streams_know_what_runs_alone(tmp_path):
    path = kineto_file(tmp_path, [Op(COMPUTE, 0, 100), Op(COMPUTE, 60, 120, stream=9)])
    rows = {row["stream"]: row for row in rows_of(path, "streams")}
    assert rows[7]["alone_s"] == pytest.approx(60e-6)
    assert rows[9]["alone_s"] == pytest.approx(20e-6)
    assert rows[9]["beside_others_ratio"] == pytest.approx(2 / 3)


def test_the_queue_grows_with_launches_and_shrinks_with_begins(tmp_path):
    path = kineto_file(
        tmp_path, [Op(COMPUTE, 100 + at * 10, 105 + at * 10, launched=10 + at, took=1) for at in range(4)]
    )
    (row,) = rows_of(path, "queue")
    assert (row["changes_count"], row["max_length"], row["mean_length"]) == (8, 4, 2.0)


def test_gaps_are_the_hosts_if_it_launched_after_them(tmp_path):
    path = kineto_file(
        tmp_path,
        [
            Op(COMPUTE, 0, 100, launched=0, took=1),
            Op(COMPUTE, 150, 200, launched=140, took=10),
            Op(COMPUTE, 200.02, 300, launched=141, took=1),
            Op(COMPUTE, 340, 400, launched=142, took=1),
        ],
    )
    (row,) = rows_of(path, "idle")
    assert row["host_wait_s"] == pytest.approx(50e-6)
    assert row["kernel_wait_s"] == pytest.approx(20e-9)
    assert row["other_s"] == pytest.approx(40e-6)


@pytest.mark.parametrize(("gap_us", "cause"), [(29.999, "kernel_wait_s"), (30, "other_s")])
def test_a_gap_from_30_us_on_is_not_only_the_next_kernels(tmp_path, gap_us, cause):
    path = kineto_file(
        tmp_path,
        [
            Op(COMPUTE, 100, 200, launched=0, took=1),
            Op(COMPUTE, 200 + gap_us, 300, launched=2, took=1),
        ],
    )
    (row,) = rows_of(path, "idle")
    assert row[cause] == pytest.approx(gap_us / 1e6)


@pytest.mark.parametrize(("launches", "full_s"), [(1023, 0), (1024, 1007e-6)])
def test_a_queue_is_full_with_1024_operations(tmp_path, launches, full_s):
    path = kineto_file(
        tmp_path,
        [Op(COMPUTE, 2030 + at, 2030.5 + at, launched=at, took=0) for at in range(launches)],
    )
    (row,) = rows_of(path, "queue")
    assert row["max_length"] == launches
    assert row["full_s"] == pytest.approx(full_s)


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_need_no_operators_are_the_same_without_them(name, tmp_path):
    path = kineto_file(
        tmp_path,
        [
            Op(MATMUL, 100, 140, launched=24),
            Op(COPY, 150, 160, launched=38),
            Op(COMPUTE, 200, 290, launched=64),
        ],
        span("python_function", "model.py(7): forward", 1, 75),
        span("python_function", "nn.Module: Linear_3", 2, 70),
        span("cpu_op", "aten::linear", 10, 70),
        span("user_annotation", "train", 5, 69),
    )
    with_spans, without = (
        tables_of(read_traces([path], detailed=True, spans=spans), [name])[0].rows for spans in (True, False)
    )
    assert (with_spans == without) is not needs_spans([name])


def test_operators_know_inputs_module_line_and_the_gpu_time_below_them(tmp_path):
    path = kineto_file(
        tmp_path,
        [
            Op(MATMUL, 100, 140, launched=24),
            Op(COMPUTE, 150, 160, launched=38),
            Op(MATMUL, 200, 290, launched=64),
        ],
        span("python_function", "model.py(7): forward", 1, 50),
        span("python_function", "nn.Module: Linear_3", 2, 49),
        span("python_function", "torch/nn/modules/linear.py(130): forward", 3, 48),
        span("cpu_op", "aten::linear", 10, 40, **{"Input Dims": [[4, 8], [8, 8]], "Sequence number": 5}),
        span("cpu_op", "aten::addmm", 15, 30, **{"Input type": ["float"], "Sequence number": 5}),
        span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 55, 80, **{"Sequence number": 5}),
        span("cpu_op", "aten::mm", 56, 79),
    )
    rows = {row["operator"]: row for row in rows_of(path, "operators")}

    linear = rows["aten::linear"]
    assert (linear["shapes"], linear["module"], linear["line"]) == (
        "[[4, 8], [8, 8]]",
        "Linear_3",
        "model.py:7 forward",
    )
    assert (linear["gpu_self_s"], linear["gpu_total_s"]) == (pytest.approx(10e-6), pytest.approx(50e-6))
    assert (linear["host_self_s"], linear["host_total_s"]) == (pytest.approx(15e-6), pytest.approx(30e-6))
    assert rows["aten::addmm"]["dtypes"] == "['float']"
    # A backward pass belongs where its forward pass was.
    assert (rows["aten::mm"]["module"], rows["aten::mm"]["line"]) == ("Linear_3", "model.py:7 forward")
    assert [(row["line"], row["operator"], row["gpu_s"]) for row in rows_of(path, "lines")] == [
        ("model.py:7 forward", "aten::mm", pytest.approx(90e-6)),
        ("model.py:7 forward", "aten::addmm", pytest.approx(40e-6)),
        ("model.py:7 forward", "aten::linear", pytest.approx(10e-6)),
    ]


def test_ranges_that_differ_in_numbers_are_one(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    for step in range(3):
        export.nvtx(f"my_decode_{step}", step * 100_000, step * 100_000 + 50_000 + step * 1000)
        export.kernel(
            COMPUTE, step * 100_000 + 20_000, step * 100_000 + 30_000, launched=step * 100_000 + 10_000
        )
    (row,) = rows_of(export.close(), "ranges")
    assert (row["range"], row["count"], row["operations_count"]) == ("my_decode_*", 3, 3)
    assert row["host_median_s"] == pytest.approx(51e-6)
    assert row["gpu_busy_s"] == pytest.approx(30e-6)


def _decodes_with(path, *payloads):
    """Ranges of one pattern, each with a payload as (column, value)."""
    export = NsysExport(path)
    for step, (column, value) in enumerate(payloads):
        start = step * 100_000
        export.kernel(COMPUTE, start + 20_000, start + 30_000, launched=start + 10_000)
        export.nvtx(f"decode_{step}", start, start + 50_000)
        export.nvtx_payload(column, value)
    return export.close()


@pytest.mark.parametrize(
    "column", ["uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue"]
)
def test_numbers_that_a_program_gives_with_its_ranges_are_shown(tmp_path, column):
    path = _decodes_with(tmp_path / "capture.sqlite", (column, 8), (column, 0), (column, 40), (column, None))
    (row,) = rows_of(path, "ranges")
    assert (row["count"], row["payload_mean"], row["payload_min"], row["payload_max"]) == (4, 16.0, 0.0, 40.0)


def test_an_unsigned_number_that_sqlite_has_as_a_negative_one_is_what_it_was(tmp_path):
    (row,) = rows_of(_decodes_with(tmp_path / "capture.sqlite", ("uint64Value", -1)), "ranges")
    assert row["payload_max"] == 2.0**64


def test_numbers_of_several_types_are_of_one_pattern(tmp_path, capsys):
    path = _decodes_with(tmp_path / "capture.sqlite", ("uint64Value", 8), ("doubleValue", 9.5))
    (row,) = rows_of(path, "ranges")
    assert (row["payload_min"], row["payload_max"]) == (8.0, 9.5)
    assert main(["trace", "table", "ranges", str(path)]) == 0
    assert "payload max" in capsys.readouterr().out.replace("_", " ")


@pytest.mark.parametrize("value", ["eight", float("inf"), b"8"])
def test_a_payload_that_is_no_number_is_none(tmp_path, capsys, value):
    path = _decodes_with(tmp_path / "capture.sqlite", ("floatValue", value))
    (row,) = rows_of(path, "ranges")
    assert row["payload_mean"] is None
    assert main(["trace", "table", "ranges", str(path)]) == 0
    assert "payload" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("layer_12.mlp", "layer_*.mlp"), ("fp8_gemm", "fp8_gemm"), ("bs=8 toks=2.5", "bs=* toks=*"), ("7", "*")],
)
def test_patterns_keep_numbers_that_are_part_of_a_word(name, pattern):
    assert pattern_of(name) == pattern


def test_the_command_prints_text_csv_and_json(tmp_path, capsys):
    path = str(kineto_file(tmp_path, [Op("=gemm", 1, 2), Op(COMPUTE, 5, 9)]))
    assert main(["trace", "table", "kernels,os", path, "--rows", "1"]) == 0
    shown = capsys.readouterr().out
    assert "1 more rows" in shown
    assert "record them with `nsys profile --trace=osrt,...`" in " ".join(shown.split())
    assert main(["trace", "table", "kernels", path, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["kernel"][:6] for row in rows][1] == "'=gemm"
    assert main(["trace", "table", "all", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [table["name"] for table in document["tables"]] == list(TABLES)
    assert main(["trace", "table", "kernels", path, "--rank", "3"]) == 2
    assert "No trace is of rank 3; there are 0." in capsys.readouterr().err


def test_a_table_that_does_not_exist_is_refused_with_those_that_do(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["trace", "table", "kernel", str(tmp_path)])
    assert "'kernel' is not a table: choose from kernels, shapes" in " ".join(capsys.readouterr().err.split())
