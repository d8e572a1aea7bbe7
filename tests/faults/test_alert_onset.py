"""What counts as an alert about a fault, and as a false one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import alert_onset
from benchmarks.alert_onset import Run, measure


def phase(kind: str, begin_s: float, end_s: float, *, ranks: Sequence[int] = ()) -> Mapping[str, Any]:
    return {
        "phase": {"kind": kind, "first_step": 1, "last_step": 1, "ranks": list(ranks), "size": 1.0},
        "begin_unix_s": begin_s,
        "end_unix_s": end_s,
        "step_s": 0.5,
        "healthy_step_s": None if kind == "healthy" else 0.25,
    }


def judged(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    phases: Sequence[Mapping[str, Any]],
    fired: Mapping[float, str],
    **truth: Any,
) -> Run:
    (folder / "truth.json").write_text(json.dumps({"name": "job", "phases": phases, **truth}))
    alerts = [{"name": name, "fired_at_unix_s": at_s} for at_s, name in fired.items()]
    monkeypatch.setattr(alert_onset, "_alerts", lambda _recording, _tick_s: alerts)
    return measure(folder, 1.0)


HEALTHY = phase("healthy", 0, 100)


def test_an_alert_within_a_fault_or_soon_after_is_about_it(tmp_path, monkeypatch):
    phases = [HEALTHY, phase("gpu", 100, 120, ranks=[1]), phase("healthy", 120, 140)]
    fired = {50: "PerfdStraggler", 104: "PerfdStraggler", 124: "PerfdLateHosts", 126: "PerfdLateHosts"}
    run = judged(tmp_path, monkeypatch, phases, fired)
    assert run.false_alerts == ("PerfdStraggler", "PerfdLateHosts")
    assert [(one.alerted_after_s, one.in_time) for one in run.onsets] == [(4, True)]


@pytest.mark.parametrize(("truth", "false"), [({}, ("PerfdRankHangs",)), ({"killed": True}, ())])
def test_after_the_last_phase_of_a_killed_run_nothing_is_known(tmp_path, monkeypatch, truth, false):
    fired = {50: "PerfdLateHosts", 110: "PerfdRankHangs"}
    run = judged(tmp_path, monkeypatch, [HEALTHY], fired, **truth)
    assert run.false_alerts == ("PerfdLateHosts", *false)


def test_a_rank_that_has_more_work_by_design_is_a_straggler(tmp_path, monkeypatch):
    phases = [phase("healthy", 0, 50, ranks=[1]), phase("healthy", 50, 100)]
    fired = {10: "PerfdStraggler", 20: "PerfdLateHosts", 60: "PerfdStraggler"}
    assert judged(tmp_path, monkeypatch, phases, fired).false_alerts == ("PerfdLateHosts", "PerfdStraggler")


@pytest.mark.parametrize(("kind", "limit_s"), [("gpu", 5.0), ("stall", 7.5), ("garbage", 7.5)])
def test_what_stalls_every_fifth_step_has_three_periods(tmp_path, monkeypatch, kind, limit_s):
    run = judged(tmp_path, monkeypatch, [HEALTHY, phase(kind, 100, 120)], {})
    assert [one.fault.limit_s for one in run.onsets] == [limit_s]
