"""The example for PyTorch's profiler with a schedule, run with real PyTorch.

`PERFD_TORCH_PYTHON` names an interpreter that has it; `.ci/run` makes one.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess

import pytest

from tests.support.cited_tests import ROOT

PYTHON = os.environ.get("PERFD_TORCH_PYTHON", "")


@pytest.mark.system
@pytest.mark.skipif(not PYTHON and not os.environ.get("CI"), reason="PERFD_TORCH_PYTHON names no interpreter")
def test_the_example_traces_three_steps_with_shapes(tmp_path):
    assert PYTHON, "PERFD_TORCH_PYTHON must name an interpreter with PyTorch; .ci/run makes one"
    example = ROOT / "docs" / "examples" / "profile_steps.py"
    subprocess.run(
        [PYTHON, str(example)], cwd=tmp_path, env={**os.environ, "RANK": "3"}, check=True, timeout=300
    )

    (trace,) = (tmp_path / "traces").iterdir()

    assert trace.name == "rank-3.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#6", "ProfilerStep#7", "ProfilerStep#8"}
    assert any(event.get("args", {}).get("Input Dims") for event in events)
