"""Whole modules of optimized HLO: what each operation does at least, and the sum against a measured step."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from perfd.cli import main
from perfd.errors import PerfdError
from perfd.trace.roofline import hlo_costs, read_module

SHARED = (
    Path(os.environ.get("PERFD_SHARED", "/nowhere"))
    / "traces"
    / "jax-fsdp4"
    / "after_optimizations.hlo.txt.gz"
)
MODULE = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%fused_dot (p0: bf16[128,64], p1: bf16[64,256]) -> bf16[128,256] {
  %p0 = bf16[128,64]{1,0} parameter(0)
  %p1 = bf16[64,256]{1,0} parameter(1)
  ROOT %dot.1 = bf16[128,256]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%fused_slice (p0.1: bf16[12,128,64], p1.1: s32[]) -> bf16[1,128,64] {
  %p0.1 = bf16[12,128,64]{2,1,0} parameter(0)
  %p1.1 = s32[] parameter(1)
  ROOT %ds = bf16[1,128,64]{2,1,0} dynamic-slice(%p0.1, %p1.1), dynamic_slice_sizes={1,128,64}
}

%body (arg: (s32[], bf16[128,64], bf16[64,256])) -> (s32[], bf16[128,64], bf16[64,256]) {
  %arg = (s32[], bf16[128,64]{1,0}, /*index=2*/bf16[64,256]{1,0}) parameter(0)
  %gemm_fusion = bf16[128,256]{1,0} fusion(%arg#1, %arg#2), kind=kCustom, calls=%fused_dot
  %blas = (bf16[128,256]{1,0}, s8[1024]{0}) custom-call(%arg#1, %arg#2), custom_call_target=\
"__cublas$lt$matmul", backend_config=\
{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  ROOT %t = (s32[], bf16[128,64]{1,0}, bf16[64,256]{1,0}) tuple(%arg#0, %arg#1, %arg#2)
}

%cond (arg.1: (s32[])) -> pred[] {
  %arg.1 = (s32[]) parameter(0)
  ROOT %lt = pred[] compare(%arg.1#0, %arg.1#0), direction=LT
}

ENTRY %main (a: bf16[128,64], b: bf16[64,256], c: bf16[12,128,64]) -> bf16[128,64] {
  %a = bf16[128,64]{1,0} parameter(0)
  %b = bf16[64,256]{1,0} parameter(1)
  %c = bf16[12,128,64]{2,1,0} parameter(2)
  %zero = s32[] constant(0)
  %init = (s32[], bf16[128,64]{1,0}, bf16[64,256]{1,0}) tuple(%zero, %a, %b)
  %while.1 = (s32[], bf16[128,64]{1,0}, bf16[64,256]{1,0}) while(%init), \
condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %slice_fusion = bf16[1,128,64]{2,1,0} fusion(%c, %zero), kind=kLoop, calls=%fused_slice
  %copy.1 = bf16[128,64]{0,1} copy(%a)
  %on_chip = bf16[128,64]{1,0:T(8,128)(2,1)S(1)} negate(%a)
  %ar = bf16[128,64]{1,0} all-reduce(%a), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%cond
  %ag = bf16[512,64]{1,0} all-gather(%a), replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %rs = bf16[64,64]{1,0} reduce-scatter(%a), replica_groups=mesh['x'=2,'y'=4] {'x'}, dimensions={0}, \
to_apply=%cond
}
"""


@pytest.fixture
def found():
    return {cost.name: cost for cost in hlo_costs(read_module(MODULE))}


def test_bodies_of_loops_count_as_often_as_they_run_and_fusions_compute_what_is_inside(found):
    dot = 2 * 128 * 256 * 64
    moved = 2 * (128 * 64 + 64 * 256 + 128 * 256)
    for name in ("gemm_fusion", "blas"):
        cost = found[name]
        assert (cost.count, cost.flops, cost.traffic_bytes, cost.precision) == (12, dot, moved, "bf16")
    assert found["blas"].operation == "__cublas$lt$matmul"


def test_a_fusion_reads_only_what_it_slices(found):
    assert found["slice_fusion"].traffic_bytes == 2 * 2 * 128 * 64 + 4


def test_arrays_on_the_chip_are_not_traffic_of_main_memory(found):
    assert found["on_chip"].traffic_bytes == 2 * 128 * 64
    assert found["copy.1"].note == "changes the layout"


@pytest.mark.parametrize(("name", "size", "group"), [("ar", 1, 4), ("ag", 4, 4), ("rs", 1, 2)])
def test_collectives_have_the_size_of_their_groups_in_every_spelling(found, name, size, group):
    cost = found[name]
    assert (cost.message_bytes, cost.group_size) == (size * 2 * 128 * 64, group)
    assert cost.minimum_s(1.0, 1.0, 1e9) > 0
    assert cost.minimum_s(1.0, 1.0, None) == 0


def test_the_verb_sums_a_module_and_compares_it_with_a_measured_step(tmp_path, capsys):
    path = tmp_path / "m.txt.gz"
    path.write_bytes(gzip.compress(MODULE.encode()))
    assert main(["roofline", "--hlo", str(path), "--gpu", "H100", "--time", "1e-3", "--json"]) == 0
    module = json.loads(capsys.readouterr().out)["module"]
    assert module["flops"] == pytest.approx(24 * 2 * 128 * 256 * 64, rel=0.01)
    assert module["attainable_ratio"] == pytest.approx(module["compute_minimum_s"] / 1e-3)
    assert main(["roofline", "--hlo", str(path), "--gpu", "TPU v5e"]) == 0
    assert "1 copies only change a layout" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "hello", "HloModule x\n", MODULE[:400]])
def test_what_is_no_whole_module_is_one_sentence(text, tmp_path, capsys):
    with pytest.raises(PerfdError):
        read_module(text)
    path = tmp_path / "m.txt"
    path.write_text(text)
    assert main(["roofline", "--hlo", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(not SHARED.is_file(), reason="PERFD_SHARED has no HLO of a real job")
def test_the_module_of_a_real_step_is_read_whole():
    rows = hlo_costs(read_module(gzip.decompress(SHARED.read_bytes()).decode()))
    products = [row for row in rows if row.operation == "__cublas$lt$matmul"]
    assert len(products) == 16
    assert all(row.flops for row in products)
    assert {row.group_size for row in rows if row.message_bytes} == {2}
    assert max(row.count for row in rows) == 12


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_too_large_for_a_module_is_refused(tmp_path, monkeypatch, capsys, packed):
    path = tmp_path / "module.txt"
    path.write_bytes(gzip.compress(MODULE.encode()) if packed else MODULE.encode())
    monkeypatch.setattr("perfd.cli.tables.module_roofline._MAX_BYTES", len(MODULE.encode()))
    assert main(["roofline", "--hlo", str(path), "--gpu", "H100"]) == 0

    monkeypatch.setattr("perfd.cli.tables.module_roofline._MAX_BYTES", len(MODULE.encode()) - 1)
    assert main(["roofline", "--hlo", str(path), "--gpu", "H100"]) == 2

    assert "it is larger than" in capsys.readouterr().err


def test_a_product_of_scaled_blocks_is_a_product(tmp_path, capsys):
    path = tmp_path / "m.txt"
    path.write_text(
        "HloModule m\n\nENTRY %main (x: f8e4m3fn[64,128], w: f8e4m3fn[128,32]) -> f32[64,32] {\n"
        "  %x = f8e4m3fn[64,128]{1,0} parameter(0)\n  %w = f8e4m3fn[128,32]{1,0} parameter(1)\n"
        "  %s = f8e8m0fnu[64,4]{1,0} parameter(2)\n  %t = f8e8m0fnu[4,32]{1,0} parameter(3)\n"
        "  ROOT %d = f32[64,32]{1,0} scaled-dot(%x, %w, %s, %t), lhs_contracting_dims={1},"
        " rhs_contracting_dims={0}\n}\n"
    )
    assert main(["roofline", "--hlo", str(path), "--gpu", "B200", "--json"]) == 0
    (product,) = json.loads(capsys.readouterr().out)["module"]["operations"]
    assert (product["flops"], product["precision"]) == (2 * 64 * 128 * 32, "fp8")
