"""Comparing what a live session said with a replay of what it recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.headlines.live import FILE, LiveLook, agreement, live_looks
from benchmarks.headlines.looks import Look

NONE = ("none", ())
RANK_1 = ("straggler", ("rank 1",))


def _replayed(*headlines: tuple[str, tuple[str, ...]]) -> list[Look]:
    return [
        Look(
            at_s=float(at),
            unix_s=100.0 + at,
            step=at,
            steady_steps=at,
            kind=kind,
            culprits=culprits,
            gain_ratio=None,
            blamed=frozenset(),
            roles=frozenset(),
            blamed_gain_ratio=None,
        )
        for at, (kind, culprits) in enumerate(headlines)
    ]


def test_live_looks_are_read_from_beside_the_recording(tmp_path: Path) -> None:
    finding = {"kind": "straggler", "culprits": [{"kind": "rank", "id": 1}]}
    rows = [{"unix_s": 1.0}, {"unix_s": 2.0, "jobs": []}, {"unix_s": 3.0, "jobs": [finding, finding]}]
    (tmp_path / FILE).write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    assert live_looks(tmp_path / "recording") == [LiveLook(unix_s=3.0, said=RANK_1)]
    assert live_looks(tmp_path / "other" / "recording") is None


@pytest.mark.parametrize(("unix_s", "missing"), [(104.9, 1), (105.0, 0), (110.0, 0)])
def test_a_live_look_agrees_with_a_replay_that_says_it_within_two_seconds(
    unix_s: float, missing: int
) -> None:
    replayed = _replayed(*[NONE] * 7, *[RANK_1] * 10)
    found = agreement([LiveLook(unix_s=unix_s, said=RANK_1)], replayed)
    assert (found.live_count, len(found.unlike)) == (1, missing)


def test_looks_before_and_after_the_recorded_time_are_not_compared() -> None:
    replayed = _replayed(*[NONE] * 10)
    live = [LiveLook(unix_s=unix_s, said=RANK_1) for unix_s in (99.9, 100.0, 107.0, 107.1)]
    found = agreement(live, replayed)
    assert found.live_count == 2
    assert str(found).splitlines() == [
        "live: 0 of 2 looks are as replayed",
        "    at 100.0: straggler: rank 1",
        "    at 107.0: straggler: rank 1",
    ]


@pytest.mark.parametrize(("unix_s", "missing"), [(104.9, 1), (105.0, 0)])
def test_the_summary_that_a_session_shows_after_the_last_step_is_the_one_of_the_replay(
    unix_s: float, missing: int
) -> None:
    looks = _replayed(*[NONE] * 15)
    replayed = [replace(look, step=min(at, 5)) for at, look in enumerate(looks)]
    (end,) = _replayed(RANK_1)
    live = [LiveLook(unix_s=unix_s, said=RANK_1)]
    assert len(agreement(live, replayed, end).unlike) == missing
    assert len(agreement(live, replayed).unlike) == 1
