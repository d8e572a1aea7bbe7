"""What limits a kernel, from whatever metrics of it Nsight Compute was told to collect."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.errors import TraceError
from perfd.trace.roofline import KernelMetrics, RooflineVerdict, judge, read_ncu

HEADER = [
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
]  # fmt: skip
RULES = ["Rule Name", "Rule Type", "Rule Description"]
SAMPLES = Path(os.environ.get("PERFD_SHARED", "/nowhere")) / "samples" / "ncu"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="PERFD_SHARED has no samples of ncu")


def write(path: Path, rows, *, name="gemm", section="Command line profiler metrics", rules=()) -> Path:
    """A page with a row per metric of one kernel, with what a program printed around it."""
    start = ["0", "1", "python", "h", name, "1", "7", "(128, 1, 1)", "(64, 1, 1)", "0", "9.0"]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("==PROF== Connected to process 1\nstep 1, loss 2.0\n")
        page = csv.writer(file, quoting=csv.QUOTE_ALL)
        page.writerow(HEADER + RULES)
        for metric, unit, value in rows:
            page.writerow([*start, section, metric, unit, value])
        file.write("step 2, loss 1.0\n")
        for rule in rules:
            page.writerow([*start, section, "", "", "", "Rule", "OPT", rule])
    return path


def kernel(**values) -> KernelMetrics:
    return KernelMetrics(name=values.pop("name", "k"), **values)


def test_any_metrics_of_the_command_line_are_read_by_their_raw_names(tmp_path):
    (found,) = read_ncu(
        write(
            tmp_path / "m.csv",
            [
                ("gpu__time_duration.sum", "us", "1,250.5"),
                ("sm__throughput.max.pct_of_peak_sustained_elapsed", "%", "90.0"),
                ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "20.0"),
                ("dram__bytes_read.sum", "Mbyte", "100"),
                ("dram__bytes_write.sum", "Mbyte", "25.1"),
                ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "6,400"),
                ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "request", "200"),
                ("smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct", "%", "47.5"),
                ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "1,000"),
                ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "500"),
                ("launch__registers_per_thread", "register/thread", "168"),
                ("dram__cycles_elapsed.avg.per_second", "Ghz", "1.59"),
                ("smsp__cycles_elapsed.avg.per_second", "Ghz", "1.15"),
            ],
        )
    )
    assert (found.dram_clock_hz, found.sm_clock_hz) == pytest.approx((1.59e9, 1.15e9))
    assert found.duration_s == pytest.approx(1250.5e-6)
    assert (found.compute_ratio, found.dram_ratio) == pytest.approx((0.9, 0.2))
    assert found.dram_bytes == pytest.approx(125.1e6)
    assert found.dram_bytes_per_s == pytest.approx(125.1e6 / 1250.5e-6)
    assert found.load_sectors_per_request == 32
    assert found.stall_ratios == (("long scoreboard", pytest.approx(0.475)),)
    assert found.flops == 2500
    assert found.registers_per_thread == 168
    assert (found.verdict, found.limits) == (RooflineVerdict.COMPUTE, ("compute",))


def test_the_details_page_gives_levels_of_memory_and_what_only_its_sentences_have(tmp_path):
    rules = [
        "Tensor is the highest-utilized pipeline (93.4%) based on elapsed cycles in the workload, taking",
        "On average, each warp of this workload spends 4.7 cycles being stalled waiting on a WARPGROUP.WAIT",
        "49 requests.This results in 30 bank conflicts,  which represent 30% of the overall 100 wavefronts",
    ]
    rows = [
        ("Compute (SM) Throughput", "%", "93.45"),
        ("Memory Throughput", "%", "95.13"),
        ("Memory Throughput", "Gbyte/s", "915.71"),
        ("DRAM Throughput", "%", "19.03"),
        ("L1/TEX Cache Throughput", "%", "96.87"),
        ("L2 Cache Throughput", "%", "41.59"),
        ("Duration", "us", "743.58"),
        ("Block Limit Registers", "block", "1"),
        ("Block Limit Shared Mem", "block", "1"),
        ("Block Limit Warps", "block", "5"),
        ("Achieved Occupancy", "%", "14.77"),
        ("Theoretical Occupancy", "%", "18.75"),
    ]
    (found,) = read_ncu(write(tmp_path / "d.csv", rows, section="GPU Speed Of Light Throughput", rules=rules))
    assert (found.verdict, found.limits) == (RooflineVerdict.COMPUTE, ("tensor", "l1"))
    assert found.dram_bytes == pytest.approx(915.71e9 * 743.58e-6)
    assert found.stalls == (("gmma", 4.7),)
    assert (found.bank_conflicts, found.shared_wavefronts) == (30, 100)
    assert found.occupancy_limiters == ("registers", "shared memory")
    judgment = judge(found)
    assert judgment.summary == "Compute bound: tensor pipes and L1/shared memory at the limit"
    assert not any("fewer bytes" in advice for advice in judgment.advices)


def test_numbers_of_a_language_with_decimal_commas_are_the_same(tmp_path):
    rows = [
        ("gpu__time_duration.sum", "us", "1.250,5"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "64,92"),
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "1,7"),
        ("launch__grid_size", "", "131.072"),
    ]
    (found,) = read_ncu(write(tmp_path / "m.csv", rows))
    assert (found.duration_s, found.compute_ratio) == pytest.approx((1250.5e-6, 0.6492))
    assert found.grid_blocks == 131072


def test_a_file_of_which_nothing_is_understood_is_an_error_with_what_it_has(tmp_path, capsys):
    path = write(tmp_path / "m.csv", [("lrc__average_thing.sum", "", "5")])
    with pytest.raises(
        TraceError, match=r"none of its metrics is one that perfd reads; it has lrc__average_thing"
    ):
        read_ncu(path)
    assert main(["roofline", "--ncu", str(path)]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("ratios", "verdict", "limits"),
    [
        ({"compute_ratio": 0.93, "tensor_ratio": 0.95, "memory_ratio": 0.95, "l1_ratio": 0.97},
         RooflineVerdict.COMPUTE, ("tensor", "l1")),
        ({"compute_ratio": 0.2, "memory_ratio": 0.91, "dram_ratio": 0.91, "l2_ratio": 0.6},
         RooflineVerdict.MEMORY, ("dram",)),
        ({"compute_ratio": 0.2, "memory_ratio": 0.9, "dram_ratio": 0.3, "l2_ratio": 0.9, "l1_ratio": 0.5},
         RooflineVerdict.MEMORY, ("l2",)),
        ({"compute_ratio": 0.5, "memory_ratio": 0.7, "dram_ratio": 0.1, "l2_ratio": 0.2, "l1_ratio": 0.7},
         RooflineVerdict.MEMORY, ("l1",)),
        ({"compute_ratio": 0.7, "memory_ratio": 0.5}, RooflineVerdict.COMPUTE, ("compute",)),
        ({"compute_ratio": 0.001, "memory_ratio": 0.005, "l1_ratio": 0.96}, RooflineVerdict.LATENCY, ()),
        ({"compute_ratio": 0.9}, None, ()),
        ({"dram_ratio": 0.9}, None, ()),
    ],
)  # fmt: skip
def test_the_verdict_names_the_unit_that_limits(ratios, verdict, limits):
    found = kernel(**ratios)
    assert (found.verdict, found.limits) == (verdict, limits)


@pytest.mark.parametrize(
    ("values", "evidence", "advice"),
    [
        ({"name": "cutlass_80_simt_sgemm", "tensor_ratio": 0.0, "compute_ratio": 0.85, "dram_ratio": 0.1},
         "does not use tensor cores", "TF32"),
        ({"occupancy_ratio": 0.1, "limit_registers_blocks": 1, "limit_warps_blocks": 8, "compute_ratio": 0.3,
          "registers_per_thread": 202, "dram_ratio": 0.2},
         "limited by registers (202 registers", "less registers per block"),
        ({"spill_requests": 5000.0}, "spill to local memory: 5,000", "fewer registers"),
        ({"grid_blocks": 16, "sm_count": 132}, "16 blocks do not fill 132 SMs", "more blocks"),
        ({"waves": 1.1}, "1.10 times: its last wave leaves 45.0%", "whole number of waves"),
        ({"load_sectors_per_request": 32.0}, "32.0 sectors per request", "neighboring addresses"),
        ({"bytes_used_per_sector": 12.8}, "12.8 of each 32 bytes", "neighboring addresses"),
        ({"bank_conflicts": 30.0, "shared_wavefronts": 100.0}, "30.0%", "swizzle"),
        ({"active_threads_per_warp": 14.5}, "14.5 of 32 threads", "same branch"),
        ({"stalls": (("long scoreboard", 20.0), ("wait", 2.0))}, "long scoreboard 20.0", "load earlier"),
        ({"stall_ratios": (("barrier", 0.5),)}, "barrier 50.0%", "block barriers"),
        ({"l2_hit_ratio": 0.02, "compute_ratio": 0.1, "dram_ratio": 0.9}, "L2 2.0%", "read once"),
    ],
)  # fmt: skip
def test_each_observation_has_its_evidence_and_its_advice(values, evidence, advice):
    judgment = judge(kernel(**values))
    assert any(evidence in reason.evidence and advice in reason.advice for reason in judgment.reasons), (
        judgment
    )


@pytest.mark.parametrize(
    "values",
    [
        {"waves": 62.06},
        {"load_sectors_per_request": 4.0},
        {"bytes_used_per_sector": 0.0},
        {"active_threads_per_warp": 31.9},
        {"grid_blocks": 8192, "sm_count": 132},
    ],
    ids=str,
)
def test_what_is_as_it_should_be_is_no_observation(values):
    assert judge(kernel(**values)).reasons == ()


def test_operations_and_bytes_give_a_point_for_each_level_of_memory():
    found = kernel(flops=1e9, duration_s=1e-3, dram_bytes=1e7, l2_bytes=5e7)
    assert found.roofline_points == {"dram": (100.0, 1e12), "l2": (20.0, 1e12)}


_ratios = st.none() | st.floats(0, 1.5)


@given(_ratios, _ratios, _ratios, _ratios, _ratios, _ratios)
def test_a_limit_is_always_a_unit_of_the_verdict(compute, memory, dram, l2, l1, tensor):
    found = kernel(
        compute_ratio=compute,
        memory_ratio=memory,
        dram_ratio=dram,
        l2_ratio=l2,
        l1_ratio=l1,
        tensor_ratio=tensor,
    )
    judge(found)
    if found.limits:
        computing = found.limits[0] in {"tensor", "compute"}
        assert computing is (found.verdict is RooflineVerdict.COMPUTE)


@needs_samples
def test_real_pages_of_an_h200_give_the_same_verdicts_by_metrics_and_by_details():
    details, metrics = (read_ncu(SAMPLES / name) for name in ("h200-full-details.csv", "h200-metrics.csv"))
    assert [one.verdict for one in details] == [one.verdict for one in metrics]
    product = details[7]
    assert product.name.startswith("nvjet_sm90")
    assert product.limits == ("tensor", "l1")
    assert metrics[7].limits == ("tensor",)
    assert details[10].limits == ("dram", "l2")
    assert any("TF32" in advice for advice in judge(metrics[2]).advices)
    assert any("branch" in advice for advice in judge(details[8]).advices)
    assert any("neighboring addresses" in advice for advice in judge(details[11]).advices)


@needs_samples
@pytest.mark.parametrize("ending", ["html", "md"])
def test_a_report_has_summary_metrics_findings_and_recommendations(tmp_path, ending):
    path = tmp_path / f"kernels.{ending}"
    assert main(["roofline", "--ncu", str(SAMPLES / "h200-full-details.csv"), "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    for section in ("Summary", "Metrics", "Findings", "Recommendations"):
        assert section in text, section
