"""Builds the image of the Dockerfile with buildah, as a user builds it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BASE = "docker.io/library/python:3.11-slim-bookworm"
SOURCES = ("perfd", "collectors", "rules", "deploy/image")
FILES = ("Dockerfile", ".dockerignore", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
ENVIRONMENT = {
    **os.environ,
    "CONTAINERS_CONF": str(HERE / "containers.conf"),
    "CONTAINERS_STORAGE_CONF": str(HERE / "storage.conf"),
    "BUILDAH_ISOLATION": "chroot",
}


def run(*command: str, cwd: Path | None = None, timeout_s: float = 240) -> str:
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


def build(sources: Path, tag: str, *options: str) -> dict[str, Any]:
    """Build an image; returns what buildah says of it."""
    # The build has the network of this machine, and what it needs to use it.
    files = ("/etc/ssl/certs/ca-certificates.crt", "/etc/resolv.conf", "/etc/hosts")
    volumes = [f"--volume={path}:{path}:ro" for path in files if Path(path).exists()]
    options = ("--format=docker", "--timestamp=0", "--pull-never", *options)
    run("buildah", "bud", "--quiet", *options, *volumes, "--tag", tag, str(sources))
    inspected: dict[str, Any] = json.loads(run("buildah", "inspect", "--type", "image", tag))
    return inspected
