"""The plugin's kernels held against those of a profile: there one for one, as long, or missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.plugin import OPERATIONS, Kernels, aligned, compare

MS = 1_000_000
BETWEEN_CLOCKS_NS = 10**15


def write(folder: Path, *, left_out: int | None = None) -> None:
    """Three all-reduces of a profile among five of a rank."""
    begins = [0, 3 * MS, 10 * MS, 14 * MS, 30 * MS]
    operations = [
        {
            "rank": 0, "fn": "AllReduce", "peer_or_root": 0, "communicator": 0, "operation_sequence": number,
            "gpu_start_ns": BETWEEN_CLOCKS_NS + begin, "gpu_stop_ns": BETWEEN_CLOCKS_NS + begin + MS,
        }
        for number, begin in enumerate(begins) if number != left_out
    ]  # fmt: skip
    (folder / OPERATIONS).write_text("".join(json.dumps(line) + "\n" for line in operations))
    events = [
        {"cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": begin / 1e3, "dur": 1004.0}
        for begin in begins[1:4]
    ]
    (folder / "rank-0.json").write_text(json.dumps({"traceEvents": events}))


def test_kernels_that_are_there_are_compared_though_clocks_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)

    assert compare(tmp_path)

    reported, timed = capsys.readouterr().out.splitlines()[-2:]
    assert "all there; -0.40% in the median, 3.00 of 3.01 ms in sum" in reported
    assert "all there; -0.05% in the median, 3.01 of 3.01 ms in sum" in timed


def test_a_kernel_that_the_plugin_missed_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, left_out=2)

    assert not compare(tmp_path)

    assert "not there one for one" in capsys.readouterr().out


def test_fewer_kernels_than_the_profiles_are_never_aligned() -> None:
    two = Kernels(starts_ns=np.array([0, MS]), durations_s=np.ones(2))
    three = Kernels(starts_ns=np.array([0, MS, 2 * MS]), durations_s=np.ones(3))

    assert aligned(three, two) is None
