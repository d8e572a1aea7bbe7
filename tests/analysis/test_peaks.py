"""The table of dense peaks: names, order, and an operator's own rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfd.analysis.flops.gpu_peak_lookup import find_gpu, find_peak
from perfd.errors import ConfigError
from perfd.gpu_peaks import load_peaks


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H800", "bf16", 989.4),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA GB300", "bf16", 2500),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-PG509-200", "bf16", 312),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA L4", "bf16", 121),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_a_gpu_has_its_own_dense_peak_and_not_that_of_a_name_inside_its_name(name, precision, tflops):
    assert find_peak(load_peaks(), name, precision) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s"),
    [("NVIDIA A100-SXM4-40GB", 1555), ("NVIDIA A100 80GB PCIe", 1935), ("NVIDIA A100-SXM4-80GB", 2039)],
)
def test_boards_of_one_chip_differ_in_memory(name: str, gigabytes_per_s: float):
    row = find_gpu(load_peaks(), name)
    assert row is not None
    assert row.memory_bytes_per_s == pytest.approx(gigabytes_per_s * 1e9)


def test_what_the_table_does_not_know_has_no_peak():
    table = load_peaks()
    assert find_peak(table, "NVIDIA Z9000", "bf16") is None
    assert find_peak(table, "Tesla V100-SXM2-32GB", "bf16") is None
    assert find_peak(table, "NVIDIA H200", None) is None
    assert find_peak(table, "NVIDIA H200", "int3") is None


def test_a_sparse_figure_is_nowhere_in_the_table():
    for row in load_peaks().gpus:
        if "bf16" in row.flops and "fp8" in row.flops:
            assert row.flops["fp8"] == pytest.approx(2 * row.flops["bf16"], rel=0.02), row.name


def test_every_row_names_its_source_and_date():
    for row in load_peaks().gpus:
        assert row.source, row.name
        assert len(row.date) == len("2026-01-31"), row.name


def test_every_row_can_be_reached():
    table = load_peaks()
    for row in table.gpus:
        assert any(find_gpu(table, f"{pattern} X1") is row for pattern in row.match), row.name


def test_every_row_is_found_by_its_own_name_however_it_is_written():
    table = load_peaks()
    for row in table.gpus:
        for name in (row.name, *row.called):
            for spelling in (
                name,
                name.upper(),
                name.replace(" ", "-"),
                name.replace(" ", ""),
                f"NVIDIA {name}",
            ):
                assert find_gpu(table, spelling) is row, spelling


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s"),
    [("A100 SXM 80 GB", 2039), ("A100", 2039), ("GH200 144G", 4900), ("V100 SXM2 32 GB", 900)],
)
def test_what_people_write_gives_the_bandwidth_of_that_board(name: str, gigabytes_per_s: float):
    row = find_gpu(load_peaks(), name)
    assert row is not None
    assert row.memory_bytes_per_s == pytest.approx(gigabytes_per_s * 1e9)


def test_the_sxm_board_of_a_v100_is_faster_than_the_card():
    assert find_peak(load_peaks(), "V100 SXM2 32 GB", "fp16") == pytest.approx(125e12)
    assert find_peak(load_peaks(), "V100 PCIe 32 GB", "fp16") == pytest.approx(112e12)


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [("TPU v4", 275), ("TPU v5 lite", 197), ("TPU v5p", 459), ("TPU v5", 459), ("TPU v6 lite", 918)],
)
def test_a_tpu_is_known_by_what_jax_calls_its_kind(kind: str, tflops: float):
    assert find_peak(load_peaks(), kind, "bf16") == pytest.approx(tflops * 1e12)


def test_whole_numbers_of_a_byte_have_a_peak_where_tensor_cores_do_them():
    table = load_peaks()
    assert find_peak(table, "NVIDIA A100-SXM4-80GB", "int8") == pytest.approx(624e12)
    assert find_peak(table, "NVIDIA H100 80GB HBM3", "int8") == pytest.approx(1978.9e12)
    assert find_peak(table, "NVIDIA A100-SXM4-80GB", "fp8") is None


def test_rows_of_an_operator_win_over_the_built_in_ones(tmp_path: Path):
    file = tmp_path / "peaks.yaml"
    file.write_text(
        "gpus:\n- {name: ours, match: [B200], flops: {BF16: 2.2e+15}, source: measured, date: '2026-01-31'}\n"
    )
    table = load_peaks(file)
    assert find_peak(table, "NVIDIA B200", "bf16") == 2.2e15
    assert find_peak(table, "NVIDIA GB200", "bf16") == 2.5e15


def test_a_wrong_file_is_named_with_the_path_of_the_mistake(tmp_path: Path):
    file = tmp_path / "peaks.yaml"
    file.write_text("gpus:\n- {name: ours, match: [B200], flop: {bf16: 1}, source: s, date: d}\n")
    with pytest.raises(ConfigError, match=rf"{file}.*`gpus\.0`"):
        load_peaks(file)


def test_every_unverified_figure_is_one_of_its_row_and_every_row_else_was_checked():
    fields = ("memory_bytes", "memory_bytes_per_s", "nvlink_bytes_per_s", "pcie_bytes_per_s", "peak_clock_hz")
    for row in load_peaks().gpus:
        stated = {*row.flops, *(field for field in fields if getattr(row, field) is not None)}
        assert {*row.unverified} <= stated, row.name
        assert row.checked or {*row.flops} <= {*row.unverified}, row.name


def test_what_no_source_confirms_is_unverified_and_the_rest_is_not():
    row = find_gpu(load_peaks(), "NVIDIA H200 NVL")
    assert row is not None
    assert row.unverified_of("int8", "bf16", "memory_bytes_per_s") == ("int8",)


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [("NVIDIA B300 SXM6 AC", "int8", 150), ("NVIDIA GB300", "int8", 165), ("TPU v5 lite", "int8", 393)],
)
def test_whole_numbers_are_slow_where_the_hardware_gave_them_up(name: str, precision: str, tflops: float):
    assert find_peak(load_peaks(), name, precision) == pytest.approx(tflops * 1e12)


ROW = "  - {name: X, match: [X], flops: {BF16: 1.0e+15}, source: own, date: '2026-01-01'"


def test_an_operators_row_may_mark_its_figures_and_needs_no_pages(tmp_path: Path):
    path = tmp_path / "peaks.yaml"
    path.write_text(f"gpus:\n{ROW}, unverified: [bf16, memory_bytes]}}\n", encoding="utf-8")

    row = find_gpu(load_peaks(path), "X")

    assert row is not None
    assert (row.flops, row.unverified_of("bf16"), row.checked) == ({"bf16": 1e15}, ("bf16",), ())


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ("[fp9]", "'fp9' is not a figure of X"),
        ("[name]", "'name' is not a figure of X"),
        ("bf16", "must be a list"),
    ],
)
def test_a_mark_of_something_else_is_an_error_that_names_it(tmp_path: Path, marks: str, message: str):
    path = tmp_path / "peaks.yaml"
    path.write_text(f"gpus:\n{ROW}, unverified: {marks}}}\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=message) as error:
        load_peaks(path)

    assert "gpus" in str(error.value)
