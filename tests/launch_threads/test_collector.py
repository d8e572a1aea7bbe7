"""The collector: a row for each rank that `ranks` found, whatever it communicates with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from launch_threads.test_process_readings import put
from perfd_collectors.launch_threads import SPEC

from perfd.clock import VirtualClock
from perfd.collector import LocalRank, Settings
from perfd.collector_loading import load_collector
from perfd.model import SampleTable
from perfd.testing.collector_contract import check_collector, check_spec


def test_the_specification_is_sound_and_installed() -> None:
    check_spec(SPEC)
    assert load_collector("launch_threads") is SPEC


def test_each_rank_has_a_row_with_what_its_process_does(tmp_path: Path) -> None:
    settings = Settings(node="n", job="train", clock=VirtualClock(), proc=tmp_path)
    settings.local_jobs.replace({}, [LocalRank("train", 1, 20), LocalRank("train", 0, 10)])

    def at(first_s: float, second_s: float) -> None:
        for pid, ran_s in ((10, first_s), (20, second_s)):
            put(tmp_path, pid, pid, "python3", ran_s)
            put(tmp_path, pid, pid + 1, "pt_autograd_0", 0.0)

    at(1.0, 5.0)
    records = check_collector(SPEC, settings, collects=2, between=lambda: at(1.5, 5.25))
    tables = [record for record in records if isinstance(record, SampleTable)]
    assert [list(table.entities) for table in tables] == [["train/0", "train/1"]] * 2
    assert list(tables[1].columns["launch_threads_busy_s"]) == [0.5, 0.25]


def test_ranks_of_one_process_share_what_it_does_and_unknown_ranks_have_no_row(tmp_path: Path) -> None:
    settings = Settings(node="n", job="train", clock=VirtualClock(), proc=tmp_path)
    settings.local_jobs.replace({}, [LocalRank("train", rank, 10) for rank in range(2)])
    put(tmp_path, 10, 10, "python3", 1.0)
    put(tmp_path, 10, 11, "pt_autograd_0", 0.0)
    (table,) = check_collector(SPEC, settings, collects=1)
    assert isinstance(table, SampleTable)
    assert list(table.entities) == ["train/0", "train/1"]
    gone = dataclasses.replace(settings, proc=tmp_path / "empty")
    assert check_collector(SPEC, gone, collects=1) == []
