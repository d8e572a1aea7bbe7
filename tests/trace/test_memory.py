"""Memory does not grow with the file but with the operations that are kept."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.traces import COMPUTE, Op, kineto

_FILE_BYTES = 300_000_000
_LIMIT_BYTES = 250_000_000
_CHILD = r"""
import re, sys
from pathlib import Path
from perfd.trace.diagnosis.trace_analysis import analyse
from perfd.trace.readers.trace_files import read_traces
analysis = analyse(read_traces([Path(sys.argv[1])]))
# Not getrusage: that keeps the peak of the process that started this one.
peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
print(analysis.ranks[0].whole.kernel_count, int(peak[1]) * 1024)
"""


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_trace_of_300_megabytes_is_read_within_a_quarter_of_a_gigabyte(tmp_path):
    path = tmp_path / "large.json"
    kernels = _write(path)

    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, check=True
    )

    count, peak_bytes = done.stdout.split()
    assert int(count) == kernels
    assert int(peak_bytes) < _LIMIT_BYTES


def _write(path) -> int:
    """As a trace with stacks: most of it is Python functions, which nobody asked for."""
    filler = {
        "ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(1747): _call_impl",
        "pid": 1, "tid": 1, "ts": 1.5, "dur": 20.25, "args": {"Python id": 17, "Python parent id": 16},
    }  # fmt: skip
    stack = ",\n".join([json.dumps(filler, indent=1)] * 50)
    kernel = json.dumps(kineto([Op(COMPUTE, 5, 9, launched=3)])["traceEvents"], indent=1)[1:-1]
    group = f"{stack},{kernel}".encode()
    count = 0
    with path.open("wb") as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [\n')
        while file.tell() < _FILE_BYTES:
            file.write((b",\n" if count else b"") + group)
            count += 1
        file.write(b"]}")
    return count
