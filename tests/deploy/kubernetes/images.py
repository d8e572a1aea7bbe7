"""Builds the image of the Dockerfile with buildah, as a user builds it."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SOURCES = ("perfd", "collectors", "rules", "deploy/image")
FILES = ("Dockerfile", ".dockerignore", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
STORE = ("--root", "/var/lib/perfd-tests", "--runroot", "/run/perfd-tests", "--storage-driver", "overlay")
"""Images and containers of tests, apart from those of this machine; install.sh has the same."""
(BASE,) = re.findall(
    r"^ARG PYTHON=([^@\n]+)@sha256:[0-9a-f]{64}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
)
"""The name of the image's base, of which install.sh makes one without a registry; it has another digest."""
ENVIRONMENT = {
    **os.environ,
    "CONTAINERS_CONF": str(HERE / "containers.conf"),
    "BUILDAH_ISOLATION": "chroot",
}


def buildah(*arguments: str) -> str:
    """What buildah prints."""
    return run("buildah", *STORE, *arguments)


def podman(*arguments: str) -> str:
    """What podman prints."""
    # Of a container that was killed for its memory, conmon leaves a file in the folder where it was started.
    return run("podman", *STORE, "--tmpdir", "/run/perfd-tests/libpod", *arguments, cwd=Path(STORE[1]))


def run(*command: str, cwd: Path | None = None, timeout_s: float = 500) -> str:
    """What a command prints; its end with another code than 0 fails the test, with what it said."""
    found = subprocess.run(
        command, env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert found.returncode == 0, f"{' '.join(command)}: {found.stdout[-4000:]}{found.stderr[-4000:]}"
    return found.stdout


def copy_of_sources(directory: Path) -> Path:
    """The sources as they are at one moment: two builds of them can be compared."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in SOURCES:
        shutil.copytree(ROOT / name, directory / name, ignore=ignored, symlinks=True)
    for name in FILES:
        shutil.copy2(ROOT / name, directory)
    return directory


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that was built."""

    tag: str
    id: str
    layers: Sequence[str]
    config: Mapping[str, Any]


def build(sources: Path, tag: str) -> Image:
    """Build an image from nothing but its base."""
    # The build has the network of this machine, and what it needs to use it.
    files = ("/etc/ssl/certs/ca-certificates.crt", "/etc/resolv.conf", "/etc/hosts")
    volumes = [f"--volume={path}:{path}:ro" for path in files if Path(path).exists()]
    options = ("--format=docker", "--timestamp=0", "--pull-never", "--no-cache", "--quiet")
    base = f"--build-arg=PYTHON=localhost/{BASE}"
    buildah("bud", *options, base, *volumes, "--tag", tag, str(sources))
    found = json.loads(buildah("inspect", "--type", "image", tag))
    return Image(
        tag=tag,
        id=found["FromImageID"],
        layers=tuple(found["OCIv1"]["rootfs"]["diff_ids"]),
        config=found["Docker"]["config"],
    )
