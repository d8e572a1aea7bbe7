"""The collector that describes the software of the jobs on a node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from perfd_collectors.software import SPEC
from perfd_collectors.software.collector import SoftwareOptions

from perfd.clock import VirtualClock
from perfd.collector import LocalRank, Settings
from perfd.errors import NothingHere
from perfd.model import JobDescription
from perfd.testing.collector_contract import check_collector

JOB, PID = "train", 4711
SITE = "venv/lib/python3.12/site-packages"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A node with one process, which has PyTorch mapped."""
    root = tmp_path / "root"
    for name in ("torch-2.4.0.dist-info", "nvidia_nccl_cu12-2.20.5.dist-info"):
        (root / SITE / name).mkdir(parents=True)
    folder = tmp_path / "proc" / str(PID)
    folder.mkdir(parents=True)
    (folder / "root").symlink_to(root)
    (folder / "maps").write_text(f"0-1 r-xp 0 0:0 0 /{SITE}/torch/lib/libtorch.so\n")
    settings = Settings(node="n", job=JOB, clock=VirtualClock(), proc=tmp_path / "proc")
    settings.local_jobs.replace({JOB: os.getuid()}, [LocalRank(JOB, 0, PID)])
    return settings


def loads_nccl(settings: Settings) -> None:
    with (settings.proc / str(PID) / "maps").open("a") as file:
        file.write(f"1-2 r-xp 0 0:0 0 /{SITE}/nvidia/nccl/lib/libnccl.so.2\n")


def test_it_keeps_the_contract(settings: Settings) -> None:
    records = check_collector(SPEC, settings)
    assert [type(record) for record in records] == [JobDescription]


def test_it_reports_what_is_new_and_repeats_it_seldom(settings: Settings) -> None:
    collector = SPEC.create(SoftwareOptions(), settings)
    found = {"Python": "3.12", "PyTorch": "2.4.0"}

    assert collector.collect() == [JobDescription(job=JOB, framework="", software=found)]
    assert collector.collect() == []
    loads_nccl(settings)
    assert collector.collect() == [
        JobDescription(job=JOB, framework="", software={"NCCL": "2.20.5", **found})
    ]
    assert [len(collector.collect()) for _ in range(60)] == [0] * 59 + [1]


def test_a_process_is_looked_at_in_its_first_minutes_only(settings: Settings) -> None:
    collector = SPEC.create(SoftwareOptions(), settings)
    for _ in range(64):
        collector.collect()
    loads_nccl(settings)

    later = [record for _ in range(60) for record in collector.collect()]
    assert later
    assert all("NCCL" not in one.software for one in later)
    settings.local_jobs.replace({JOB: os.getuid()})
    assert collector.collect() == []
    settings.local_jobs.replace({JOB: os.getuid()}, [LocalRank(JOB, 0, PID)])
    assert "NCCL" in collector.collect()[0].software


def test_a_process_that_is_gone_or_hidden_is_no_error(settings: Settings) -> None:
    (settings.proc / str(PID) / "maps").unlink()
    assert SPEC.create(SoftwareOptions(), settings).collect() == []

    (settings.proc / str(PID) / "maps").write_text(f"0-1 r-xp 0 0:0 0 /{SITE}/torch/lib/libtorch.so\n")
    (settings.proc / str(PID) / "root").unlink()
    (found,) = SPEC.create(SoftwareOptions(), settings).collect()
    assert found.software == {"Python": "3.12"}


def test_the_driver_is_that_of_the_node(settings: Settings) -> None:
    driver = settings.proc / "driver" / "nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")

    (found,) = SPEC.create(SoftwareOptions(), settings).collect()
    assert found.software["NVIDIA driver"] == "550.54.15"


def test_without_proc_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(NothingHere):
        SPEC.create(SoftwareOptions(), Settings(node="n", job=JOB, proc=tmp_path / "none"))


@pytest.fixture(scope="module")
def torch_process() -> Iterator[subprocess.Popen[str]]:
    python = os.environ.get("PERFD_TORCH_PYTHON")
    if python is None:
        if os.environ.get("CI"):
            pytest.fail("needs PERFD_TORCH_PYTHON")
        pytest.skip("needs PERFD_TORCH_PYTHON")
    script = (
        "import sys, torch; print(torch.__version__, '.'.join(map(str, torch.cuda.nccl.version())),"
        " '{}.{}'.format(*sys.version_info), flush=True); input()"
    )
    with subprocess.Popen(
        [python, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate("\n")


@pytest.mark.system
def test_a_real_process_has_the_versions_that_it_says(torch_process: subprocess.Popen[str]) -> None:
    assert torch_process.stdout is not None
    torch, nccl, python = torch_process.stdout.readline().split()
    settings = Settings(node="n", job=JOB)
    settings.local_jobs.replace({JOB: os.getuid()}, [LocalRank(JOB, 0, torch_process.pid)])

    (found,) = SPEC.create(SoftwareOptions(), settings).collect()

    assert found.software["PyTorch"] == torch.partition("+")[0]
    assert found.software["NCCL"] == nccl
    assert found.software["Python"] == python
    assert found.software["CUDA runtime"].count(".") == 2
