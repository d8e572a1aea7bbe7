"""The image, built from the Dockerfile by buildah."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from deploy.kubernetes.images import ENVIRONMENT, ROOT, STORE, Image, build, buildah
from packaging.utils import canonicalize_name

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (shutil.which("buildah") and os.geteuid() == 0) and not os.environ.get("CI"),
        reason="needs root, buildah and tests/deploy/kubernetes/install.sh",
    ),
]
MOST_BYTES = 140_000_000
"""What perfd may add to its base; it is 115 MB, half of it numpy."""


@pytest.fixture(scope="module")
def container(image: Image) -> Iterator[str]:
    name = buildah("from", "--pull-never", image.id).strip()
    yield name
    buildah("rm", name)


@pytest.fixture(scope="module")
def files(container: str) -> list[Path]:
    """What perfd adds to its base."""
    perfd = Path(buildah("mount", container).strip(), "opt", "perfd")
    return [perfd, *(path for path in perfd.rglob("*") if not path.is_symlink())]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_a_second_build_makes_the_same_layers(image: Image, image_sources: Path) -> None:
    """What is left is buildah's: it writes the name of its container into the image's configuration."""
    again = build(image_sources, f"{image.tag}-again")
    buildah("rmi", "--force", again.tag)
    assert again.layers == image.layers


def test_it_runs_as_nobody_special_and_says_how_it_fares(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["Entrypoint"] == ["perfd"]
    assert image.config["Healthcheck"]["Test"] == ["CMD", "perfd-healthcheck"]


def test_it_is_small_and_has_neither_compiler_nor_pip(files: list[Path]) -> None:
    assert sum(path.stat().st_size for path in files if path.is_file()) < MOST_BYTES
    assert not [path for path in files if path.name == "pip"]
    assert shutil.which("gcc", path=str(files[0].parents[1] / "usr" / "bin")) is None


def test_it_lists_what_is_in_it(files: list[Path]) -> None:
    """As CycloneDX, with licenses, without the base."""
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415  (3 s, as in tests/deploy/kubernetes/chart.py)
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    (listed,) = [path for path in files if path.name == "sbom.cdx.json"]
    text = listed.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    named = {canonicalize_name(one["name"]): one for one in document["components"]}
    (place,) = files[0].glob("lib/python3*/site-packages")
    installed = {canonicalize_name(one.name): one.version for one in distributions(path=[str(place)])}
    assert {name: one["version"] for name, one in named.items()} == {
        name: version for name, version in installed.items() if name != "perfd"
    }
    assert document["metadata"]["component"]["name"] == "perfd"
    # Their packages do not say their license.
    assert {name for name, one in named.items() if not one.get("licenses")} <= {"promql-parser", "protobuf"}


def test_who_runs_in_it_cannot_change_perfd(files: list[Path]) -> None:
    assert [path for path in files if path.stat().st_uid != 0 or path.stat().st_mode & 0o022] == []


def test_the_plugin_for_nccl_loads_with_glibc_2_34(files: list[Path]) -> None:
    """Ubuntu 22.04, on which many images for training stand, has 2.35."""
    (library,) = [path for path in files if path.name == "libnccl-profiler-perfd.so"]
    needed = re.findall(rb"GLIBC_2\.([0-9]+)", library.read_bytes())
    assert 0 < max(int(minor) for minor in needed) <= 34
    assert (files[0] / "lib" / library.name).readlink().name == library.name


def test_health_is_bad_where_nothing_answers(container: str) -> None:
    # A network of its own: other tests run agents and aggregators on this machine.
    command = ["unshare", "--net", "buildah", *STORE, "run", container, "--", "perfd-healthcheck"]
    found = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.count("Traceback")) == (1, 0)
