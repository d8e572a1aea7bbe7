"""What a profiler costs is told against the bare runs before and after it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.nccl_cost import added_s
from benchmarks.gpu.overhead import (
    INSPECTOR,
    added_per_operation_s,
    inspected,
    inspector_library,
    overheads,
    run_mode,
)

TORCHRUN = f"""#!{sys.executable}
import json, pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--times") + 1])
target.write_text(json.dumps({{"seconds": [9.0] * 15 + [0.1, 0.2, 0.3]}}))
"""


def test_a_drift_from_one_bare_run_to_the_next_is_not_blamed_on_what_ran_between():
    found = overheads([("bare", 1.0), ("perfd", 1.06), ("inspector", 1.155), ("bare", 1.1)])

    assert found["perfd"] == [pytest.approx(1.06 / 1.05 - 1)]
    assert found["inspector"] == [pytest.approx(0.1)]
    assert found["bare"] == [pytest.approx(0.1)]


def test_a_run_that_failed_leaves_out_what_depends_on_it():
    runs = [("bare", 1.0), ("perfd", None), ("bare", 1.0), ("perfd", 1.01), ("bare", None)]
    assert overheads(runs) == {"bare": [0.0]}


def test_what_a_plugin_adds_to_a_call_is_reported_against_the_bare_processes_around_it():
    runs = [("bare", 4e-6), ("perfd", 5e-6), ("inspector", None), ("bare", 5e-6), ("perfd", 1.0)]

    assert added_s(runs) == {"bare": [pytest.approx(1e-6)], "perfd": [pytest.approx(0.5e-6)]}


def test_what_steps_took_longer_is_shared_by_their_operations():
    runs = [("bare", 0.010), ("perfd", 0.011), ("bare", 0.010)]
    added = added_per_operation_s(runs, overheads(runs), 1000)
    assert added == {"bare": 0.0, "perfd": pytest.approx(1e-6)}
    assert added_per_operation_s(runs, overheads(runs), 0) == {}


def test_the_inspector_is_found_where_the_loader_looks(tmp_path: Path):
    assert inspector_library(sys.executable, f"{tmp_path}:") is None
    (tmp_path / INSPECTOR).touch()
    assert inspector_library(sys.executable, f"{tmp_path}:") == tmp_path / INSPECTOR


def test_the_first_steps_of_a_run_do_not_count_and_one_without_times_has_none(tmp_path: Path):
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(TORCHRUN)
    torchrun.chmod(torchrun.stat().st_mode | stat.S_IXUSR)
    assert run_mode("bare", tmp_path / "a", [str(torchrun)], None) == pytest.approx(0.2)
    assert run_mode("bare", tmp_path / "b", [sys.executable, "-c", "pass"], None) is None


def test_the_inspector_has_a_result_only_where_it_wrote_operations(tmp_path: Path):
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(TORCHRUN)
    torchrun.chmod(torchrun.stat().st_mode | stat.S_IXUSR)
    assert run_mode("inspector", tmp_path / "silent", [str(torchrun)], tmp_path / INSPECTOR) is None

    dumps = """
import os
folder = pathlib.Path(os.environ["NCCL_INSPECTOR_DUMP_DIR"])
folder.mkdir()
(folder / "node-pid1.log").write_text("{}\\n{}\\n")
"""
    torchrun.write_text(TORCHRUN + dumps)
    assert run_mode("inspector", tmp_path / "writes", [str(torchrun)], tmp_path / INSPECTOR) == 0.2
    assert inspected(tmp_path / "writes") == 2
