"""A stand-in `nsys` as an executable file, with the folders that an installation has."""

from __future__ import annotations

import py_compile
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SCRIPT = Path(__file__).with_name("nsys_stand_in.py")

_CUPTI = "int cuptiGetVersion(unsigned *version) { *version = VERSION; return 0; }"
_IMPORTER = "#!/bin/sh\necho NVIDIA Nsight Systems stand-in\n"
_IMPORTER_WITHOUT_LIBDW = """\
#!/bin/sh
echo "$0: error while loading shared libraries: libdw.so.1: cannot open shared object file" >&2
exit 127
"""


def install(
    directory: Path,
    *,
    version: str = "2025.3.1.90-stand-in",
    importer: bool = True,
    importer_loads: bool = True,
    imports: bool = True,
    kernels_per_process: int = 5,
    first_kernel_s: float = 0.0,
    idle_ranks: Sequence[int] = (),
    report_bytes: int = 0,
    slow_stop_s: float = 0.0,
    gpu_metrics_option: str = "--gpu-metrics-devices",
    cupti_version: int | None = None,
) -> Path:
    """Lay out an installation under `directory` and return its `nsys`.

    `importer=False` leaves out the folder with QdstrmImporter, as Nsight Compute does; with
    `importer_loads=False` it is there and lacks libdw; with `imports=False` it runs and cannot import.
    In each case `stop` leaves only a .qdstrm and returns 0. With `cupti_version` there is a CUPTI for drivers
    of CUDA 13.0 that calls itself so, which takes a C compiler, cc.
    """
    target = directory / "target-linux-x64"
    target.mkdir(parents=True)
    if importer:
        host = directory / "host-linux-x64"
        host.mkdir()
        program = host / "QdstrmImporter"
        program.write_text(_IMPORTER if importer_loads else _IMPORTER_WITHOUT_LIBDW)
        program.chmod(0o755)
    if cupti_version is not None:
        _build_cupti(target / "libcupti.so.13.0", cupti_version)
    settings = {
        "STATE": str(directory / "sessions"),
        "VERSION": version,
        "IMPORT": "1" if importer and importer_loads and imports else "0",
        "KERNELS": str(kernels_per_process),
        "FIRST_KERNEL_S": str(first_kernel_s),
        "IDLE_RANKS": ",".join(map(str, idle_ranks)),
        "REPORT_BYTES": str(report_bytes),
        "SLOW_STOP_S": str(slow_stop_s),
        "GPU_METRICS": gpu_metrics_option,
    }
    exports = "".join(
        f"export NSYS_STAND_IN_{name}={shlex.quote(value)}\n" for name, value in settings.items()
    )
    nsys = target / "nsys"
    # -I and -S keep the stand-in apart from whatever is on the caller's Python path, and make it quick.
    compiled = target / "nsys.pyc"
    py_compile.compile(str(_SCRIPT), str(compiled))
    run = f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(compiled))} "$@"\n'
    nsys.write_text(f"#!/bin/sh\n{exports}{run}")
    nsys.chmod(0o755)
    return nsys


def _build_cupti(library: Path, version: int) -> None:
    command = ["cc", "-shared", "-fPIC", f"-DVERSION={version}", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=_CUPTI, text=True, check=True)
