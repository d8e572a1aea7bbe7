"""Reports of Nsight Compute, read by NVIDIA's interface to them."""

from __future__ import annotations

import csv
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.errors import TraceError
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.roofline.ncu_report import read_ncu
from perfd.trace.roofline.roofline_model import RooflineVerdict
from tests.support import fake_ncu_report

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
GEMM = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": 91.5,
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 40.0,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 30.0,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 25.0,
    "gpu__time_duration.sum": 1_250_500.0,
    "launch__waves_per_multiprocessor": 2.5,
    STALL.format("wait"): 3.5,
    STALL.format("selected"): 9.0,
    STALL.format("long_scoreboard"): 4.5,
}
UNITS = {name: "%" for name in GEMM if "pct_of_peak" in name} | {"gpu__time_duration.sum": "ns"}


@pytest.fixture
def interface(monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", fake_ncu_report)


@pytest.fixture
def no_interface(monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)


@pytest.mark.usefixtures("interface")
def test_a_report_gives_each_kernel_of_each_range(tmp_path):
    path = fake_ncu_report.write_report(
        tmp_path / "x.ncu-rep", [[("gemm", GEMM)], [("add", GEMM), ("tiny", {"x": 1.0})]]
    )
    gemm, add, tiny = read_ncu(path)
    assert (gemm.name, add.name, tiny.name) == ("gemm", "add", "tiny")
    assert gemm.duration_s == pytest.approx(1250.5e-6)
    assert (gemm.compute_ratio, gemm.memory_ratio, gemm.dram_ratio) == pytest.approx((0.915, 0.4, 0.3))
    assert (gemm.occupancy_ratio, gemm.waves, gemm.tensor_ratio) == (0.25, 2.5, None)
    assert gemm.stalls == (("long scoreboard", 4.5), ("wait", 3.5))
    assert (gemm.verdict, gemm.at_limit, tiny.verdict) == (RooflineVerdict.COMPUTE, True, None)


metrics = st.dictionaries(st.sampled_from(list(GEMM)), st.floats(0, 1e6)).map(
    lambda values: {"gpu__time_duration.sum": 5.0} | values
)


@given(st.lists(st.tuples(st.sampled_from(["a", "b<int>"]), metrics), min_size=1, max_size=4))
def test_a_report_and_its_csv_say_the_same(tmp_path_factory, kernels):
    folder = tmp_path_factory.mktemp("ncu")
    report = fake_ncu_report.write_report(folder / "x.ncu-rep", [kernels])
    # A row has all columns on the raw page: each kernel is a page of its own here.
    pages = []
    for at, (name, values) in enumerate(kernels):
        page = folder / f"{at}.csv"
        with page.open("w", newline="", encoding="utf-8") as file:
            rows = [["ID", "Kernel Name", *values], ["", "", *(UNITS.get(metric, "") for metric in values)]]
            csv.writer(file).writerows([*rows, ["0", name, *values.values()]])
        pages += read_ncu(page)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ncu_report", fake_ncu_report)
        assert read_ncu(report) == pages


@pytest.mark.usefixtures("interface")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), None])
def test_what_has_no_value_is_not_known(tmp_path, number):
    kernel = GEMM | {"gpu__time_duration.sum": number}
    (found,) = read_ncu(fake_ncu_report.write_report(tmp_path / "x.ncu-rep", [[("gemm", kernel)]]))
    assert found.duration_s is None


@pytest.mark.usefixtures("interface")
@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([], "no kernel, or it is cut"),
        ([[]], "no kernel, or it is cut"),
        ([[("gemm", GEMM), (None, {})]], "is cut: a kernel has no metrics"),
    ],
)
def test_a_report_that_is_cut_is_one_sentence(tmp_path, ranges, problem):
    path = fake_ncu_report.write_report(tmp_path / "x.ncu-rep", ranges)
    with pytest.raises(TraceError, match=rf"x\.ncu-rep: .*{problem}"):
        read_ncu(path)


@pytest.mark.usefixtures("interface")
def test_a_report_that_the_interface_does_not_understand_is_one_sentence(tmp_path):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0 something else")
    with pytest.raises(TraceError, match="cannot read the report: Failed to load"):
        read_ncu(path)


@pytest.mark.usefixtures("no_interface")
def test_without_the_interface_the_three_ways_to_read_a_report_are_named(tmp_path, capsys):
    path = fake_ncu_report.write_report(tmp_path / "x.ncu-rep", [[("gemm", GEMM)]])
    assert main(["roofline", "--ncu", str(path)]) == 2
    said = capsys.readouterr().err
    assert all(way in said for way in ("perfd[ncu]", "PYTHONPATH", "--csv --page raw")), said


@pytest.mark.usefixtures("interface")
def test_the_verb_reads_a_report(tmp_path, capsys):
    path = fake_ncu_report.write_report(tmp_path / "x.ncu-rep", [[("gemm", GEMM)]])
    assert main(["roofline", "--ncu", str(path), "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert (kernel["name"], kernel["verdict"]) == ("gemm", "compute_bound")


def test_analyze_says_which_verb_reads_such_a_report(tmp_path):
    path = fake_ncu_report.write_report(tmp_path / "x.ncu-rep", [[("gemm", GEMM)]])
    with pytest.raises(TraceError, match="`perfd roofline --ncu` reads it"):
        read_traces([path])
