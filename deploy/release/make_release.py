"""Makes the files of a release: wheel, source distribution, chart, list of packages, digests.

python deploy/release/make_release.py FOLDER (--tag vX.Y.Z | --dry-run) [--parts python chart]

Wheel and source distribution are built twice, in different folders, and must be the same. Needs git, Helm,
a C compiler and what deploy/lock/release.txt has. The image is made by make_image.sh; publish.sh uploads all.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = Path("deploy/kubernetes/perfd")
PARTS = ("python", "chart")
NEWEST_GLIBC = 34
"""Of glibc 2.x: the oldest that perfd's plugin must load with, that of Ubuntu 22.04 and RHEL 9."""


class ReleaseError(Exception):
    """Why there is no release, a sentence."""


def main(arguments: Sequence[str]) -> int:
    """Make the files in the folder that the arguments name."""
    parser = argparse.ArgumentParser(prog="make_release.py", description="Make the files of a release.")
    parser.add_argument("folder", type=Path)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--tag", help="of this commit, as in v1.2.3")
    mode.add_argument("--dry-run", action="store_true", help="of the files as they are, for a look")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    try:
        make(options.folder, options.tag, options.parts)
    except ReleaseError as error:
        print(f"No release: {error}", file=sys.stderr)  # noqa: T201  (a script)
        return 1
    print((options.folder / "SHA256SUMS").read_text(encoding="utf-8"), end="")  # noqa: T201
    return 0


def make(folder: Path, tag: str | None, parts: Sequence[str]) -> None:
    """Make all files of these parts; with a tag, only of exactly the commit that has it."""
    said = disagreements(ROOT, tag)
    if tag is not None and _git("status", "--porcelain"):
        said.append("there are changes that are not committed")
    if said:
        raise ReleaseError("; ".join(said))
    folder.mkdir(parents=True)
    epoch = _git("log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory(prefix="perfd-release-") as name:
        if "python" in parts:
            make_python(folder, Path(name), epoch)
        if "chart" in parts:
            # What the chart links to is packed as files.
            chart = _sources(Path(name, "chart")) / CHART
            _run("helm", "package", "--destination", str(folder), str(chart))
    lines = [f"{_digest(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def disagreements(root: Path, tag: str | None) -> list[str]:
    """Where versions are not the same, and what a tag asks for that is not there."""
    module = (root / "perfd" / "__init__.py").read_text(encoding="utf-8")
    # Not by a parser: deploy/lock/release.txt has none of YAML.
    lines = (root / CHART / "Chart.yaml").read_text(encoding="utf-8")
    chart = dict(re.findall(r'^(version|appVersion): "?([^"\s]+)"?$', lines, re.MULTILINE))
    found = re.search(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    version = found[1] if found else "none"
    said = [
        f"perfd is {version}, {key} of the chart is {chart.get(key)}"
        for key in ("version", "appVersion")
        if chart.get(key) != version
    ]
    if tag is None:
        return said
    if tag != f"v{version}":
        said.append(f"the tag is {tag}, perfd is {version}")
    if f"\n## [{version}]" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        said.append(f"CHANGELOG.md has nothing about {version}")
    return said


def make_python(folder: Path, work: Path, epoch: str) -> None:
    """Make source distribution, wheel, and the list of what the wheel is installed with."""
    # Names of different length, so that a path in a file shows in its size too.
    built = [python_files(work / place, epoch) for place in ("first", "the-second-time")]
    differing = [path.name for path, again in zip(*built, strict=True) if _digest(path) != _digest(again)]
    if differing:
        raise ReleaseError(f"{', '.join(differing)}: a second build is not the same")
    for path in built[0]:
        shutil.copy2(path, folder)
    write_package_list(folder, work / "venv", epoch)


def python_files(folder: Path, epoch: str) -> list[Path]:
    """Source distribution, and the wheel of it for every Linux that perfd runs on."""
    sources, plain, ready = _sources(folder / "sources"), folder / "plain", folder / "ready"
    _run(sys.executable, "-m", "build", "--no-isolation", f"--outdir={plain}", str(sources), epoch=epoch)
    (sdist,), (wheel,) = plain.glob("*.tar.gz"), plain.glob("*.whl")
    if wheel.name.endswith("-none-any.whl"):
        raise ReleaseError("the wheel has no NCCL plugin: is there a C compiler?")
    # It only looks which glibc the plugin needs: there is nothing to copy into the wheel.
    _run(sys.executable, "-m", "auditwheel", "repair", f"--wheel-dir={ready}", str(wheel), epoch=epoch)
    (wheel,) = ready.glob("*.whl")
    needed = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)", wheel.name)]
    if not needed or min(needed) > NEWEST_GLIBC:
        raise ReleaseError(f"{wheel.name} needs a newer glibc than 2.{NEWEST_GLIBC}")
    return [sdist, wheel]


def write_package_list(folder: Path, environment: Path, epoch: str) -> None:
    """Write what the wheel is installed with, as CycloneDX: the pinned packages, which are downloaded."""
    (wheel,) = folder.glob("*.whl")
    # pip is this Python's, so that the environment has perfd and what it needs, and no more.
    venv.create(environment, with_pip=False)
    python = str(environment / "bin" / "python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    _run(*pip, "--require-hashes", "-r", str(ROOT / "deploy" / "image" / "requirements.txt"))
    _run(*pip, "--no-deps", "--no-index", str(wheel))
    output = folder / f"{wheel.stem}.cdx.json"
    arguments = ["environment", "--output-reproducible", f"--pyproject={ROOT / 'pyproject.toml'}"]
    _run("cyclonedx-py", *arguments, f"--output-file={output}", python, epoch=epoch)


def _sources(folder: Path) -> Path:
    """The files that git knows, as they are now, in a separate folder."""
    for name in _git("ls-files", "-z").split("\0"):
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def _git(*arguments: str) -> str:
    return _run("git", "-C", str(ROOT), *arguments)


def _run(*command: str, epoch: str = "0") -> str:
    # Programs of this Python's packages are beside it.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
