"""How long NCCL is kept by the callbacks of one operation: perfd's plugin, and any other by its side.

    python -m benchmarks.nccl_callbacks [--other LIBRARY]... [--rounds 9] [--operations 200000] [--json]

The program that plays NCCL's part in the tests announces all-reduces of 2 MiB and one channel, one after
the other in one thread, through interface 5: start and stop of the operation; start, time and stop of its
kernel's channel. The plugins are taken in turns, each in a process of its own. Nobody reads what perfd's
writes: its ring goes round, which costs the writer the same. NCCL's Inspector, given as `--other`, needs a
GPU's driver; it is set up as its README says to begin with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perfd.errors import PerfdError

SCHEMA = "perfd.bench.nccl_callbacks/1"
ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "collectors" / "nccl_plugin"
DRIVER = ROOT / "tests" / "nccl" / "driver.c"
_FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-pthread", f"-I{PLUGIN}")
_INTERFACE = 5
_LIMIT_S = 120
_REPORTED = re.compile(r"^([0-9.]+) ns an operation$", re.MULTILINE)


def build(folder: Path) -> tuple[Path, Path]:
    """The program and perfd's plugin, built there; raises `PerfdError` where that is impossible."""
    driver, plugin = folder / "driver", folder / "libnccl-profiler-perfd.so"
    sources = [str(PLUGIN / name) for name in ("plugin.c", "operations.c", "segment.c")]
    for command in (
        ["gcc", *_FLAGS, str(DRIVER), "-o", str(driver), "-ldl", "-rdynamic"],
        ["gcc", *_FLAGS, "-fPIC", "-shared", "-fvisibility=hidden", *sources, "-o", str(plugin)],
    ):
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PerfdError(f"The benchmark needs gcc: {error}.") from error
    return driver, plugin


def per_operation_ns(driver: Path, library: Path, operations: int) -> float:
    """How long one operation's callbacks took, in the mean; raises `PerfdError` when the program fails."""
    command = [str(driver), str(library), str(_INTERFACE), "time", str(operations)]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        environment = {
            **os.environ,
            "PERFD_NCCL_DIR": folder,
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_DIR": f"{folder}/inspector",
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
        }
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=environment,
            check=False,
        )
    found = _REPORTED.search(done.stdout)
    if found is None:
        raise PerfdError(f"{library} could not be driven: {done.stderr.strip() or done.stdout.strip()}")
    return float(found[1])


def measure(driver: Path, libraries: Sequence[Path], rounds: int, operations: int) -> list[list[float]]:
    """The figure of each library, round by round, taken in turns."""
    return [[per_operation_ns(driver, library, operations) for library in libraries] for _ in range(rounds)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, action="append", default=[], metavar="LIBRARY")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--json", action="store_true", help=f"print one object of schema {SCHEMA}")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        driver, plugin = build(Path(folder))
        rounds = measure(driver, [plugin, *args.other], args.rounds, args.operations)
    names = ["perfd", *map(str, args.other)]
    columns = dict(zip(names, zip(*rounds, strict=True), strict=True))
    ratios = {
        name: [other / mine for mine, other in zip(columns["perfd"], column, strict=True)]
        for name, column in columns.items()
        if name != "perfd"
    }
    if args.json:
        print(json.dumps({"schema": SCHEMA, "per_operation_ns": columns, "times_perfd": ratios}))
        return 0
    for name, column in columns.items():
        print(f"{name}: {statistics.median(column):.0f} ns ({min(column):.0f} to {max(column):.0f})")
    for name, found in ratios.items():
        print(f"{name} takes {statistics.median(found):.1f} times ({min(found):.1f} to {max(found):.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
