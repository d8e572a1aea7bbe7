"""FLOPs of a step from the modules that XLA dumps for a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from perfd_collectors.model_config import SPEC, ModelConfigOptions
from perfd_collectors.model_config.hlo_dump import dump_folder

from perfd.clock import VirtualClock
from perfd.collector import LocalRank, Settings
from perfd.model import JobDescription
from tests.support.fake_node import FakeNode

JOB, PID = "train", 4711
STARTED_S = 10
"""After the boot of `FakeNode`."""
PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")
LOOP = Path(__file__).with_name("jax_step.py")


def module(name: str = "jit_step", *, size: int = 64, header: str = "", extra: str = "") -> str:
    """A module with one product of matrices, of 2 * 128 * 256 * `size` operations."""
    return f"""HloModule {name}, is_scheduled=true{header}

ENTRY %main (a: bf16[128,{size}], b: bf16[{size},256]) -> bf16[128,256] {{
  %a = bf16[128,{size}]{{1,0}} parameter(0)
  %b = bf16[{size},256]{{1,0}} parameter(1)
{extra}  ROOT %dot = bf16[128,256]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


PRODUCT = 2.0 * 128 * 256 * 64
UNKNOWN_KERNEL = '  %k = bf16[128,64]{1,0} custom-call(%a), custom_call_target="triton_kernel_call"\n'
ENDLESS = """  %w = bf16[128,64]{1,0} while(%a), condition=%cond, body=%body
"""


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    node.process(PID, {"XLA_FLAGS": "--xla_gpu_x=1 --xla_dump_to=dump"})
    node.write_proc(f"{PID}/cmdline", "python\0train.py\0")
    (node.proc / str(PID) / "cwd").symlink_to(tmp_path)
    (tmp_path / "dump").mkdir()
    return node


@pytest.fixture
def settings(node: FakeNode) -> Settings:
    settings = Settings(node="n", job=JOB, clock=VirtualClock(), proc=node.proc, sys=node.sys)
    settings.local_jobs.replace({JOB: os.getuid()}, [LocalRank(JOB, 0, PID)])
    return settings


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return tmp_path / "dump"


def put(dump: Path, number: int, text: str) -> Path:
    name = text.split()[1].rstrip(",")
    path = dump / f"module_{number:04}.{name}.sm_9.0_gpu_after_optimizations.txt"
    path.write_text(text)
    return path


def described(settings: Settings, looks: int = 3, **options: object) -> JobDescription | None:
    source = SPEC.create(ModelConfigOptions(**options), settings)
    said = [record for _ in range(looks) for record in source.collect()]
    return said[-1] if said and isinstance(said[-1], JobDescription) else None


def flops(settings: Settings, **options: object) -> float | None:
    found = described(settings, **options)
    return found.hlo_flops_per_step if found else None


def precision(settings: Settings) -> str | None:
    found = described(settings)
    return found.hlo_precision if found else None


def test_the_module_that_computes_most_is_the_step(settings: Settings, dump: Path) -> None:
    put(dump, 1, module("jit_init", size=2))
    put(dump, 2, module("jit_eval", size=21))
    put(dump, 3, module())
    assert flops(settings) == PRODUCT


def test_a_module_runs_on_all_its_partitions(settings: Settings, dump: Path) -> None:
    put(dump, 3, module(header=", replica_count=2, num_partitions=4"))
    assert flops(settings) == 8 * PRODUCT


def test_a_step_that_compiled_twice_is_one(settings: Settings, dump: Path) -> None:
    put(dump, 3, module())
    put(dump, 5, module())
    assert flops(settings) == PRODUCT


def test_the_dump_is_read_once_nothing_more_comes(settings: Settings, dump: Path) -> None:
    source = SPEC.create(ModelConfigOptions(), settings)
    put(dump, 1, module("jit_eval", size=21))
    assert source.collect() == []
    put(dump, 3, module())
    assert source.collect() == []
    (said,) = source.collect()
    assert isinstance(said, JobDescription)
    assert said.hlo_flops_per_step == PRODUCT


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([module("jit_other", size=40)], id="another one computes as much"),
        pytest.param([module(size=32)], id="a batch of another shape"),
        pytest.param([module("jit_big", size=640, extra=UNKNOWN_KERNEL)], id="a kernel of another library"),
        pytest.param([module("jit_big", size=640, extra=ENDLESS)], id="a loop without a number"),
        pytest.param(["HloModule jit_cut, is_scheduled=true\n"], id="a module that is cut"),
    ],
)
def test_a_step_that_is_not_certain_has_no_flops(settings: Settings, dump: Path, others: list[str]) -> None:
    put(dump, 3, module())
    for at, other in enumerate(others):
        put(dump, 7 + at, other)
    assert flops(settings) is None


GEMM = """  %g = (f32[128,{size}]{{1,0}}, s8[64]{{0}}) custom-call(%c, %d),\
 custom_call_target="__cublas$gemm", backend_config={{\
"gemm_backend_config":{{"dot_dimension_numbers":{{"lhs_contracting_dimensions":["1"]}},\
"precision_config":{{"operand_precision":["{asked}","{asked}"],"algorithm":"{algorithm}"}}}}}}
"""
"""As XLA writes a product that cuBLAS computes."""


@pytest.mark.parametrize(
    ("dtype", "attributes", "expected"),
    [
        ("bf16", "", "bf16"),
        ("f16", "", "fp16"),
        ("f8e4m3fn", "", "fp8"),
        ("f32", "", "tf32"),
        ("f32", ", operand_precision={high,high}", "tf32"),
        ("f32", ", operand_precision={highest,highest}", "fp32"),
        ("f32", ", algorithm=dot_f32_f32_f32", "fp32"),
        ("f32", ", algorithm=dot_tf32_tf32_f32", "tf32"),
        ("f32", ", algorithm=dot_bf16_bf16_f32", "bf16"),
        ("bf16", ", algorithm=dot_bf16_bf16_bf16", "bf16"),
        ("f16", ", algorithm=dot_f16_f16_f16", "fp16"),
        ("f32", ", algorithm=dot_bf16_bf16_f32_x3", "bf16_x3"),
        ("f32", ", algorithm=dot_bf16_bf16_f32_x6", "bf16_x6"),
        ("f32", ", algorithm=dot_bf16_bf16_f32_x9", "bf16_x9"),
        ("f32", ", algorithm=dot_tf32_tf32_f32_x3", "tf32_x3"),
        ("f64", ", algorithm=dot_f64_f64_f64", "fp64"),
        ("bf16", ", operand_precision={highest,highest}", "bf16"),
        ("f64", "", "fp64"),
    ],
)
def test_the_precision_is_that_of_products(
    dtype: str, attributes: str, expected: str, settings: Settings, dump: Path
) -> None:
    text = (
        module()
        .replace("bf16[", f"{dtype}[")
        .replace("rhs_contracting_dims={0}", f"rhs_contracting_dims={{0}}{attributes}")
    )
    put(dump, 3, text)
    assert precision(settings) == expected


@pytest.mark.parametrize(
    ("size", "asked", "algorithm", "expected"),
    [
        (512, "DEFAULT", "ALG_UNSET", "tf32"),
        (512, "HIGHEST", "ALG_UNSET", "fp32"),
        (512, "DEFAULT", "ALG_DOT_F32_F32_F32", "fp32"),
        pytest.param(16, "DEFAULT", "ALG_UNSET", "bf16", id="fewer FLOPs than bf16"),
    ],
)
def test_the_precision_is_that_of_most_flops(
    size: int, asked: str, algorithm: str, expected: str, settings: Settings, dump: Path
) -> None:
    operands = f"  %c = f32[128,64]{{1,0}} parameter(2)\n  %d = f32[64,{size}]{{1,0}} parameter(3)\n"
    put(dump, 3, module(extra=operands + GEMM.format(size=size, asked=asked, algorithm=algorithm)))
    assert precision(settings) == expected


def test_the_precision_is_fp32_where_the_jobs_environment_forbids_tf32(
    node: FakeNode, settings: Settings, dump: Path
) -> None:
    node.process(PID, {"XLA_FLAGS": "--xla_dump_to=dump", "NVIDIA_TF32_OVERRIDE": "0"})
    put(dump, 3, module().replace("bf16[", "f32["))
    assert precision(settings) == "fp32"


def test_an_earlier_runs_modules_do_not_count(settings: Settings, dump: Path) -> None:
    old = put(dump, 1, module("jit_older", size=640))
    os.utime(old, (0, 0))
    put(dump, 3, module())
    assert flops(settings) == PRODUCT


def test_links_and_folders_in_a_dump_are_left_alone(settings: Settings, dump: Path, tmp_path: Path) -> None:
    elsewhere = put(tmp_path, 1, module("jit_secret", size=640))
    (dump / elsewhere.name).symlink_to(elsewhere)
    (dump / "module_0002.x_after_optimizations.txt").mkdir()
    put(dump, 3, module())
    assert flops(settings) == PRODUCT


@pytest.mark.parametrize("calls", ["call(%a), to_apply", "fusion(%a), kind=kLoop, calls"])
def test_computations_that_call_each_other_again_and_again_are_counted_once(
    calls: str, settings: Settings, dump: Path
) -> None:
    """Else a module of sixty lines takes longer than the universe is old."""
    levels = "".join(
        f"%level{at} (a: f32[8]) -> f32[8] {{\n  %a = f32[8]{{0}} parameter(0)\n"
        + "".join(f"  %c{one} = f32[8]{{0}} {calls}=%level{at + 1}\n" for one in range(10))
        + "}\n\n"
        for at in range(60)
    )
    text = module(extra="  %c = f32[8]{0} call(%a), to_apply=%level0\n")
    put(dump, 3, text.replace("ENTRY", f"{levels}ENTRY"))
    assert flops(settings) is None or flops(settings) >= PRODUCT


def test_flops_set_by_the_operator_are_reported_beside_those_of_the_dump(
    settings: Settings, dump: Path
) -> None:
    put(dump, 3, module())
    source = SPEC.create(ModelConfigOptions(flops_per_step=1e15), settings)
    said = [record for _ in range(3) for record in source.collect()]
    assert isinstance(said[-1], JobDescription)
    assert (said[-1].flops_per_step, said[-1].hlo_flops_per_step) == (1e15, PRODUCT)
    assert flops(settings, find=False) is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--xla_dump_to=/a/b", "/a/b"),
        ("--xla_x=1  --xla_dump_to=b --xla_dump_to=c", "/home/job/c"),
        ("--xla_dump_to=-", None),
        ("--not_xla_dump_to=/a", None),
        ("", None),
    ],
)
def test_the_folder_is_that_of_the_flags(flags: str, expected: str | None) -> None:
    assert dump_folder(flags, Path("/home/job")) == (None if expected is None else Path(expected))


@pytest.mark.system
@pytest.mark.skipif(not PYTHON and not os.environ.get("CI"), reason="PERFD_TORCH_PYTHON names no interpreter")
@pytest.mark.parametrize(
    ("job", "runs_of_a_loop", "tolerance_ratio"),
    [
        # XLA counts a loop once, whose steps are known, and of a convolution no products with padding.
        pytest.param("layers", 1, 0.01, id="layers"),
        pytest.param("scan", 6, 0.01, id="scan"),
        pytest.param("convolution", 1, 0.06, id="convolution"),
        pytest.param("sharded", 1, 0.01, id="sharded"),
    ],
)
def test_it_agrees_with_the_cost_analysis_of_jax(
    job: str, runs_of_a_loop: int, tolerance_ratio: float, settings: Settings, dump: Path, tmp_path: Path
) -> None:
    flags = f"--xla_dump_to={dump} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [PYTHON, str(LOOP), job], env=environment, capture_output=True, text=True, check=True
    )
    said = json.loads(result.stdout)
    expected = said["flops"] * said["devices"] * runs_of_a_loop
    assert flops(settings) == pytest.approx(expected, rel=tolerance_ratio)


@pytest.mark.system
@pytest.mark.skipif(not PYTHON and not os.environ.get("CI"), reason="PERFD_TORCH_PYTHON names no interpreter")
def test_the_summary_of_a_run_says_the_flops_and_why_there_is_no_mfu(tmp_path: Path) -> None:
    configuration, enough = tmp_path / "session.yaml", tmp_path / "enough"
    configuration.write_text(
        "aggregator: {http_listen: '127.0.0.1:0'}\n"
        "agent: {capture: {enabled: false}, collectors: {nvml: {enabled: false}}}\n"
    )
    perfd = [sys.executable, "-c", "import sys; from perfd.cli import main; sys.exit(main())", "run"]
    options = ["--config", str(configuration), "--job", JOB, "--out", str(tmp_path / "out")]
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_dump_to={tmp_path / 'dump'}",
        "JAX_PLATFORMS": "cpu",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    with subprocess.Popen(
        [*perfd, *options, "--", PYTHON, str(LOOP), "layers", str(enough)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/", line)))
        while True:
            # The run ends, and with it this, if the FLOPs never come.
            with (
                contextlib.suppress(urllib.error.HTTPError),  # before the first step
                urllib.request.urlopen(f"{address}api/v1/jobs/{JOB}") as response,
            ):
                if '"mfu_source": "hlo"' in json.dumps(json.load(response)):
                    break
            time.sleep(0.2)
        enough.touch()
        said = process.stderr.read()
    # 92 MFLOP in steps of at least 0.1 s.
    assert re.search(r"model FLOP/s per rank +[0-9.]+ MFLOP/s\n", said)
    assert re.search(r"MFU +unknown\. No GPU is known\.\n", said)
