"""Tables of what is in a trace: layers, order, modules, Python functions, overlap, decode steps."""

from __future__ import annotations

import csv
import io
import itertools

import pytest

from perfd.cli import main
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import tables_of
from tests.support.traces import COMPUTE, MATMUL, NCCL, NsysExport, Op, kineto, write_json

_LAYER = (
    ("vllm::rms_norm_kernel", 4),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_tn", 20),
    ("vllm::rotary_embedding_kernel", 3),
    ("vllm::reshape_and_cache_flash_kernel", 2),
    ("flash_fwd_splitkv_kernel", 10),
    ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", 15),
    ("vllm::fused_add_rms_norm_kernel", 4),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", 30),
    ("vllm::act_and_mul_kernel", 5),
    ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", 25),
)
_ROLES = [
    "normalization", "QKV projection", "rotary embedding", "KV cache write", "attention", "output projection",
    "normalization", "feed-forward up", "elementwise", "feed-forward down",
]  # fmt: skip


def rows_of(path, name, in_range=None):
    (table,) = tables_of(read_traces([path], detailed=True), [name], in_range)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def decoding(tokens=20, layers=32):
    """A server that decodes: an embedding, the layers, and a projection to the vocabulary for each token."""
    now = 0.0
    for _ in range(tokens):
        kernels = [
            ("embedding_kernel", 3),
            *_LAYER * layers,
            ("rms_norm", 4),
            ("lm_head_gemm", 50),
            ("argmax", 2),
        ]
        for name, took in kernels:
            yield Op(name, now, now + took)
            now += took + 1


def test_tokens_layers_and_the_operations_of_a_layer_are_found_without_any_range(tmp_path):
    path = write_json(tmp_path / "trace.json", kineto(decoding()))

    rows = rows_of(path, "layers")

    assert {(row["passes_count"], row["layers_count"]) for row in rows} == {(20, 32)}
    assert [(row["position"], row["role"]) for row in rows] == list(enumerate(_ROLES, start=1))
    assert [row["kernel"] for row in rows] == [name for name, _ in _LAYER]
    assert [row["median_s"] for row in rows] == pytest.approx([took * 1e-6 for _, took in _LAYER])
    assert sum(row["layer_share_ratio"] for row in rows) == pytest.approx(1)


@pytest.mark.parametrize(
    "names", [[COMPUTE] * 50, [f"kernel_{at}" for at in range(50)], ["a", "b"] * 50, ["a", "b", "c"] * 2]
)
def test_what_does_not_repeat_as_layers_do_is_none(tmp_path, names):
    path = write_json(
        tmp_path / "trace.json", kineto(Op(name, at * 10, at * 10 + 5) for at, name in enumerate(names))
    )

    assert rows_of(path, "layers") == []


def test_the_layers_of_a_real_job_are_those_of_its_model(shared):
    """Megatron-LM, 24 layers on two stages of 12: backward and forward pass."""
    rows = [row for row in rows_of(shared.nsys, "layers") if row["rank"] == 0]

    assert {(row["layer"], row["layers_count"]) for row in rows} == {("A", 12), ("B", 12)}
    forward = [row["role"] for row in rows if row["layer"] == "B" and row["class"] == "matmul"]
    assert forward == [
        "QKV projection", "attention scores", "attention values", "output projection", "feed-forward up",
        "feed-forward down",
    ]  # fmt: skip


def in_ranges(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    for token, layer in itertools.product(range(2), range(3)):
        begin = (token * 3 + layer) * 100_000
        export.nvtx(f"my_decode_{token}_{layer}", begin, begin + 50_000)
        for at, name in enumerate((MATMUL, COMPUTE)):
            export.kernel(
                name,
                begin + 20_000 + at * 9000,
                begin + 25_000 + at * 9000,
                launched=begin + 10_000 + at * 5000,
            )
    return export.close()


def test_the_kernels_of_one_range_come_in_order(tmp_path):
    rows = rows_of(in_ranges(tmp_path), "timeline", "my_decode_1_2")

    assert [(row["operation"], row["range"]) for row in rows] == [
        (MATMUL, "my_decode_1_2"),
        (COMPUTE, "my_decode_1_2"),
    ]
    assert [row["start_s"] for row in rows] == pytest.approx([0, 9e-6])
    assert [row["gap_s"] for row in rows] == [None, pytest.approx(4e-6)]
    assert rows[0]["duration_s"] == pytest.approx(5e-6)


def test_any_table_can_be_of_ranges_only(tmp_path):
    path = in_ranges(tmp_path)

    assert [row["count"] for row in rows_of(path, "kernels", "my_decode_1_*")] == [3, 3]
    assert [row["count"] for row in rows_of(path, "kernels")] == [6, 6]
    assert [row["count"] for row in rows_of(path, "ranges", "my_decode_0_1")] == [1]


def test_the_innermost_range_names_an_operation(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    export.nvtx("outer", 0, 100_000)
    export.nvtx("inner", 20_000, 40_000)
    for at in (15_000, 30_000, 60_000, 200_000):
        export.kernel(COMPUTE, at + 1000, at + 2000, launched=at)

    assert [row["range"] for row in rows_of(export.close(), "timeline")] == ["outer", "inner", "outer", ""]


def test_a_range_that_no_trace_has_is_refused(tmp_path, capsys):
    assert main(["trace", "table", "kernels", str(in_ranges(tmp_path)), "--range", "other"]) == 2
    assert "No trace has a range other" in capsys.readouterr().err


def test_the_command_prints_one_range(tmp_path, capsys):
    assert (
        main(["trace", "table", "timeline", str(in_ranges(tmp_path)), "--range", "my_decode_0_0", "--csv"])
        == 0
    )
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["operation"] for row in rows] == [MATMUL, COMPUTE]


def test_the_same_name_in_two_domains_is_two_ranges(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    export.nvtx("CCCL", 0, None, kind=75, domain=2)
    for at, domain in enumerate((0, 2, 2)):
        export.nvtx("sort", at * 100_000, at * 100_000 + 50_000, domain=domain)
        export.kernel(COMPUTE, at * 100_000 + 20_000, at * 100_000 + 30_000, launched=at * 100_000 + 10_000)

    rows = rows_of(export.close(), "ranges")

    assert [(row["domain"], row["range"], row["count"]) for row in rows] == [
        ("CCCL", "sort", 2),
        ("", "sort", 1),
    ]


def test_domains_of_a_real_capture_have_their_names(shared):
    found = {(row["domain"], row["range"]) for row in rows_of(shared.nsys, "ranges")}

    assert {("NCCL", "ncclAllReduce"), ("CCCL", "cub::DeviceRadixSort")} <= found


def test_streams_have_priorities(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    export.kernel(COMPUTE, 0, 10)
    export.execute(
        "CREATE TABLE TARGET_INFO_CUDA_STREAM (streamId INTEGER, processId INTEGER, priority INTEGER)"
    )
    for process, priority in ((1, 4294967293), (2, 0)):
        export.execute(f"INSERT INTO TARGET_INFO_CUDA_STREAM VALUES (7, {process}, {priority})")

    assert [row["priority"] for row in rows_of(export.close(), "streams")] == [-3]


def test_calls_into_cudnn_and_cublas_are_a_table(tmp_path):
    export = NsysExport(tmp_path / "capture.sqlite")
    export.kernel(COMPUTE, 0, 10)
    for table, names in {
        "CUDNN_EVENTS": ["cudnnBackendExecute"],
        "CUBLAS_EVENTS": ["cublasGemmEx"] * 2,
    }.items():
        export.execute(
            f"CREATE TABLE {table} (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)"
        )
        for name in names:
            thread = 0x0001000000000000 | 1 << 24 | 9
            export.execute(f"INSERT INTO {table} VALUES (100, 400, {thread}, {export.string(name)})")

    rows = rows_of(export.close(), "libraries")

    assert [(row["call"], row["count"], row["total_s"]) for row in rows] == [
        ("cublasGemmEx", 2, 6e-7), ("cudnnBackendExecute", 1, 3e-7),
    ]  # fmt: skip


def test_kernels_with_a_block_on_each_multiprocessor_look_persistent(tmp_path):
    shapes = {"tiles": [2, 66, 1], "many": [133, 1, 1], "matmul_kernel_persistent": [64, 1, 1]}
    content = kineto(
        Op(name, at * 10, at * 10 + 5, args={"grid": grid, "block": [128, 1, 1]})
        for at, (name, grid) in enumerate(shapes.items())
    )
    content["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]

    rows = rows_of(write_json(tmp_path / "trace.json", content), "shapes")

    assert {row["kernel"]: row["persistent"] for row in rows} == {
        "tiles": "one block per SM", "many": "", "matmul_kernel_persistent": "name",
    }  # fmt: skip


def test_persistent_kernels_of_a_real_capture_are_its_matrix_products(shared):
    rows = [row for row in rows_of(shared.nsys, "shapes") if row["persistent"]]

    assert rows
    assert all("nvjet" in row["kernel"] for row in rows)


def host(category, name, start, end, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": 100, "ts": start, "dur": end - start,
            "args": args}  # fmt: skip


def test_python_functions_have_own_and_cumulative_time(tmp_path):
    content = kineto([Op(COMPUTE, 1, 2)])
    content["traceEvents"] += [
        host("python_function", "engine.py(9): step", 0, 100),
        host("python_function", "scheduler.py(5): schedule_batch", 10, 70),
        host("python_function", "scheduler.py(5): schedule_batch", 20, 50),
        host("python_function", "<built-in method sorted>", 30, 40),
        host("python_function", "engine.py(9): step", 200, 250),
    ]

    rows = {row["function"]: row for row in rows_of(write_json(tmp_path / "t.json", content), "functions")}

    step, schedule = rows["engine.py(9): step"], rows["scheduler.py(5): schedule_batch"]
    assert (step["calls_count"], step["total_s"], step["self_s"]) == (
        2,
        pytest.approx(150e-6),
        pytest.approx(90e-6),
    )
    # A recursive call is in the time of the outer one.
    assert (schedule["calls_count"], schedule["total_s"]) == (2, pytest.approx(60e-6))
    assert schedule["self_s"] == pytest.approx(50e-6)
    assert schedule["total_ratio"] == pytest.approx(0.4)


def test_modules_have_the_bytes_that_their_operators_read(tmp_path):
    content = kineto([Op(MATMUL, 100, 120, launched=24), Op("flash_fwd", 130, 170, launched=64)])
    mm = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    attention = {"Input Dims": [[2, 4, 8, 8]] * 3 + [[]], "Input type": ["c10::Half"] * 3 + ["Scalar"]}
    content["traceEvents"] += [
        host("python_function", "nn.Module: Linear_0", 1, 49),
        host("cpu_op", "aten::mm", 15, 30, **mm),
        host("python_function", "nn.Module: Attention_0", 50, 99),
        host("cpu_op", "aten::_flash_attention_forward", 55, 80, **attention),
    ]

    rows = {row["module"]: row for row in rows_of(write_json(tmp_path / "t.json", content), "modules")}

    assert rows["Attention_0"]["read_bytes"] == 3 * 512 * 2
    assert rows["Attention_0"]["read_bytes_per_s"] == pytest.approx(3072 / 40e-6)
    assert rows["Linear_0"]["read_bytes"] == (32 + 128) * 2
    assert rows["Attention_0"]["read_ratio"] == pytest.approx(3072 / 3392)
    assert rows["Linear_0"]["gpu_ratio"] == pytest.approx(1 / 3)


def test_inputs_of_an_unknown_size_give_no_bytes(tmp_path):
    content = kineto([Op(MATMUL, 100, 120, launched=24)])
    content["traceEvents"] += [
        host("python_function", "nn.Module: Linear_0", 1, 49),
        host("cpu_op", "aten::cat", 15, 30, **{"Input Dims": [[[4], [4]]], "Input type": ["TensorList"]}),
    ]

    (row,) = rows_of(write_json(tmp_path / "t.json", content), "modules")

    assert row["read_bytes"] is row["read_bytes_per_s"] is None


def test_overlap_with_products_is_counted_apart_from_other_computing(tmp_path):
    operations = [
        Op(MATMUL, 0, 100), Op(NCCL, 50, 250, stream=9), Op(COMPUTE, 120, 150), Op(MATMUL, 260, 300),
    ]  # fmt: skip

    (row,) = rows_of(write_json(tmp_path / "t.json", kineto(operations)), "overlap")

    assert (row["beside_matmul_ratio"], row["beside_compute_ratio"]) == (
        pytest.approx(0.25),
        pytest.approx(0.4),
    )
    assert (row["exposed_s"], row["hole_s"]) == (pytest.approx(120e-6), pytest.approx(110e-6))
    assert row["next_class"] == "matmul"


def test_a_prefill_between_decode_steps_delays_them(tmp_path):
    decode, prefill = "step[DECODE bs=8]", "step[EXTEND bs=1 toks=2048]"
    ranges, now = [], 0
    for at in range(12):
        if at == 6:
            ranges.append((prefill, now, now + 90))
            now += 90
        ranges.append((decode, now, now + 9))
        now += 10
    content = kineto([Op(COMPUTE, at, at + 1, launched=at - 1) for at in range(5, 200, 10)], ranges=ranges)

    rows = {row["between"]: row for row in rows_of(write_json(tmp_path / "t.json", content), "decode-gaps")}

    assert (rows["nothing"]["count"], rows["nothing"]["median_s"]) == (10, pytest.approx(10e-6))
    assert (rows["prefill step"]["count"], rows["prefill step"]["max_s"]) == (1, pytest.approx(100e-6))
    assert rows["prefill step"]["delay_s"] == pytest.approx(90e-6)
    assert rows["prefill step"]["longest_at_s"] == pytest.approx(45e-6)
