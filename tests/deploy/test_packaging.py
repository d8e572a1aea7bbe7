"""How perfd is built and installed: in an environment of its own, beside that of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "tests" / "session" / "fake_trainer.py"

LOAD_COLLECTORS = """
from importlib.metadata import entry_points
for one in entry_points(group="perfd.collectors"): one.load()
"""

# pip fetches what builds the package, and what it needs.
pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


class Environment:
    """A virtual environment of this test."""

    def __init__(self, folder: Path, *packages: str | Path) -> None:
        self.folder = folder
        # This Python's pip: to install one in each takes 4 s, and to compile all packages 8 s.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        if packages:
            pip = [sys.executable, "-m", "pip", "--python", self.bin / "python", "install", "--no-compile"]
            subprocess.run([*pip, "--quiet", *packages], check=True)

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def packages(self) -> dict[str, Distribution]:
        (place,) = self.folder.glob("lib/python3*/site-packages")
        return {one.name.lower(): one for one in distributions(path=[str(place)])}

    def run(self, program: str, *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """What a program of it does, away from the sources."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [self.bin / program, *words]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # Without --sdist or --wheel the wheel is made from the source distribution.
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module", params=["oldest", "newest"])
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """An environment of its own, with the oldest or the newest packages that perfd allows."""
    folder = tmp_path_factory.mktemp(request.param)
    return Environment(folder / "venv", wheel, *(oldest(wheel) if request.param == "oldest" else ()))


def oldest(wheel: Path) -> list[str]:
    """What perfd needs, each in the lowest version that is allowed."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    wanted = [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")]
    return [
        f"{one.name}=={next(bound.version for bound in one.specifier if bound.operator == '>=')}"
        for one in wanted
        if one.marker is None
    ]


def test_the_wheel_of_the_source_distribution_has_every_module_and_rule(built: Path, wheel: Path) -> None:
    places = {
        "perfd": "perfd",
        "collectors/perfd_collectors": "perfd_collectors",
        "rules": "perfd/data/rules",
    }
    wanted = {
        str(Path(inside) / path.relative_to(ROOT / place))
        for place, inside in places.items()
        for path in (ROOT / place).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"}
    }
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())

    assert wanted - held == set()
    assert "perfd_collectors/nccl/libnccl-profiler-perfd.so" in held
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    assert tops.isdisjoint({"benchmarks", "tests", "docs"})


def test_it_works_with_the_oldest_and_with_the_newest_packages(
    installed: Environment, tmp_path: Path
) -> None:
    version = installed.packages["perfd"].version
    assert installed.run("perfd", "version", cwd=tmp_path).stdout == f"{version}\n"
    installed.run("python", "-c", LOAD_COLLECTORS, cwd=tmp_path)
    assert "training.yaml" in installed.run("perfd", "rules", "check", cwd=tmp_path).stdout
    replayed = installed.run("perfd", "replay", "pp4_few", "--speed", "max", "--json", cwd=tmp_path)
    (job,) = json.loads(replayed.stdout)["jobs"]
    assert (job["name"], job["steps"]["count"]) == ("pp4_few", 18)
    assert "Warning" not in replayed.stderr


def test_a_job_of_another_environment_is_watched_and_finds_the_plugin(
    installed: Environment, tmp_path: Path
) -> None:
    job = Environment(tmp_path / "job")
    train = tmp_path / "train.py"
    train.write_text(
        "import ctypes, importlib.util, os, runpy\n"
        "assert importlib.util.find_spec('perfd') is None\n"
        "ctypes.CDLL(os.environ['NCCL_PROFILER_PLUGIN'])\n"
        f"runpy.run_path({str(TRAINER)!r})['main'](30, 0.01)\n"
    )
    watched = installed.run("perfd", "run", "--job", "train", "--", job.bin / "python", train, cwd=tmp_path)

    (summary,) = tmp_path.glob("perfd-out/*/summary.json")
    (seen,) = json.loads(summary.read_bytes())["jobs"]
    assert (seen["name"], seen["steps"]["count"]) == ("train", 30)
    assert "plugin" not in watched.stderr


def test_a_loop_with_the_hook_needs_perfd_alone_and_none_of_its_packages(wheel: Path, tmp_path: Path) -> None:
    job = Environment(tmp_path / "job", "--no-deps", wheel)
    loop = "from perfd import hook\nwith hook.StepTimer(report_steps=True).step(): print('stepped')"

    assert job.run("python", "-c", loop, cwd=tmp_path).stdout == "stepped\n"
    assert job.packages.keys() <= {"perfd", "pip", "setuptools"}
