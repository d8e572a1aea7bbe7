"""Memory that a round gives back is not asked of the kernel again."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

_ROUNDS = """
import resource, sys
import numpy as np
from perfd.process_memory import tune_malloc
if sys.argv[1] == "keep" and not tune_malloc():
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


@pytest.mark.slow
def test_a_round_takes_its_arrays_from_what_the_one_before_freed() -> None:
    assert faults("keep") < faults("as it is") / 4


@pytest.mark.slow
def test_it_runs_under_a_limit_on_addresses_or_says_that_it_cannot(tmp_path: Path) -> None:
    config = tmp_path / "aggregator.yaml"
    config.write_text(f"history: {{path: {tmp_path / 'history.sqlite'}}}\n", encoding="utf-8")
    command = [sys.executable, "-m", "perfd", "aggregator", "--config", str(config), "--log-json"]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    refused = subprocess.run(
        ["prlimit", "--as=400000000", *command], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "limited to 400 MB" in refused.stderr
    with subprocess.Popen(["prlimit", "--as=700000000", *command], stderr=subprocess.PIPE, text=True) as runs:
        assert runs.stderr is not None
        try:
            lines = (json.loads(line) for line in runs.stderr)
            address = next(line["http"] for line in lines if "http" in line)
            with urllib.request.urlopen(f"http://{address}/api/v1/healthz", timeout=60) as answer:
                assert answer.status == 200
        finally:
            runs.terminate()
            # If the other end closes the pipe first, writing the last lines of the log fails.
            runs.communicate()
    assert runs.returncode == 0


def test_modules_that_numpy_imports_late_are_there_before_it_serves() -> None:
    script = """
import sys
import perfd.aggregator.aggregator
before = set(sys.modules)
import numpy as np
np.unique(np.array([2, 1, 1]))
np.median(np.array([2.0, 1.0]))
np.percentile(np.array([2.0, 1.0]), 50)
print(sorted(set(sys.modules) - before))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
