"""What the benchmark of headlines does not judge at the end of a job."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.headlines.looks import Look, Watched
from benchmarks.headlines.truth import Phase, Truth, truth_of


def look(unix_s: float, kind: str, *ranks: int) -> Look:
    return Look(
        at_s=unix_s,
        unix_s=unix_s,
        step=int(unix_s),
        steady_steps=int(unix_s),
        kind=kind,
        culprits=tuple(f"rank {rank}" for rank in ranks),
        gain_ratio=None,
        blamed=frozenset(ranks),
        roles=frozenset(),
        blamed_gain_ratio=None,
    )


def phase(begin_unix_s: float, end_unix_s: float, *ranks: int) -> Phase:
    return Phase(
        fault="gpu" if ranks else "healthy",
        begin_unix_s=begin_unix_s,
        end_unix_s=end_unix_s,
        ranks=frozenset(ranks),
        lost_ratio=0.4 if ranks else None,
    )


def watched(*looks: Look, phases: list[Phase], until_unix_s: float = math.inf) -> Watched:
    truth = Truth(kinds=frozenset(), phases=phases, until_unix_s=until_unix_s)
    return Watched(name="made", looks=looks, truth=truth, took_s=0.0)


@pytest.mark.parametrize(("begun_before_end_s", "right"), [(4.9, True), (5.0, False)])
def test_a_fault_that_begins_less_than_five_seconds_before_the_end_need_not_be_named(
    begun_before_end_s: float, right: bool
) -> None:
    phases = [phase(0.0, 50.0 - begun_before_end_s), phase(50.0 - begun_before_end_s, 49.0, 1)]
    assert watched(look(60, "none"), phases=[*phases, phase(49.0, 50.0)]).right is right


def test_what_follows_the_last_phase_of_a_killed_job_is_not_judged(tmp_path: Path) -> None:
    """As of pair84, which hung."""

    def truth(*, killed: bool) -> Truth:
        entry = {
            "phase": {"kind": "host", "ranks": [1], "last_step": 10},
            "begin_unix_s": 10.0,
            "end_unix_s": 20.0,
            "lost_ratio": 0.4,
        }
        document = {"phases": [entry], "steps_s": [1.0] * 10} | ({"killed": True} if killed else {})
        (tmp_path / "truth.json").write_text(json.dumps(document))
        known = truth_of(tmp_path / "recording")
        assert known is not None
        return known

    assert truth(killed=False).until_unix_s == math.inf
    assert truth(killed=True).until_unix_s == 20.0
    looks = [look(at_s, "none") for at_s in range(10, 14)]
    looks += [look(14, "straggler", 1), look(19, "late_hosts"), look(25, "hang", 0)]
    for killed, flips, right_at_end in ((False, 3, False), (True, 2, None)):
        seen = Watched(name="made", looks=looks, truth=truth(killed=killed), took_s=0.0)
        assert seen.flips == flips
        assert replace(seen, end=looks[-1]).right_at_end is right_at_end
        assert replace(seen, end=look(25, "straggler", 0)).right_at_end is False


@pytest.mark.parametrize(("killed", "right"), [(False, False), (True, True)])
def test_a_rank_that_was_blamed_only_after_the_last_phase_of_a_killed_job_is_not_judged(
    killed: bool, right: bool
) -> None:
    """As of random121: its second fault had begun when it was killed."""
    looks = look(14, "straggler", 1), look(25, "straggler", 2)
    phases = [phase(0.0, 10.0), phase(10.0, 20.0, 1)]
    seen = watched(*looks, phases=phases, until_unix_s=20.0 if killed else math.inf)
    end = replace(look(30, "straggler", 1), blamed=frozenset({1, 2}))
    assert replace(seen, end=end).right_at_end is right
    assert replace(seen, end=replace(end, blamed=frozenset({1, 3}))).right_at_end is False
