"""The files of a release, made from this repository as it is."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not shutil.which("helm") and not os.environ.get("CI"),
        reason="needs Helm (deploy/release/install_helm.sh) and packages from a registry",
    ),
]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release of this repository as it is."""
    folder = tmp_path_factory.mktemp("release") / "files"
    command = [sys.executable, ROOT / "deploy" / "release" / "make_release.py", folder, "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_release_is_the_same_wherever_it_is_built(release: Path) -> None:
    """make_release.py itself builds twice; here is what could differ between machines."""
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read("perfd_collectors/nccl/libnccl-profiler-perfd.so")
        dates = {entry.date_time for entry in archive.infolist()}
        (listed,) = [name for name in archive.namelist() if name.endswith("sboms/vendored.cdx.json")]
    assert str(ROOT).encode() not in library
    assert b"perfd-release-" not in library
    assert len(dates) == 1
    assert listed.startswith("perfd-")
    assert "manylinux_2_" in wheel.name
    (sdist,) = release.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert {(member.uid, member.gid, member.uname) for member in archive.getmembers()} == {(0, 0, "")}


def test_every_file_of_a_release_has_its_digest(release: Path) -> None:
    lines = (release / "SHA256SUMS").read_text().splitlines()
    names = {name for _, name in map(str.split, lines)}
    assert names == {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    for digest, name in map(str.split, lines):
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
    assert len([name for name in names if name.endswith((".whl", ".tar.gz", ".tgz", ".cdx.json"))]) == 4


def test_the_list_of_packages_has_those_that_are_pinned(release: Path) -> None:
    (path,) = release.glob("*.cdx.json")
    document = json.loads(path.read_text())
    named = {f"{canonicalize_name(one['name'])}=={one['version']}" for one in document["components"]}
    pinned = (ROOT / "deploy" / "image" / "requirements.txt").read_text()
    assert {"grpcio", "psutil", "rich"} <= {one.split("==")[0] for one in named}
    assert [one for one in named if f"\n{one}" not in pinned] == []
    assert document["metadata"]["component"]["name"] == "perfd"
