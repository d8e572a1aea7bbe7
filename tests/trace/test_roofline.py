"""Rooflines: from shapes, from a line of HLO, and from Nsight Compute's CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak
from perfd.cli import main
from perfd.errors import PerfdError, TraceError
from perfd.trace.roofline.hlo_line import read_line, shapes
from perfd.trace.roofline.ncu_report import read_ncu
from perfd.trace.roofline.roofline_model import OperationWork, RooflineVerdict, matmul, place

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
_GPU = GpuPeak(
    name="T", match=["T"], flops={"bf16": 1e12, "fp32": 1e11}, memory_bytes_per_s=1e10, source="-", date="-"
)
"""A ridge of 100 operations a byte."""


def test_a_product_counts_two_operations_a_step_and_each_matrix_once():
    work = matmul(10, 20, 30, "bf16", batch=2)

    assert work.flops == 2 * 2 * 10 * 20 * 30
    assert work.traffic_bytes == 2 * (10 * 30 + 30 * 20 + 10 * 20) * 2


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((4096, 4096, 4096), RooflineVerdict.COMPUTE), ((4096, 1, 4096), RooflineVerdict.MEMORY)],
)
def test_the_ridge_decides_without_a_time(sizes, expected):
    assert place(matmul(*sizes, "bf16"), _GPU).verdict is expected


@pytest.mark.parametrize(
    ("share", "expected", "at_limit"),
    [
        (0.9, RooflineVerdict.COMPUTE, True),
        (0.7, RooflineVerdict.COMPUTE, False),
        (0.3, RooflineVerdict.COMPUTE, False),
    ],
)
def test_a_measured_time_shows_how_far_from_the_roof_it_is(share, expected, at_limit):
    work = OperationWork(name="w", flops=1e12, traffic_bytes=1e9, precision="bf16")

    found = place(work, _GPU, time_s=1 / share)

    assert found.verdict is expected
    assert found.attainable_ratio == pytest.approx(share)
    assert found.at_limit is at_limit


def test_a_product_too_small_to_fill_the_gpu_is_bound_by_latency_and_a_large_one_is_not():
    tiny, large = matmul(64, 64, 64, "bf16"), matmul(8192, 8192, 8192, "bf16")

    assert place(tiny, _GPU, time_s=5e-6).verdict is RooflineVerdict.LATENCY
    found = place(large, _GPU, time_s=2.0)
    assert found.verdict is RooflineVerdict.COMPUTE
    assert found.attainable_ratio == pytest.approx(0.55, abs=0.01)


@given(flops=st.floats(1, 1e18), traffic=st.floats(1, 1e15), time=st.floats(1e-9, 1e6))
def test_the_roof_is_never_higher_than_either_limit(flops, traffic, time):
    found = place(OperationWork(name="w", flops=flops, traffic_bytes=traffic, precision="bf16"), _GPU, time)

    assert found.attainable_flops_per_s <= found.peak_flops_per_s * (1 + 1e-9)
    limit = found.intensity_flops_per_byte * found.memory_bytes_per_s
    assert found.attainable_flops_per_s <= limit * (1 + 1e-9)
    assert found.attainable_ratio == pytest.approx(max(found.peak_ratio, found.bandwidth_ratio))


def test_a_peak_that_the_table_does_not_have_is_an_error():
    with pytest.raises(PerfdError, match="no fp8 peak of T"):
        place(matmul(8, 8, 8, "fp8"), _GPU)


_DOT = (
    "%dot.5 = bf16[64,100]{1,0} dot(bf16[64,32]{1,0} %a, bf16[32,100]{1,0} %b), "
    "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
)


def test_a_dot_contracts_what_it_says():
    work = read_line(_DOT)

    assert work.flops == 2 * 64 * 100 * 32
    assert work.traffic_bytes == 2 * (64 * 100 + 64 * 32 + 32 * 100)
    assert work.precision == "bf16"


def test_a_batched_dot_counts_its_batch_once():
    work = read_line(
        "ROOT dot.9 = f32[4,8,16]{2,1,0} dot(f32[4,8,32]{2,1,0} a, f32[4,32,16]{2,1,0} b), "
        "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    )

    assert work.flops == 2 * 4 * 8 * 16 * 32
    assert work.precision == "tf32"


def test_tiles_pad_along_the_layout():
    (rows, columns) = shapes("bf16[100,130]{1,0:T(8,128)(2,1)} bf16[100,130]{0,1:T(8,128)}")

    assert rows.padded_elements == 104 * 256
    assert columns.padded_elements == 128 * 136
    assert rows.size_bytes == 104 * 256 * 2


def test_padding_is_reported():
    work = read_line(_DOT.replace("bf16[64,100]{1,0}", "bf16[64,100]{1,0:T(8,128)}"))

    assert work.notes == ("Tiling pads bf16[64,100] to 1.28 times its size.",)


def test_a_convolution_multiplies_its_window_by_its_input_features():
    work = read_line(
        "%conv.1 = f32[8,56,56,64]{3,2,1,0} convolution(f32[8,58,58,32]{3,2,1,0} %x, "
        "f32[3,3,32,64]{3,2,1,0} %w), "
        "window={size=3x3}, dim_labels=b01f_01io->b01f"
    )

    assert work.flops == 2 * 8 * 56 * 56 * 64 * 3 * 3 * 32


def test_element_wise_work_is_held_against_the_vector_peak():
    work = read_line("%add.1 = bf16[1024]{0} add(bf16[1024]{0} %a, bf16[1024]{0} %b)")

    assert (work.flops, work.traffic_bytes, work.precision) == (1024, 3 * 2048, "fp32")
    assert place(work, _GPU).verdict is RooflineVerdict.MEMORY


def test_a_copy_computes_nothing():
    assert read_line("%copy.1 = f32[64]{0} copy(f32[64]{0} %a)").flops == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "Not a line of HLO"),
        ("%x", "Not a line of HLO"),
        ("%dot.1 = f32[8,8] dot(%a, %b)", "shapes of its operands"),
        ("%dot.1 = f32[8,8] dot(f32[8,8] %a, f32[8,8] %b)", "contracts"),
        ("%dot.1 = f32[8,8] dot(f32[8,8] %a, f32[8,8] %b), lhs_contracting_dims={7}", "contracts"),
        ("%all-reduce.1 = f32[8] all-reduce(f32[8] %a)", "communicates"),
        ("%fusion.1 = f32[8] fusion(f32[8] %a), kind=kLoop", "not on its line"),
        ("%a = f32[8,8]{1,2} add(f32[8] %a, f32[8] %b)", "does not fit"),
        ("%a = f99[8] add(f99[8] %a, f99[8] %b)", "unknown dtype"),
        ("%a = f32[99999999999999999] add(f32[8] %a)", "No array"),
    ],
)
def test_a_line_that_shows_nothing_is_one_clear_sentence(line, words):
    with pytest.raises(PerfdError, match=words):
        read_line(line)


@given(st.text(alphabet="%=abdot(){}[]f3216,:T ", max_size=80))
def test_any_line_is_work_or_an_error(line):
    with suppress(PerfdError):
        read_line(line)


_COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def _csv(path, rows, start=""):
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    path.write_text(start + text.getvalue(), encoding="utf-8")
    return path


def _raw(path):
    header = [
        "ID", "Process ID", "Kernel Name", "gpu__time_duration.sum", _COMPUTE, _MEMORY,
        _STALL.format("long_scoreboard"), _STALL.format("wait"),
    ]  # fmt: skip
    rows = [
        header,
        ["", "", "", "usecond", "%", "%", "inst", "inst"],
        ["0", "9", "gemm", "1,250.5", "91.5", "40", "2.5", "3.5"],
        ["1", "9", "add", "10", "12", "88", "9", "1"],
        ["2", "9", "tiny", "2", "12", "8", "", "n/a"],
    ]
    return _csv(path, rows, start="==PROF== Connected to process 9\n==PROF== Disconnected\n")


def test_the_raw_page_gives_throughputs_stalls_and_a_verdict(tmp_path):
    gemm, add, tiny = read_ncu(_raw(tmp_path / "raw.csv"))

    assert gemm.duration_s == pytest.approx(1250.5e-6)
    assert gemm.compute_ratio == pytest.approx(0.915)
    assert (gemm.verdict, gemm.at_limit) == (RooflineVerdict.COMPUTE, True)
    assert gemm.stalls == (("wait", 3.5), ("long scoreboard", 2.5))
    assert (add.verdict, add.at_limit) == (RooflineVerdict.MEMORY, True)
    assert (tiny.verdict, tiny.at_limit) == (RooflineVerdict.LATENCY, False)


def test_the_details_page_gives_the_same_from_a_row_a_metric(tmp_path):
    light = "GPU Speed Of Light Throughput"
    rows = [
        ["ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name"],
        ["0", "gemm", light, "Compute (SM) Throughput", "%", "91.5"],
        ["0", "gemm", light, "Memory Throughput", "%", "40"],
        ["0", "gemm", light, "Duration", "ns", "1250500"],
        ["0", "gemm", "Memory Workload Analysis", "Memory Throughput", "byte/second", "1e12"],
        ["0", "gemm", "Occupancy", "Achieved Occupancy", "%", "25"],
        ["0", "gemm", light, "", "", "", "SOLBottleneck"],
    ]

    (gemm,) = read_ncu(_csv(tmp_path / "details.csv", rows))

    assert gemm.compute_ratio == pytest.approx(0.915)
    assert gemm.memory_ratio == pytest.approx(0.4)
    assert gemm.duration_s == pytest.approx(1250.5e-6)
    assert gemm.occupancy_ratio == pytest.approx(0.25)
    assert gemm.verdict is RooflineVerdict.COMPUTE


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "==ERROR== no report\n", '"ID","Kernel Name","x__y"\n'])
def test_another_file_is_one_clear_sentence(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(TraceError, match=r"x\.csv: (not a CSV|the report has no kernels)"):
        read_ncu(path)


@pytest.mark.parametrize(
    "header",
    [
        ["ID", "Kernel Name", "Abschnitt", "Metrikname", "Metrikeinheit", "Metrikwert", "Regelname"],
        ["ID", "Kernelname", "Abschnitt", "Metrikname", "Metrikeinheit", "Metrikwert", "Regelname"],
        ["ID", "Kernel Name", "节名称", "指标名称", "指标单位", "指标值", "规则名称"],
        ["ID", "Kernel Name", "nom de section", "nom de métrique", "unité de métrique", "valeur", "règle 1"],
    ],
)
@pytest.mark.parametrize("cells", [6, 7])
def test_columns_that_are_not_in_english_are_named_as_the_reason(tmp_path, header, cells):
    row = ["0", "gemm", "GPU Speed Of Light Throughput", "Duration", "ns", "1250500", ""][:cells]

    with pytest.raises(
        TraceError, match=r"x\.csv: its header is not one that perfd knows.* in English.*ncu --import"
    ):
        read_ncu(_csv(tmp_path / "x.csv", [header, row]))


def test_a_raw_page_with_short_rows_is_truncated(tmp_path):
    rows = [["ID", "Kernel Name", "gpu__time_duration.sum"], ["", "", "ns"], ["0", "gemm"]]

    with pytest.raises(TraceError, match="the CSV is truncated"):
        read_ncu(_csv(tmp_path / "x.csv", rows))


@pytest.mark.parametrize("cut", range(2, 40))
def test_a_cut_csv_never_invents_a_number(tmp_path, cut):
    path = _raw(tmp_path / "raw.csv")
    whole = read_ncu(path)
    path.write_text(path.read_text(encoding="utf-8")[:-cut], encoding="utf-8")

    with suppress(TraceError):
        assert read_ncu(path) == whole[: len(read_ncu(path))]


def test_the_verb_prints_the_placement(capsys):
    assert (
        main(["roofline", "--matmul", "8192x8192x8192", "--gpu", "H100", "--time", "1.5e-3", "--json"]) == 0
    )

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "perfd.roofline/1"
    assert document["operation"]["verdict"] == "compute_bound"
    assert document["operation"]["peak_ratio"] == pytest.approx(2 * 8192**3 / 1.5e-3 / 989.4e12, rel=1e-3)


def test_the_verb_shows_kernels_of_a_report(tmp_path, capsys):
    assert main(["roofline", "--ncu", str(_raw(tmp_path / "raw.csv"))]) == 0
    assert "compute bound: SM pipes, at limit" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--matmul", "8x8"],
        ["--matmul", "8x8x8", "--gpu", "Voodoo"],
        ["--matmul", "0x8x8"],
        ["--ncu", "none.csv"],
    ],
)
def test_what_cannot_be_placed_is_one_sentence(arguments, capsys):
    assert main(["roofline", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def _points(picture):
    """Where the circles of a picture are, and what they say."""
    tree = ET.fromstring(picture)
    circles = [one for one in tree.iter() if one.tag.endswith("circle")]
    return [(float(one.get("cx")), float(one.get("cy")), "".join(one.itertext())) for one in circles]


def test_the_picture_is_one_file_that_needs_nothing_else(tmp_path, capsys):
    path = tmp_path / "r.svg"
    assert main(["roofline", "--matmul", "4096x4096x1024", "--time", "6e-5", "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    ((_, _, reported),) = _points(text)
    assert reported == "matmul 4096 x 4096 x 1024 bf16: compute bound, 57.9% of the peak"
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(?:href|src|url|@import)", text)


def test_kernels_lie_where_their_shares_of_the_peaks_put_them(tmp_path):
    path = tmp_path / "r.html"
    assert main(["roofline", "--ncu", str(_raw(tmp_path / "raw.csv")), "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    points = _points(text[text.index("<svg") : text.index("</svg>") + 6])
    assert len(points) == sum(1 for kernel in read_ncu(tmp_path / "raw.csv") if kernel.verdict)
    busiest = min(points, key=lambda point: point[1])
    assert "compute bound" in busiest[2], "the highest is the one that computes most"
    assert "at its limit" in text, "the thresholds are told"


@pytest.mark.parametrize(
    ("name", "heading", "nothing"),
    [("r.html", "<h2>{}</h2>", r"</h2>\s*</section>"), ("r.md", "## {}\n", r"\n## [^\n]+\n+(?:## |$)")],
)
def test_a_report_has_no_heading_with_nothing_below_it(tmp_path, name, heading, nothing):
    path = tmp_path / name
    assert main(["roofline", "--ncu", str(_raw(tmp_path / "raw.csv")), "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert all(heading.format(title) in text for title in ("Metrics", "Findings", "Recommendations"))
    assert not re.search(nothing, text)


def test_an_operation_without_a_time_lies_on_the_roof(tmp_path):
    path = tmp_path / "r.svg"
    for sizes in ("4096x64x64", "8192x8192x8192"):
        main(["roofline", "--matmul", sizes, "-o", str(path)])
        picture = path.read_text(encoding="utf-8")
        ((x, y, reported),) = _points(picture)
        assert "at most, as no time was given" in reported
        (roof,) = re.findall(r'class="roof" points="([^"]+)"', picture)
        corners = [tuple(map(float, corner.split(","))) for corner in roof.split()]
        assert y == pytest.approx(np.interp(x, *zip(*corners, strict=True)), abs=0.1)


def test_a_copy_has_a_report_and_no_picture(tmp_path, capsys):
    line = "%copy.1 = bf16[64,128]{1,0} copy(bf16[64,128]{1,0} %a)"
    assert main(["roofline", "--hlo", line, "-o", str(tmp_path / "r.html")]) == 0
    assert "<svg" not in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert main(["roofline", "--hlo", line, "-o", str(tmp_path / "r.svg")]) == 2
    assert "name it .md, .html or .json" in capsys.readouterr().err


def test_the_report_of_a_roofline_is_json_too(tmp_path):
    assert main(["roofline", "--matmul", "64x64x64", "-o", str(tmp_path / "r.json")]) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["schema"] == "perfd.report/1"
    assert all(metric["source"] for metric in document["metrics"])


def test_a_roofline_that_nobody_measured_is_less_sure_than_one_with_a_time(tmp_path):
    def confidence(*time):
        words = ["roofline", "--matmul", "4096x4096x4096", *time, "--output", str(tmp_path / "r.json")]
        assert main(words) == 0
        (found,) = json.loads((tmp_path / "r.json").read_text())["findings"]
        return found["confidence"]

    assert confidence() < confidence("--time", "0.0003")


def test_a_small_operation_is_reported_in_small_units(capsys):
    assert main(["roofline", "--matmul", "64x100x32"]) == 0
    reported = capsys.readouterr().out
    assert "409.6 kFLOP" in reported
    assert "23.3 kB" in reported
    assert "at least 4.9 ns" in reported


def test_what_nsight_compute_measured_on_a_gpu_is_read_as_it_shows_it():
    random, product, addition = read_ncu(FIXTURES / "ncu-2025.3-h200-raw.csv")
    assert [kernel.duration_s for kernel in (random, product, addition)] == pytest.approx(
        [42.752e-6, 174.528e-6, 23.296e-6]
    )
    assert (product.compute_ratio, product.memory_ratio, product.dram_ratio) == pytest.approx(
        (0.9022, 0.6978, 0.1317)
    )
    assert product.tensor_ratio == pytest.approx(0.95, abs=0.001)
    assert [kernel.verdict for kernel in (random, product, addition)] == [
        RooflineVerdict.COMPUTE,
        RooflineVerdict.COMPUTE,
        RooflineVerdict.MEMORY,
    ]
    assert [kernel.at_limit for kernel in (random, product, addition)] == [False, True, False]
    assert addition.stalls[0][0] == "long scoreboard"


def test_figures_that_no_source_confirms_are_marked_where_they_are_shown(capsys):
    def shown(gpu: str, *more: str) -> str:
        assert main(["roofline", "--matmul", "4096x4096x4096", "--gpu", gpu, *more]) == 0
        return capsys.readouterr().out

    assert "165.0 TFLOP/s (bf16, dense, unverified)" in shown("A30")
    assert "933.0 GB/s (unverified)" in shown("A30")
    assert "unverified" not in shown("H200 NVL")
    assert "(int8, dense, unverified)" in shown("H200 NVL", "--dtype", "int8")
    operation = json.loads(shown("H200 NVL", "--dtype", "int8", "--json"))["operation"]
    assert operation["unverified"] == ["int8"]
