"""Recordings with something missing or wrong: what the alterations do, and that no healthy rank is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.headlines.alterations import pieces, write
from benchmarks.headlines.altered import ALTERATIONS, judged, main
from benchmarks.headlines.looks import must_be_named
from perfd.model import CollectiveTimes, RankPlacement
from perfd.recording.recording_format import open_recording

FRESH = Path(__file__).parents[2] / "benchmarks/gpu/recorded_fresh"
PHASES = FRESH.with_name("recorded_phases")
NOVEL = FRESH.with_name("recorded_novel")
JOB = FRESH / "ddpacc2/recording"


def _ranks(recording: Path, kind: type[CollectiveTimes | RankPlacement]) -> set[int]:
    return {
        record.rank
        for piece in pieces(recording)
        for record in piece.records
        if isinstance(record, CollectiveTimes | RankPlacement) and type(record) is kind
    }


def test_a_recording_that_is_not_altered_is_written_as_it_was(tmp_path: Path) -> None:
    found = pieces(JOB)
    write(ALTERATIONS["as it is"](found), tmp_path / "same", "same")
    again = pieces(tmp_path / "same")
    printed = b"".join(piece.printed for piece in found)
    assert b"".join(piece.printed for piece in again) == printed
    assert sum(len(piece.records) for piece in again) == sum(len(piece.records) for piece in found)


def test_one_of_ten_operations_is_kept_also_where_sizes_are_unknown(tmp_path: Path) -> None:
    kept = ALTERATIONS["1 of 10 operations"]
    saving = FRESH.with_name("recorded_wide") / "saving4/recording"
    found = [record for piece in kept(pieces(saving)) for record in piece.records]
    sampled = [record for record in found if isinstance(record, CollectiveTimes)]
    assert all(
        not record.sizes_bytes or len(record.sizes_bytes) == len(record.sequences) for record in sampled
    )
    assert all(number % 10 == 0 for record in sampled for number in record.sequences)


def test_a_rank_that_is_unseen_has_no_records(tmp_path: Path) -> None:
    write(ALTERATIONS["last rank unseen"](pieces(JOB)), tmp_path / "less", "less")
    assert _ranks(JOB, CollectiveTimes) == _ranks(JOB, RankPlacement) == {0, 1}
    assert _ranks(tmp_path / "less", CollectiveTimes) == _ranks(tmp_path / "less", RankPlacement) == {0}


def test_a_clock_that_is_ahead_is_that_of_another_node(tmp_path: Path) -> None:
    write(ALTERATIONS["clock 0.4 s ahead"](pieces(JOB)), tmp_path / "apart", "apart")
    nodes = {
        node.name: [rank.rank for rank in node.ranks]
        for node in open_recording(tmp_path / "apart").manifest.nodes
    }
    assert sorted(nodes.values()) == [[0], [1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "alteration",
    [
        "last rank unseen",
        "clock 45 s ahead",
        "half of NCCL lost",
        "no NCCL",
        "no GPU samples",
        "no log",
        "a line each 100 steps",
        "restarted",
    ],
)
@pytest.mark.parametrize("name", ["ddpacc2", "jaxdeep1p", "megatronep2", "megatrontp2"])
def test_no_healthy_rank_is_blamed_for_what_is_missing(name: str, alteration: str, tmp_path: Path) -> None:
    watched, wrongly = judged(FRESH / name / "recording", name, alteration, tmp_path)
    assert watched.looks
    assert not wrongly


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tp2", "tp2dp2"])
def test_without_a_log_the_rank_that_reads_for_a_tensor_group_is_not_blamed(
    name: str, tmp_path: Path
) -> None:
    watched, wrongly = judged(PHASES / name / "recording", name, "no log", tmp_path)
    of_ranks = [one for one in watched.of_phases if one.phase.ranks and must_be_named(one.phase)]
    assert of_ranks
    assert [one.phase.fault for one in of_ranks if one.named_after_s is None] == []
    # Of rank 1's fault nothing newer than mean steps every 3 s says that it is over.
    assert 0 not in wrongly


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sampled2", "validated2"])
def test_until_a_job_that_started_again_makes_steps_no_rank_is_blamed_for_its_start(
    name: str, tmp_path: Path
) -> None:
    watched, wrongly = judged(NOVEL / name / "recording", name, "restarted", tmp_path)
    assert watched.looks
    assert not wrongly


@pytest.mark.slow
@pytest.mark.parametrize("name", ["habits/earlyloader2", "random/random118", "random/random77"])
def test_no_healthy_rank_is_blamed_if_perfd_starts_while_a_job_runs(name: str, tmp_path: Path) -> None:
    recording = FRESH.parent / f"recorded_{name}/recording"
    watched, wrongly = judged(recording, recording.parent.name, "perfd starts late", tmp_path)
    assert watched.looks
    assert not wrongly


def test_a_name_that_no_recording_has_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--only", "nobody"])
    assert "no recording has such a name" in capsys.readouterr().err
