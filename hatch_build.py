"""Builds the NCCL plugin when the package is built or installed; without a compiler it is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("plugin.c", "operations.c", "segment.c")
LIBRARY = "libnccl-profiler-perfd.so"


class NcclPluginHook(BuildHookInterface):
    """Compiles `collectors/nccl_plugin` into the package of the collector that reads it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        if self.target_name != "wheel":
            return
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            self.app.display_warning("No C compiler: perfd is installed without its NCCL plugin.")
            return
        library = Path(self.root, "collectors", "perfd_collectors", "nccl", LIBRARY)
        if self._compile(compiler, library):
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"

    def _compile(self, compiler: str, library: Path) -> bool:
        command = ["make", "-s", "-B", "-C", str(Path(self.root, "collectors", "nccl_plugin"))]
        command += [f"CC={compiler}", f"OUT={library.parent}"]
        if shutil.which("make") is None:
            sources = [str(Path(self.root, "collectors", "nccl_plugin", name)) for name in SOURCES]
            command = [compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared"]
            command += [f"-ffile-prefix-map={Path(sources[0]).parent}=nccl_plugin"]
            command += ["-fvisibility=hidden", "-Wl,-z,nodelete", "-o", str(library), *sources]
            command += ["-lpthread", "-ldl"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            self.app.display_warning(f"perfd is installed without its NCCL plugin: {result.stderr}")
        return result.returncode == 0


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
