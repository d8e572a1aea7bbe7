"""Prints what `perfd run` costs: before the job starts, after it ends, and in throughput of output.

    python tests/session/measure_run.py

Each figure is a median of five, and stands beside the same without perfd.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

PERFD = f"{sys.executable} -c 'import sys; from perfd.cli import main; sys.exit(main())' run --no-nsys"
SLEEPER = "import time; a = time.time(); time.sleep(1); print(a, time.time())"
SOURCES = {
    "zeros, 2 GiB": "head -c 2G /dev/zero",
    "lines of text, 1 GiB": f"yes '{'a line of a log ' * 6}' | head -c 1G",
}
RUNS = 5


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as out:
        perfd = f"{PERFD} --out {out} --"
        for name, prefix in (("bare", ""), ("perfd run", perfd)):
            before, after = median_pair(
                lambda prefix=prefix: start_and_end(f"{prefix} {sys.executable} -S -c '{SLEEPER}'")
            )
            show(f"{name}: before the job, after it", f"{1000 * before:.0f} ms, {1000 * after:.0f} ms")
        for name, source in SOURCES.items():
            bare = median(lambda source=source: seconds(f"{source} | cat > /dev/null"))
            twice = median(lambda source=source: seconds(f"{source} | cat | cat > /dev/null"))
            under = median(
                lambda source=source: seconds(f'{perfd} bash -c "{source}" 2> /dev/null | cat > /dev/null')
            )
            show(name, f"| cat {bare:.2f} s, | cat | cat {twice:.2f} s, perfd run | cat {under:.2f} s")


def start_and_end(command: str) -> Sequence[float]:
    """Seconds until a job runs, and from its end until the command has ended."""
    begun = time.time()
    done = subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    ended = time.time()
    first, last = map(float, done.stdout.split())
    return first - begun, ended - last


def seconds(command: str) -> float:
    """How long a command takes."""
    begun = time.perf_counter()
    subprocess.run(command, shell=True, check=True)
    return time.perf_counter() - begun


def median(measure: Callable[[], float]) -> float:
    """The median of some runs."""
    return statistics.median(measure() for _ in range(RUNS))


def median_pair(measure: Callable[[], Sequence[float]]) -> Sequence[float]:
    """The medians of two numbers that are measured together."""
    return [statistics.median(column) for column in zip(*(measure() for _ in range(RUNS)), strict=True)]


def show(name: str, figures: str) -> None:
    """One line of the report."""
    sys.stdout.write(f"{name:<34} {figures}\n")


if __name__ == "__main__":
    main()
