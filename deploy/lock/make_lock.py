"""Pins everything that is installed from a package registry, with its hashes.

python deploy/lock/make_lock.py [--check | --upgrade]

Pins that still fit stay as they are; `--upgrade` renews all. `--check` needs no network: it compares with
pyproject.toml what is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[.*\])?==(?P<version>[^ ;\\]+)")
_BY_PERFD = re.compile(r"# {1,3}(?:via )?perfd \(pyproject\.toml")


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock file and what of pyproject.toml it is for."""

    path: str
    project: bool = False
    """Whether it has what perfd itself needs."""
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    beside: str | None = None
    """The lock file of the environment that this one is installed into."""


DEVELOPMENT = Lock(path="deploy/lock/development.txt", project=True, groups=("dev",))
LOCKS = (
    Lock(path="deploy/image/requirements.txt", project=True, extras=("remote-write", "otlp")),
    Lock(
        path="deploy/image/requirements-wandb.txt",
        project=True,
        extras=("remote-write", "otlp", "wandb"),
    ),
    Lock(
        path="deploy/image/requirements-scale.txt",
        project=True,
        extras=("remote-write", "otlp", "nats", "s3", "postgres"),
    ),
    Lock(path="deploy/image/requirements-pip.txt", groups=("pip",)),
    Lock(path="deploy/image/requirements-build.txt", groups=("build",)),
    Lock(path="deploy/image/requirements-sbom.txt", groups=("sbom",)),
    DEVELOPMENT,
    Lock(path="deploy/lock/documentation.txt", groups=("docs",), beside=DEVELOPMENT.path),
    Lock(path="deploy/lock/frameworks.txt", groups=("frameworks",)),
    Lock(path="deploy/lock/services.txt", groups=("services",)),
    Lock(path="deploy/lock/release.txt", groups=("release",)),
)


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package of a lock file."""

    name: str
    version: str | None
    hashed: bool
    direct: bool
    """Whether pyproject.toml names it, and not only another package."""


def pins(text: str) -> Iterator[Pin]:
    """What a lock file pins. A package may be there twice, for different versions of Python."""
    for block in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        found = _PIN.match(block)
        yield Pin(
            name=canonicalize_name(found["name"] if found else re.split(r"[^A-Za-z0-9._-]", block)[0]),
            version=found["version"] if found else None,
            hashed="--hash=sha256:" in block,
            direct=_BY_PERFD.search(block) is not None,
        )


def wanted(lock: Lock, pyproject: Mapping[str, Any]) -> list[Requirement]:
    """What pyproject.toml asks for and this lock file is for."""
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    lines = list(project["dependencies"]) if lock.project else []
    for extra in lock.extras:
        lines += project["optional-dependencies"][extra]
    for group in lock.groups:
        lines += _group(group, groups)
    return [Requirement(line) for line in lines]


def _group(name: str, groups: Mapping[str, Any]) -> Iterator[str]:
    for item in groups[name]:
        if isinstance(item, str):
            yield item
        else:
            yield from _group(item["include-group"], groups)


def complaints(lock: Lock, text: str, pyproject: Mapping[str, Any]) -> list[str]:
    """What does not agree, a sentence each."""
    found, requirements = list(pins(text)), wanted(lock, pyproject)
    names = {canonicalize_name(requirement.name) for requirement in requirements}
    said = [f"{pin.name}: no hash" for pin in found if not pin.hashed]
    said += [f"{pin.name}: not pinned" for pin in found if pin.version is None]
    said += [f"{pin.name}: nothing needs it" for pin in found if pin.direct and pin.name not in names]
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        versions = [pin.version for pin in found if pin.name == name and pin.version is not None]
        if not versions:
            said.append(f"{requirement}: missing")
        said += [
            f"{requirement}: has {version}" for version in versions if version not in requirement.specifier
        ]
    return [f"{lock.path}: {one}" for one in said]


def check() -> list[str]:
    """What does not agree in any of the files."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    said = []
    for lock in LOCKS:
        path = ROOT / lock.path
        if not path.exists():
            said.append(f"{lock.path}: missing")
            continue
        said += complaints(lock, path.read_text(encoding="utf-8"), pyproject)
    return said


def write(lock: Lock, *, upgrade: bool) -> None:
    """Write the file; needs uv and the package registry."""
    # It is for all versions of Python and all machines that perfd runs on.
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet"]
    command += ["--universal", "--python-version=3.11", "--generate-hashes"]
    command += ["--custom-compile-command=make lock", f"--output-file={lock.path}"]
    command += [f"--group={group}" for group in lock.groups] + [f"--extra={extra}" for extra in lock.extras]
    command += [f"--constraint={lock.beside}"] if lock.beside else []
    command += ["--upgrade"] if upgrade else []
    command += ["pyproject.toml"] if lock.project else []
    subprocess.run(command, cwd=ROOT, check=True)


def main(arguments: Sequence[str]) -> int:
    """Write all files, or report that they would change."""
    if "--check" not in arguments:
        for lock in LOCKS:
            write(lock, upgrade="--upgrade" in arguments)
        return 0
    said = check()
    for one in said:
        print(one)  # noqa: T201  (a script)
    if said:
        print("Renew them: make lock.")  # noqa: T201
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
