"""The benchmark of headlines: what it counts as a flip, as false blame and as right."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.headlines.__main__ import main, recordings
from benchmarks.headlines.looks import Look, OfPhase, Watched, must_be_named, unlike, watch
from benchmarks.headlines.truth import Phase, Truth, truth_of
from perfd.recording import bundled, bundled_names
from perfd.session.replay_session import ReplayOptions, replay

PHASES = Path(__file__).parents[2] / "benchmarks/gpu/recorded_phases"
STARTS = PHASES.with_name("recorded_starts")
ALONE = PHASES.with_name("recorded_alone")
HABITS, RANDOM = PHASES.with_name("recorded_habits"), PHASES.with_name("recorded_random")
ACCUMULATED, VARIED = ("ddpacc2", "fsdpacc2"), ("graphs2", "evaluation2", "pipeline2")


def _look(step: int, kind: str, *ranks: int) -> Look:
    return Look(
        at_s=float(step),
        unix_s=float(step),
        step=step,
        steady_steps=step,
        kind=kind,
        culprits=tuple(f"rank {rank}" for rank in ranks),
        gain_ratio=None,
        blamed=frozenset(ranks),
        roles=frozenset(),
        blamed_gain_ratio=0.2 if ranks else None,
    )


def _made(*looks: Look, truth: Truth) -> Watched:
    return Watched(name="made", looks=looks, truth=truth, took_s=0.0)


@cache
def _watched(run: Path) -> Watched:
    recording = run / "recording"
    return watch(recording, run.name, truth_of(recording))


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Watched:
    return _watched(request.param)


def _of(run: Path, *expected: float) -> Any:
    return pytest.param(run, *expected, id=run.name, marks=pytest.mark.slow)


HEALTHY = Truth(kinds=frozenset({"none"}))
SLOW_FROM_20 = Truth(kinds=frozenset({"straggler"}), ranks=frozenset({1}), since_step=20)


def test_headlines_count_as_flips_only_after_ten_steady_steps() -> None:
    early = _made(_look(5, "unknown"), _look(9, "none"), _look(12, "none"), truth=HEALTHY)
    late = _made(_look(9, "none"), _look(10, "none"), _look(11, "host_bound"), truth=HEALTHY)
    assert (early.flips, early.too_many_flips) == (0, False)
    assert (late.flips, late.too_many_flips) == (1, True)


def test_one_flip_is_right_where_a_fault_begins() -> None:
    watched = _made(_look(15, "none"), _look(25, "straggler", 1), truth=SLOW_FROM_20)
    assert (watched.flips, watched.too_many_flips, watched.right) == (1, False, True)
    assert not watched.false_blame


def test_a_rank_that_is_blamed_before_its_fault_is_blamed_wrongly() -> None:
    watched = _made(_look(19, "straggler", 1), _look(20, "straggler", 1), truth=SLOW_FROM_20)
    assert watched.false_blame == {1}
    later = _made(_look(20, "straggler", 1), truth=SLOW_FROM_20)
    assert not later.false_blame


def test_a_right_kind_with_the_wrong_rank_is_not_right() -> None:
    watched = _made(_look(30, "straggler", 0), truth=SLOW_FROM_20)
    assert watched.right is False
    assert watched.false_blame == {0}


def test_a_slow_host_without_peers_is_named_by_its_role_and_a_slow_gpu_is_not() -> None:
    role = replace(_look(25, "late_hosts"), roles=frozenset({0}), gain_ratio=0.2)

    def of_phase(fault: str, look: Look, *ranks: int) -> OfPhase:
        phase = Phase(
            fault=fault, begin_unix_s=20.0, end_unix_s=30.0, ranks=frozenset(ranks), lost_ratio=0.25
        )
        return _made(look, truth=Truth(kinds=frozenset(), phases=[phase])).of_phases[0]

    named = of_phase("host", role, 0)
    assert (named.named_after_s, named.gain_error) == (5.0, pytest.approx(0.05))
    assert of_phase("loader", role).named_after_s == 5.0
    assert of_phase("host", role, 1).named_after_s is None
    assert of_phase("gpu", role, 0).named_after_s is None
    assert of_phase("host", replace(role, blamed=frozenset({1})), 0).named_after_s is None


def test_the_summary_of_a_whole_job_names_the_fault_that_cost_a_tenth_of_it_or_what_cost_more() -> None:
    def at_end(*ranks: int, gain_ratio: float | None = None, lost_ratio: float = 0.4) -> bool | None:
        phases = [
            Phase(
                fault=fault,
                begin_unix_s=begin_s,
                end_unix_s=end_s,
                ranks=frozenset(faulty),
                lost_ratio=lost_ratio if faulty else None,
            )
            for fault, begin_s, end_s, faulty in [("healthy", 0.0, 70.0, ()), ("gpu", 70.0, 100.0, (1,))]
        ]
        end = replace(_look(30, "straggler" if ranks else "compute_bound", *ranks), gain_ratio=gain_ratio)
        return replace(_made(end, truth=Truth(kinds=frozenset(), phases=phases)), end=end).right_at_end

    # It cost 12% of the job's time.
    assert at_end(1) is True
    assert at_end() is False
    assert at_end(gain_ratio=0.2) is True
    assert at_end(lost_ratio=0.3) is True
    assert at_end(0, gain_ratio=0.2) is False
    assert _made(_look(30, "none"), truth=HEALTHY).right_at_end is None


@pytest.mark.parametrize("watched", [_of(PHASES / "tp2")], indirect=True)
def test_the_only_rank_that_reads_data_is_never_blamed_for_a_host_that_may_wait_for_it(
    watched: Watched,
) -> None:
    host = next(one for one in watched.of_phases if one.phase.fault == "host")
    assert host.named_after_s is not None
    assert host.named_after_s <= 5.0
    assert all(0 not in look.blamed for look in watched.looks)
    assert any(look.blamed == {1} for look in watched.looks)


@pytest.mark.parametrize("name", bundled_names())
def test_every_recording_that_ships_has_its_truth(name: str) -> None:
    truth = truth_of(bundled(name))
    assert truth is not None
    assert truth.kinds


def test_recordings_are_chosen_by_name() -> None:
    assert [name for name, _ in recordings([], ["dp4_slow"])] == ["dp4_slow2"]


def test_a_slow_rank_is_named_at_every_look_that_names_one(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["dp4_slow2"])
    assert code == 0
    assert "straggler: rank 2" in capsys.readouterr().out


@pytest.mark.parametrize("watched", [_of(PHASES / name) for name in ("ddp", "fsdp2")], indirect=True)
def test_a_loop_without_steps_in_its_log_has_its_slow_ranks_named(watched: Watched) -> None:
    due = [one for one in watched.of_phases if one.phase.ranks and must_be_named(one.phase)]
    assert len(due) == 3
    for one in due:
        assert one.named_after_s is not None
        assert one.named_after_s <= 5.5
        assert one.gain_error is not None
        assert one.gain_error <= 0.08
    # A fault may be named for as long after its end as it takes to name one, however soon others follow.
    phases = {rank: one.phase for one in due for rank in one.phase.ranks}
    for look in watched.looks:
        for rank in look.blamed:
            assert phases[rank].begin_unix_s <= look.unix_s <= phases[rank].end_unix_s + 5.5


@pytest.mark.parametrize(
    ("watched", "within_s", "error"),
    [
        _of(ALONE / "one", 5.0, 0.01),
        _of(ALONE / "trainer1", 5.0, 0.07),
        _of(ALONE / "silent1", 6.5, 0.05),
        _of(ALONE / "one_storage", 13.0, 0.02),
        _of(ALONE / "evaluation1", 9.0, 0.15),
        _of(ALONE / "megatron1", 5.0, 0.07),
        _of(ALONE / "lightning1", 5.5, 0.22),
    ],
    indirect=["watched"],
)
def test_on_one_gpu_late_input_and_a_sleeping_host_are_named_and_it_ends_with_them(
    watched: Watched, within_s: float, error: float
) -> None:
    """By a log of every fifth step, or without one; slow storage is there from the start."""
    for one in (each for each in watched.of_phases if each.phase.fault != "healthy"):
        assert one.named_after_s is not None
        assert one.named_after_s <= within_s
        assert one.gain_error is not None
        assert one.gain_error <= error
    assert not watched.false_blame
    assert not watched.too_many_flips


@pytest.mark.parametrize("watched", [_of(ALONE / "growing1"), _of(ALONE / "graphs1")], indirect=True)
def test_on_one_gpu_a_job_without_faults_has_a_steady_headline_that_blames_nobody(watched: Watched) -> None:
    assert watched.right
    assert not watched.false_blame
    assert not watched.too_many_flips


@pytest.mark.parametrize("watched", [_of(PHASES / "ep4")], indirect=True)
def test_shares_that_cross_their_limits_for_a_moment_change_no_headline(watched: Watched) -> None:
    # Four faults begin and end; one is named by its rank first, and by its experts later.
    assert watched.flips <= 9


@pytest.mark.parametrize(
    "watched", [_of(PHASES / name) for name in ("dp4", "ep4", "pp2dp2", "pp4", "tp2pp2")], indirect=True
)
def test_slow_loaders_of_all_ranks_without_timers_are_late_hosts_and_blame_no_rank(watched: Watched) -> None:
    (loader,) = [one for one in watched.of_phases if one.phase.fault == "loader"]
    assert loader.named_after_s is not None
    assert loader.named_after_s <= 5.0
    assert loader.gain_error is not None
    assert loader.gain_error < 0.04
    assert not loader.wrongly
    late = [look for look in watched.looks if look.kind == "late_hosts"]
    assert all(look.unix_s >= loader.phase.begin_unix_s for look in late)


@pytest.mark.parametrize(
    ("watched", "within_s"),
    [
        _of(STARTS / name, within_s)
        for name, within_s in {
            "ddp2": 5.0,
            "fsdp2x2": 5.0,
            "lightning2": 5.0,
            "lightning2_checkpoint": 5.0,
            "ddpacc2": 5.0,
            "fsdpacc2": 5.0,
            "ddp2storage": 20.0,
        }.items()
    ],
    indirect=["watched"],
)
def test_slow_data_of_loops_without_timers_is_named_and_no_rank_is(watched: Watched, within_s: float) -> None:
    (slow,) = [one for one in watched.of_phases if one.phase.fault in {"loader", "storage"}]
    assert slow.named_after_s is not None
    assert slow.named_after_s <= within_s
    assert slow.gain_error is not None
    assert slow.gain_error < 0.08
    assert not watched.false_blame
    named = [look for look in watched.looks if look.kind == "data_loading"]
    assert all(look.unix_s >= slow.phase.begin_unix_s for look in named)


@pytest.mark.parametrize(
    "watched",
    [
        _of(STARTS / name)
        for name in (
            "ddpacc2",
            "ep2",
            "fsdpacc2",
            "fsdp2x2decoding",
            "fsdp2d",
            "trainer2d",
            "graphs2",
            "evaluation2",
        )
    ],
    indirect=True,
)
def test_every_fault_of_a_run_is_named_and_no_other_rank_is(watched: Watched) -> None:
    assert watched.right
    assert not watched.false_blame
    assert not watched.too_many_flips


@pytest.mark.parametrize("watched", [_of(STARTS / "lightning2_checkpoint")], indirect=True)
def test_a_job_that_writes_its_last_checkpoint_for_twelve_seconds_does_not_hang(watched: Watched) -> None:
    assert not any(look.kind == "hang" for look in watched.looks)


@pytest.mark.parametrize(
    ("watched", "steps"),
    [
        _of(STARTS / name, steps)
        for name, steps in {"ddp2": 106, "fsdp2x2": 98, "fsdp2x2decoding": 76, "lightning2": 78}.items()
    ],
    indirect=["watched"],
)
def test_steps_by_operations_are_as_many_as_the_job_made(watched: Watched, steps: int) -> None:
    assert watched.looks[-1].step == steps


@pytest.mark.parametrize("watched", [_of(PHASES / "tp2")], indirect=True)
@pytest.mark.parametrize("tick_s", [0.7, 1.3])
def test_rounds_at_other_times_have_the_same_headlines(watched: Watched, tick_s: float) -> None:
    others = watch(PHASES / "tp2" / "recording", "tp2", None, tick_s=tick_s).looks
    assert len({look.said for look in watched.looks}) > 3
    # One may have a headline that is shown for a second.
    assert len(unlike(watched.looks, others)) <= 1


def test_a_headline_is_unlike_others_if_none_at_about_its_time_says_it() -> None:
    looks = [_look(10, "none"), _look(20, "straggler", 1)]
    assert unlike(looks, [_look(12, "none"), _look(18, "straggler", 1)]) == []
    assert unlike(looks, [_look(12, "none"), _look(17, "straggler", 1)]) == looks[1:]
    assert unlike(looks, [_look(12, "none"), _look(18, "straggler", 2)]) == looks[1:]


@pytest.mark.parametrize("watched", [_of(STARTS / "lengths2")], indirect=True)
def test_if_batch_lengths_differ_between_two_ranks_only_the_late_rank_is_named(watched: Watched) -> None:
    (host,) = [one for one in watched.of_phases if one.phase.fault == "host"]
    assert host.named_after_s is not None
    assert host.named_after_s <= 5.0
    assert not watched.false_blame


@pytest.mark.parametrize("watched", [_of(STARTS / "tensor2")], indirect=True)
def test_a_late_host_in_tensor_parallel_modules_is_named_with_what_it_costs(watched: Watched) -> None:
    # It sleeps in each step, but only every fifth step, which reads the loss, is longer: 5 to 7% on average.
    named = [look for look in watched.looks if look.blamed]
    assert named
    assert all(look.blamed == {1} for look in named)
    assert all(0.04 <= (look.gain_ratio or 0.0) <= 0.08 for look in named)


@pytest.mark.parametrize(
    ("watched", "headline", "cost_ratio"),
    [
        # Two hosts of middle stages are busy for 19% of the time: not unequal stages.
        _of(RANDOM / "random16", ("straggler", ("rank 1", "rank 2")), 0.19),
        # A host costs 6%, the stages cost more all the time.
        _of(HABITS / "megatronuneven2", ("pipeline_imbalance", ("stage 0",)), None),
        _of(ALONE / "one_storage", ("data_loading", ()), 0.34),
        _of(ALONE / "silent1", ("data_loading", ()), 0.07),
        _of(PHASES / "dp4", ("straggler", ("rank 2",)), 0.05),
    ],
    indirect=["watched"],
)
def test_the_summary_of_a_job_that_is_over_names_what_cost_it_most(
    watched: Watched, headline: tuple[str, tuple[str, ...]], cost_ratio: float | None
) -> None:
    assert watched.end is not None
    assert watched.end.said == headline
    assert watched.right_at_end
    if cost_ratio is not None:
        assert watched.end.gain_ratio == pytest.approx(cost_ratio, abs=0.1)


def test_the_page_of_a_job_that_is_over_has_the_headline_of_its_summary() -> None:
    pages: list[dict[str, Any]] = []
    options = ReplayOptions(recording=RANDOM / "random16" / "recording", allow_missing=True)
    result = replay(options, on_end=lambda _, aggregator: pages.extend(aggregator.overview("random16")))

    (summary,), (page,) = result.summaries, pages
    assert page["bottleneck"]["kind"] == summary.bottleneck.kind.value == "straggler"
    assert [culprit["id"] for culprit in page["bottleneck"]["culprits"]] == [1, 2]


@pytest.mark.parametrize("watched", [_of(RANDOM / name) for name in ("pair39", "pair43")], indirect=True)
def test_the_late_one_of_two_that_cannot_both_be_late_stays_named(watched: Watched) -> None:
    """Tensor rank 0 of a group of two, and the first of two stages."""
    (host,) = [one for one in watched.of_phases if one.phase.fault == "host"]
    assert host.named_after_s is not None
    assert not watched.false_blame
    # One where it begins, and one at most after its end.
    assert not watched.too_many_flips


@pytest.mark.parametrize("watched", [_of(RANDOM / "pair58")], indirect=True)
def test_a_host_that_becomes_slower_in_the_first_steps_of_a_job_is_not_blamed(watched: Watched) -> None:
    assert not watched.false_blame


@pytest.mark.parametrize(
    "watched", [_of(RANDOM / name) for name in ("pair62", "pair70", "random70")], indirect=True
)
def test_ranks_of_a_silent_loop_that_are_late_in_turn_are_not_blamed(watched: Watched) -> None:
    """Their steps are micro-batches, of which one host is late for 40 and then another one."""
    assert not watched.false_blame
    # The rank with a fault in pair62 is late again for a second, long after that one, and is named for it.
    assert watched.name == "pair62" or not watched.too_many_flips


@pytest.mark.parametrize(
    "watched", [_of(RANDOM / name) for name in ("pair82", "pair83", "random111", "random115")], indirect=True
)
def test_hosts_that_drift_are_not_blamed(watched: Watched) -> None:
    """In tensor and expert pairs for some steps, and in half a step that is seen as micro-batches."""
    assert not watched.false_blame


@pytest.mark.parametrize("watched", [_of(RANDOM / "random128")], indirect=True)
def test_the_last_of_ranks_that_all_load_slowly_is_not_blamed(watched: Watched) -> None:
    assert not watched.false_blame
    assert not watched.too_many_flips


@pytest.mark.parametrize("watched", [_of(RANDOM / "pair105")], indirect=True)
def test_communicators_that_only_the_start_of_a_job_used_blame_no_rank(watched: Watched) -> None:
    assert not watched.false_blame


@pytest.mark.parametrize("watched", [_of(RANDOM / "random64")], indirect=True)
def test_of_two_stages_that_are_late_together_the_host_whose_gpu_idles_stays_named(watched: Watched) -> None:
    (busy,) = [one.phase for one in watched.of_phases if one.phase.fault == "busy"]
    blamed = [look.blamed for look in watched.looks if look.blamed and look.unix_s > busy.begin_unix_s]
    assert blamed
    assert set(blamed) == {frozenset({2})}


@pytest.mark.parametrize("watched", [_of(RANDOM / "random75")], indirect=True)
def test_a_gpu_with_more_work_costs_what_steps_gain_and_not_what_its_peers_wait(watched: Watched) -> None:
    """Its tensor group waits 65% of each step, most of it because hosts launch late."""
    gains = [look.blamed_gain_ratio for look in watched.looks if look.blamed and look.blamed_gain_ratio]
    assert gains
    assert max(gains) < 0.30


@pytest.mark.parametrize("watched", [_of(RANDOM / "random54")], indirect=True)
def test_a_gpu_that_computes_for_three_percent_longer_than_its_peers_is_not_blamed(watched: Watched) -> None:
    """It costs 2.3% of a step, and 3.3% (standard error 0.5%) in two looks."""
    assert not watched.false_blame
    assert not watched.too_many_flips


@pytest.mark.parametrize("watched", [_of(RANDOM / name) for name in ("pair50", "pair57")], indirect=True)
def test_hosts_that_sleep_after_the_last_step_of_a_job_do_not_limit_it(watched: Watched) -> None:
    assert watched.end is not None
    assert watched.end.kind == "host_bound"
    assert watched.right_at_end


@pytest.mark.parametrize("watched", [_of(RANDOM / "random6")], indirect=True)
def test_a_slow_rank_stays_named_where_lines_of_five_steps_say_how_many_micro_batches_one_has(
    watched: Watched,
) -> None:
    (host,) = [one for one in watched.of_phases if one.phase.fault == "host"]
    assert host.named_after_s is not None
    assert not watched.false_blame
    assert watched.flips == 0


@pytest.mark.parametrize("watched", [_of(RANDOM / "random50")], indirect=True)
def test_four_tensor_ranks_that_launch_late_in_turn_keep_their_headline_if_each_idles_little(
    watched: Watched,
) -> None:
    assert {look.kind for look in watched.looks} == {"unknown", "launch_bound"}
    assert watched.flips == 0


@pytest.mark.parametrize("watched", [_of(RANDOM / "random43")], indirect=True)
def test_late_hosts_that_samples_show_a_second_after_the_line_of_a_long_step_are_the_headline(
    watched: Watched,
) -> None:
    """Steps of 3.6 s: another line may be the job's last."""
    (host,) = [one.phase for one in watched.of_phases if one.phase.fault == "host"]
    assert any(
        look.kind == "late_hosts" and host.begin_unix_s < look.unix_s < host.end_unix_s
        for look in watched.looks
    )


@pytest.mark.parametrize("watched", [_of(RANDOM / "random51")], indirect=True)
def test_what_is_said_after_the_last_phase_with_a_truth_is_no_flip(watched: Watched) -> None:
    """A time limit ended the job four steps after a host became slow."""
    assert watched.looks[-1].blamed == {2}
    assert watched.flips == 0
