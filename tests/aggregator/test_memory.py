"""Memory that a round gives back is not asked of the kernel again."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ROUNDS = """
import resource, sys
import numpy as np
from perfd.aggregator.series.malloc import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("no mallopt")
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(1 << 18) for _ in range(16)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    """Pages that a process asked for in the third of three rounds that make and drop 32 MiB each."""
    done = subprocess.run([sys.executable, "-c", _ROUNDS, mode], capture_output=True, text=True, check=False)
    if "no mallopt" in done.stderr:
        pytest.skip("the C library has no mallopt")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_round_takes_its_arrays_from_what_the_one_before_freed() -> None:
    assert faults("keep") < faults("as it is") / 4
