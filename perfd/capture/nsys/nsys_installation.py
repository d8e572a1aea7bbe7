"""The nsys of this node, and whether it can make reports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_CRASHING_CUPTI = 130000
"""CUDA 13.0's first CUPTI can crash in `cuptiActivityFlushAll`, which nsys calls seconds after a collection
began; Update 1 has 130001. (Source: NVIDIA, CUPTI's release notes, "Updates in CUDA Toolkit 13.0 Update 1";
seen: ADR 16.)"""
_CUPTI = "libcupti.so.13.0"
"""Its file, next to nsys, which has one per CUDA version of the driver."""
_ASK = """
import ctypes, sys
version = ctypes.c_uint32()
if ctypes.CDLL(sys.argv[1]).cuptiGetVersion(ctypes.byref(version)) == 0:
    print(version.value)
"""
_PATIENCE_S = 10.0
"""For `nsys --version`, which reads its libraries from a slow disk at first."""
_VERSION = re.compile(r"version\s+(\d+(?:\.\d+)+)")
_INSTALLATIONS = (
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "usr/local/cuda*/nsight-systems-*/target-linux-*/nsys",
    "usr/lib/*/nsight-systems/target-linux-*/nsys",
    # Nsight Compute ships an nsys too, for its system trace.
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
)
_LIBDW = (
    "lib/*/libdw.so.1",
    "lib64/libdw.so.1",
    "usr/lib/libdw.so.1",
    "usr/lib/*/libdw.so.1",
    "usr/lib64/libdw.so.1",
    "usr/local/lib/libdw.so.1",
)


def _cupti_version_of(library: Path) -> int | None:
    """A CUPTI's version, such as 130001; None without one, or if it cannot be loaded.

    A separate process queries it, so that a profiler's library is never loaded in this one. Needs no GPU.
    """
    if not library.is_file():
        return None
    command = [sys.executable, "-I", "-S", "-c", _ASK, str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return int(done.stdout) if done.stdout.strip().isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An nsys, and its files. None means unknown."""

    nsys: Path
    importer: Path | None
    """QdstrmImporter where nsys looks for it."""
    importer_elsewhere: Path | None
    """A QdstrmImporter that a link would make usable, as in Nsight Compute."""
    importer_expected: Path | None
    """Where nsys looks: next to its own folder. None if nsys is a wrapper of unknown layout."""
    cupti_version: int | None = None
    """The version of its CUPTI for drivers of CUDA 13.0; None without one."""
    only_found: bool = False
    """Whether it was found, not configured."""

    @property
    def importer_missing(self) -> bool:
        """Whether reports are known to be impossible: `nsys stop` would return 0 and leave a .qdstrm."""
        return self.importer is None and self.importer_expected is not None

    @property
    def may_crash_jobs(self) -> bool:
        """Whether its CUPTI is the one that has crashed jobs at their first capture."""
        return self.cupti_version == _CRASHING_CUPTI

    @property
    def refusal(self) -> str | None:
        """Why it is not used, and what to do; None if it may be used."""
        if self.only_found and self.may_crash_jobs:
            return (
                f"{self.nsys} has the first CUPTI of CUDA 13.0, which has crashed jobs at their first"
                " capture. Install a newer nsight-systems, or set capture.nsys_path to use it anyway."
            )
        if self.importer_missing:
            return f"{self.nsys} has no QdstrmImporter and would leave no report. {self.fix_for_importer}"
        return None

    @property
    def fix_for_importer(self) -> str:
        """What to do if the importer is missing."""
        if self.importer_elsewhere and self.importer_expected:
            return f"Run: ln -s {self.importer_elsewhere.parent} {self.importer_expected.parent}"
        return "Install the full Nsight Systems package (nsight-systems), not only its target part."


def find_nsys(configured: str | None, path: str | None, *, root: Path = Path("/")) -> Installation | None:
    """The configured nsys, else the one on `path`, else the newest of the usual places; None without any.

    A configured one that does not exist counts as none: another one would hide the mistake. One that was
    found, not configured, is not used if its version has crashed jobs (`Installation.refusal`).
    """
    if configured is not None:
        return inspect(Path(configured)) if Path(configured).is_file() else None
    on_path = shutil.which("nsys", path=path) if path is not None else None
    found = [file for pattern in _INSTALLATIONS for file in _newest_first(root, pattern) if file.is_file()]
    if on_path:
        found.insert(0, Path(on_path))
    installations = [replace(inspect(file), only_found=True) for file in found]
    # Another usable one is better than the first one that is not.
    return next((one for one in installations if one.refusal is None), next(iter(installations), None))


def inspect(nsys: Path) -> Installation:
    """The installation around an nsys executable.

    nsys looks for `REALPATH(its folder)/../host-linux-x64/QdstrmImporter` (seen with 2022.4 to 2025.3).
    """
    folder = nsys.resolve().parent
    if not folder.name.startswith("target-linux-"):
        # A wrapper script, as in /usr/local/cuda/bin: the real one is elsewhere.
        return Installation(nsys=nsys, importer=None, importer_elsewhere=None, importer_expected=None)
    expected = folder.parent / f"host-linux-{folder.name.removeprefix('target-linux-')}" / "QdstrmImporter"
    elsewhere = sorted(
        file
        for pattern in ("host-linux*/QdstrmImporter", "linux-desktop-*/QdstrmImporter")
        for file in folder.parent.glob(pattern)
        if file != expected
    )
    return Installation(
        nsys=nsys,
        importer=expected if expected.is_file() else None,
        importer_elsewhere=elsewhere[0] if elsewhere else None,
        importer_expected=expected,
        cupti_version=_cupti_version_of(folder / _CUPTI),
    )


def find_libdw(*, root: Path = Path("/"), beside: Sequence[Path] = ()) -> Path | None:
    """libdw.so.1, which the importer needs: the system's, or in one of the folders `beside`."""
    candidates = [folder / "libdw.so.1" for folder in beside]
    candidates += [file for pattern in _LIBDW for file in sorted(root.glob(pattern))]
    return next((file for file in candidates if file.exists()), None)


def parse_version(text: str) -> str | None:
    """The version in the output of `nsys --version`."""
    found = _VERSION.search(text)
    return found[1] if found else None


def _newest_first(root: Path, pattern: str) -> list[Path]:
    """Matches, highest version number in the path first."""
    return sorted(
        root.glob(pattern),
        key=lambda file: [int(number) for number in re.findall(r"\d+", str(file))],
        reverse=True,
    )
