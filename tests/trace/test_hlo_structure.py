"""HLO: tiles, layouts, sharding, measured times, the graph, and lines of a trace viewer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.cli import main
from perfd.errors import PerfdError
from perfd.trace.readers.trace_files import read_traces
from perfd.trace.roofline import (
    hlo_costs,
    layout_copies,
    read_fragment,
    read_line,
    read_module,
    sharded_products,
)
from perfd.trace.roofline.hlo_line import shapes
from tests.support.traces import write_json
from tests.trace.test_hlo_module import MODULE

JAX = Path(os.environ.get("PERFD_SHARED", "/nowhere")) / "traces" / "jax-fsdp4"
PROFILE = """\
Op 1: reduce.6 | 0.5 ms
Op 2: fusion.1 | 12.3 ms
→ bf16[4096]{0:T(1024)} = fusion(
bf16[4096,8192]{1,0:T(8,128)} %param.1,
bf16[8192]{0:T(1024)} %reduce.6)
Op 3: fusion.2 | 11.8 ms
→ bf16[8192]{0:T(1024)} = fusion(
bf16[8192,4096]{1,0:T(8,128)} %param.2,
bf16[4096]{0:T(1024)} %fusion.1)
Op 4: all-reduce.1 | 2.1 ms
→ replica_groups={{0,16,32,48,64,80,96,112},...}
"""
SCATTER = (
    "%fusion.3 = bf16[32,32,4096]{2,1,0:T(8,128)(2,1)S(1)} fusion(bf16[32,32,8192]{2,1,0:T(8,128)(2,1)S(1)}"
    " %fusion.32), kind=kCustom, calls=%all-reduce-scatter.3"
)
LAYOUTS = """\
HloModule m

ENTRY %main (a: bf16[128,64], b: bf16[64,256]) -> bf16[128,256] {
  %a = bf16[128,64]{1,0:T(8,128)} parameter(0)
  %b = bf16[64,256]{1,0} parameter(1)
  %copy.1 = bf16[128,64]{0,1:T(8,128)} copy(%a)
  %gathered = bf16[64,256]{1,0} all-gather(%b), replica_groups={{0,1,2,3}}, dimensions={0}
  %dot.1 = bf16[128,256]{1,0} dot(%copy.1, %gathered), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %cast = bf16[128,256]{1,0} convert(%dot.1)
  ROOT %sum = bf16[128,256]{1,0} all-reduce(%cast), replica_groups={{0,1}}, to_apply=%add
}
"""


@pytest.mark.parametrize(
    ("shape", "padded"),
    [
        ("f32[3,5]{1,0:T(2,2)}", 24),
        ("bf16[8,128]{1,0:T(8,128)(2,1)}", 1024),
        # Tiles of 8 x 128, each in tiles of 3 x 1: 8 rows take the room of 9.
        ("bf16[8,128]{1,0:T(8,128)(3,1)}", 1152),
        ("s8[100]{0:T(256)(128)(4,1)}", 512),
        ("f32[5]{0:T(8,128)}", 1024),
        ("bf16[3,5,7]{0,1,2:T(4,2)}", 7 * 8 * 4),
    ],
)
def test_tiles_within_tiles_pad_too(shape, padded):
    assert shapes(shape)[0].padded_elements == padded


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=3)
)
def test_padding_is_never_smaller_and_fills_whole_tiles(sizes, tile):
    size, order, tiles = (",".join(map(str, one)) for one in (sizes, range(len(sizes) - 1, -1, -1), tile))
    (found,) = shapes(f"f32[{size}]{{{order}:T({tiles})}}")
    room = 1
    for one in tile:
        room *= one
    assert found.padded_elements >= found.elements
    assert found.padded_elements % room == 0


def test_a_line_explains_its_layouts_and_where_arrays_are(capsys):
    work = read_line("%copy.1 = f32[3,5]{0,1:T(2,2)S(1)} copy(f32[3,5]{1,0} %a)")

    assert work.arrays == (
        (
            "f32[3,5]",
            "0 (3), 1 (5), minor to major",
            "2x2: 1.60 times its size",
            "on the chip (VMEM)",
        ),
        ("f32[3,5]", "1 (5), 0 (3), minor to major", "none", "main memory (HBM)"),
    )
    line = "%add.1 = bf16[16,256]{1,0:T(8,128)(2,1)} add(bf16[16,256]{1,0} %a, bf16[16,256]{1,0} %b)"
    assert main(["roofline", "--gpu", "TPU v4", "--hlo", line]) == 0
    assert "2x1 in 8x128" in capsys.readouterr().out


def test_a_fusion_is_taken_for_a_product_if_its_shapes_allow_one():
    work = read_line(
        "%fusion.1 = bf16[4,64,100]{2,1,0} fusion(bf16[4,64,32]{2,1,0} %a, bf16[4,32,100]{2,1,0} %b)"
    )

    assert (work.flops, work.precision) == (2 * 4 * 64 * 100 * 32, "bf16")
    assert work.notes == ("Assumed to be a matrix product from its shapes: it contracts 32.",)
    with pytest.raises(PerfdError, match="not on its line"):
        read_line("%fusion.1 = bf16[64,100] fusion(bf16[64,32] %a, bf16[64,100] %b)")


def test_an_unnamed_profile_is_a_feed_forward_pair_over_eight_devices(tmp_path, capsys):
    """The guides' exercise: products over 8,192 and 4,096, a sum over 8 devices, so 32,768 in all."""
    module, times_s = read_fragment(PROFILE)
    costs = {cost.name: cost for cost in hlo_costs(module)}
    (sharded,) = sharded_products(module, {name: cost.group_size for name, cost in costs.items()})

    assert times_s == {"reduce.6": 0.5e-3, "fusion.1": 12.3e-3, "fusion.2": 11.8e-3, "all-reduce.1": 2.1e-3}
    assert [costs[name].flops for name in ("fusion.1", "fusion.2")] == [2 * 4096 * 8192] * 2
    assert (costs["all-reduce.1"].group_size, costs["all-reduce.1"].message_bytes) == (8, 2 * 8192)
    assert (sharded.name, sharded.contracted, sharded.reduced_over) == ("fusion.2", 4096, 8)
    path = tmp_path / "profile.txt"
    path.write_text(PROFILE)
    assert main(["roofline", "--hlo", str(path), "--gpu", "TPU v4"]) == 0
    assert "a shard of 32768" in " ".join(capsys.readouterr().out.split())


def test_a_line_that_communicates_has_its_least_time(capsys):
    """The guides' reduce-scatter: bytes and devices follow from its shapes."""
    assert main(["roofline", "--gpu", "TPU v4", "--hlo", SCATTER, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["module"]["operations"]

    assert (found["operation"], found["group_size"]) == ("reduce-scatter", 2)
    assert found["message_bytes"] == 2 * 32 * 32 * 8192
    # A ring's factor of 1/2 over one direction of the link.
    assert found["minimum_s"] == pytest.approx(found["message_bytes"] / 2 / 3e11)


def test_layout_copies_name_what_they_copy_and_for_whom(tmp_path, capsys):
    module = read_module(LAYOUTS)
    (copy,) = layout_copies(module)

    assert (copy.name, copy.source, copy.readers) == ("copy.1", "a", ["dot.1"])
    assert (copy.before, copy.after) == ("{1,0:T(8,128)}", "{0,1:T(8,128)}")
    path = tmp_path / "m.txt"
    path.write_text(LAYOUTS)
    assert main(["roofline", "--hlo", str(path), "--gpu", "TPU v4", "--time", "1e-3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Layout.AUTO" in shown
    assert "copy.1: bf16[128,64] from {1,0:T(8,128)} of a to {0,1:T(8,128)} for dot.1" in shown
    assert "with_sharding_constraint" in shown


def test_products_know_over_what_they_are_split():
    module = read_module(LAYOUTS)
    (found,) = sharded_products(module, {cost.name: cost.group_size for cost in hlo_costs(module)})

    assert (found.name, found.contracted, found.reduced_over, found.gathered_over) == ("dot.1", 64, 2, 4)
    assert "dimension of 64 is a shard of 128 and gathers an operand from 4 devices" in found.words


def test_near_what_is_attainable_nothing_is_doubted(tmp_path, capsys):
    path = tmp_path / "m.txt"
    path.write_text(LAYOUTS)
    assert main(["roofline", "--hlo", str(path), "--gpu", "TPU v4", "--time", "2e-7"]) == 0
    assert "with_sharding_constraint" not in capsys.readouterr().out


def jax_trace(tmp_path):
    """Two steps of one device: a product of 12 runs each, and what is of another module."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "Stream #13(Compute)"}},
    ]
    events += [
        {"ph": "X", "pid": 1, "tid": 1, "ts": at * 10, "dur": 4, "name": "nvjet", "args": {"hlo_op": "blas"}}
        for at in range(24)
    ]
    # Of 24 runs one is recorded, the others are in graphs.
    events.append(
        {"ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "name": "k", "args": {"hlo_op": "gemm_fusion"}}
    )
    events.append(
        {"ph": "X", "pid": 1, "tid": 1, "ts": 240, "dur": 10, "name": "k", "args": {"hlo_op": "other"}}
    )
    return write_json(tmp_path / "t.json", {"traceEvents": events})


def test_a_trace_gives_operations_their_measured_time(tmp_path, capsys):
    path = tmp_path / "m.txt"
    path.write_text(MODULE)
    command = ["roofline", "--hlo", str(path), "--gpu", "H100", "--trace", str(jax_trace(tmp_path)), "--json"]
    assert main(command) == 0
    module = json.loads(capsys.readouterr().out)["module"]

    measured = {one["name"]: one["measured_s"] for one in module["operations"]}
    assert (measured["blas"], measured["gemm_fusion"]) == (pytest.approx(48e-6), None)
    assert module["time_s"] == pytest.approx(125e-6)
    work = 2 * 12 * 2 * 128 * 256 * 64
    assert module["matrix_unit_ratio"] == pytest.approx(work / 989.4e12 / 125e-6, rel=0.01)


def test_modules_of_one_step_are_measured_each(tmp_path, capsys):
    """Each step: 12 products of the module for 100 µs, then two of another with the same name for 20 µs."""
    path = tmp_path / "m.txt"
    path.write_text(MODULE)
    trace = json.loads(jax_trace(tmp_path).read_text())
    trace["traceEvents"] = trace["traceEvents"][:2] + [
        {"ph": "X", "pid": 1, "tid": 1, "ts": step * 200 + start, "dur": length, "name": "nvjet"}
        | {"args": {"hlo_op": "blas", "hlo_module": module}}
        for step in range(3)
        for start, length, module in (
            *((at * 8, 12 if at == 11 else 4, "jit_step") for at in range(12)),
            *((130 + at * 10, 10, "jit_update") for at in range(2)),
        )
    ]
    file = write_json(tmp_path / "two.json", trace)
    assert main(["roofline", "--hlo", str(path), "--gpu", "H100", "--trace", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["module"]

    assert {one["name"]: one["measured_s"] for one in found["operations"]}["blas"] == pytest.approx(56e-6)
    assert found["time_s"] == pytest.approx(100e-6)
    assert found["other_modules_s"] == {"jit_update": pytest.approx(20e-6)}
    assert main(["roofline", "--hlo", str(path), "--gpu", "H100", "--trace", str(file)]) == 0
    assert "Other modules of the step: jit_update 20.0 µs." in capsys.readouterr().out


def test_a_trace_of_another_module_is_refused(tmp_path, capsys):
    path = tmp_path / "m.txt"
    path.write_text(LAYOUTS)
    assert main(["roofline", "--hlo", str(path), "--trace", str(jax_trace(tmp_path))]) == 2
    assert "no operations of m" in capsys.readouterr().err


def test_the_graph_around_an_operation_has_what_it_reads_and_its_readers(tmp_path):
    path, picture = tmp_path / "m.txt", tmp_path / "g.svg"
    path.write_text(LAYOUTS)
    assert main(["roofline", "--hlo", str(path), "--around", "%dot.1", "--output", str(picture)]) == 0
    labels = [one.text for one in ET.parse(picture).iter() if one.tag.endswith("text")]

    assert {
        "dot.1 (dot)",
        "copy.1 (copy)",
        "a (parameter)",
        "gathered (all-gather)",
        "sum (all-reduce)",
    } <= set(labels)
    assert sum(one.tag.endswith("path") for one in ET.parse(picture).iter()) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--around", "dot.1"], "name it with --around"),
        (["--output", "g.svg"], "name it with --around"),
        (["--around", "nothing", "--output", "g.svg"], "no operation nothing"),
        (["--around", "dot.1", "--output", "g.png"], "name it .svg"),
    ],
)
def test_a_graph_needs_an_operation_and_a_picture(options, words, tmp_path, capsys):
    path = tmp_path / "m.txt"
    path.write_text(LAYOUTS)
    assert main(["roofline", "--hlo", str(path), *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--trace", "t.json"], ["--around", "dot.1"]])
def test_what_is_of_a_module_needs_one(option, capsys):
    assert main(["roofline", "--matmul", "8x8x8", *option]) == 2
    assert "need a module" in capsys.readouterr().err


def test_an_operation_may_go_on_in_the_next_lines():
    module, _ = read_fragment("%add.1 = f32[8] add(\n  f32[8] %a, \n\n  f32[8] %b)\n%c = f32[8] copy(%add.1)")

    operations = module.computations[module.entry]
    assert operations["add.1"].operands == (("a", None), ("b", None))
    assert operations["c"].operation == "copy"


@given(st.text(alphabet="%=abfusion(){}[]16,| ms→.\n", max_size=200))
def test_any_lines_are_operations_or_an_error(text):
    try:
        module, _ = read_fragment(text)
    except PerfdError:
        return
    assert hlo_costs(module) is not None


@pytest.mark.skipif(not JAX.is_dir(), reason="PERFD_SHARED has no trace of a real job")
def test_the_real_trace_is_joined_with_its_module(capsys):
    files = [str(JAX / name) for name in ("after_optimizations.hlo.txt.gz", "jax.trace.json.gz")]
    assert main(["roofline", "--hlo", files[0], "--trace", files[1], "--gpu", "H200", "--json"]) == 0
    module = json.loads(capsys.readouterr().out)["module"]

    assert 0.15 < module["time_s"] < 0.17
    assert 0.2 < module["matrix_unit_ratio"] < 0.4
    joined = [one for one in module["operations"] if one["measured_s"]]
    assert len(joined) > 20
    # No product and no collective is faster than its least time.
    exact = [one for one in joined if one["precision"] != "fp32" or one["message_bytes"]]
    assert len(exact) > 10
    faster = [one["name"] for one in exact if one["measured_s"] <= one["minimum_s"]]
    # 131 MB over NVLink in 23 µs cannot be: the trace names a kernel after it that moves something else.
    assert faster == ["all-gather.10.1"]


@pytest.mark.skipif(not JAX.is_dir(), reason="PERFD_SHARED has no trace of a real job")
def test_kernels_that_send_and_receive_for_an_all_to_all_are_one():
    trace = read_traces([JAX / "jax.trace.json.gz"])[0]

    assert {one.name for one in trace.collectives} == {"allgather", "allreduce", "alltoall", "reducescatter"}
