"""Hosts of all ranks that sleep while their GPUs have nothing to do wait for their input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, job_data, step_table
from analysis.test_late_hosts import LONGER, gpus
from analysis.test_lateness import STEP_S, gradients, lags

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations import LaunchReadings
from perfd.analysis.data.job_data import (
    GpuKey,
    GpuTable,
    JobData,
    LaunchTable,
    OperationPace,
    StepPauses,
)
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.findings import Finding, Kind
from perfd.analysis.steps import launches_of_training
from perfd.model import GpuColumn, RankColumn, RankPlacement
from perfd.thresholds import THRESHOLDS
from tests.support.nccl_records import NcclTime

RANKS = 4
SPANS_S = np.array([2.0, 4.0, 10.0, 60.0])
GAIN = 1 - 0.4 / 0.6


def launches(asleep: Sequence[Sequence[float]], *, busy: float = 0.01, ranks: int = RANKS) -> LaunchTable:
    """`asleep` is by window: of all ranks, or of each."""
    ratios = np.array([np.broadcast_to(np.array(one, dtype=float), ranks) for one in asleep])
    return LaunchTable(
        rank=np.arange(ranks),
        span_s=np.broadcast_to(SPANS_S[:, None], ratios.shape),
        asleep_ratio=ratios,
        loader_busy_ratio=np.full(ratios.shape, busy),
        loader_workers=np.full(ranks, 2.0),
        age_s=np.zeros(ranks),
    )


SINCE = launches([[0.4], [0.4], [0.2], [0.03]])
"""For as long as steps are longer, 4.8 s, and not before."""


def job(table: LaunchTable | None = SINCE, times_s: Sequence[float] = LONGER, **seen: object) -> JobData:
    steps = step_table(times_s)
    return job_data(
        steps,
        description=description(world_size=RANKS, dp=RANKS),
        gpu=gpus(steps, **seen),  # type: ignore[arg-type]
        launches=table,
    )


def loading(data: JobData) -> Finding | None:
    found = summarise(data, AnalysisSettings()).findings
    return next((one for one in found if one.kind is Kind.DATA_LOADING), None)


def paced(data: JobData, pause_s: Sequence[float], lead_s: Sequence[float]) -> JobData:
    pauses = StepPauses(
        step=np.arange(len(pause_s)), pause_s=np.array(pause_s), lead_s=np.array(lead_s, dtype=float)
    )
    pace = OperationPace(
        communicator="ab",
        operation="AllReduce",
        per_step=5,
        row_end_sequence=100,
        doubt=None,
        exact=True,
        pauses=pauses,
    )
    return replace(data, operation_pace=pace)


def test_hosts_that_began_to_sleep_when_steps_became_longer_wait_for_data_and_nobody_is_blamed() -> None:
    found = loading(job())

    assert found is not None
    assert (found.confidence, found.culprits) == (0.6, ())
    assert found.gain_ratio == pytest.approx(GAIN)
    assert "since step 13" in found.evidence[1]
    assert found.longer_for_s == pytest.approx(4.8)
    assert "loader workers of each rank sleep" in found.evidence[-2]
    assert "lock or a barrier" in found.evidence[-1]


def test_where_no_rank_has_loader_workers_hosts_are_late_and_what_for_is_unknown() -> None:
    no_workers = replace(
        SINCE,
        loader_workers=np.full(RANKS, np.nan),
        loader_busy_ratio=np.full(SINCE.asleep_ratio.shape, np.nan),
    )
    found = summarise(job(no_workers), AnalysisSettings()).findings
    late = [one for one in found if one.kind is Kind.LATE_HOSTS]

    assert loading(job(no_workers)) is None
    assert len(late) == 1
    assert (late[0].confidence, late[0].culprits) == (0.6, ())
    assert late[0].gain_ratio == pytest.approx(GAIN)
    assert "No loader workers of any rank" in late[0].evidence[-1]
    assert "py-spy" in late[0].advice
    # One rank that has some may be the one that all wait for.
    some = replace(no_workers, loader_workers=np.array([2.0, *[np.nan] * (RANKS - 1)]))
    assert loading(job(some)) is not None


def test_a_log_with_a_line_every_five_steps_is_no_obstacle_where_operations_show_each() -> None:
    lines = step_table([0.4, 0.4, 0.44, 0.6], steps_covered=[5] * 4)
    lines = replace(
        lines, step=np.array([5, 10, 15, 20]), time_unix_s=job().steps.time_unix_s[[4, 9, 14, -1]]
    )
    data = replace(job(), steps=lines)
    by_gpus = loading(data)
    assert by_gpus is not None
    assert by_gpus.since_step is None

    pace = OperationPace(
        communicator="ab", operation="AllReduce", per_step=5, row_end_sequence=100, doubt=None, exact=True
    )
    found = loading(replace(data, steps=step_table(LONGER), operation_pace=pace))
    assert found is not None
    assert found.gain_ratio == pytest.approx(GAIN)
    assert "since step 13" in found.evidence[1]


def on_one_gpu(active: Sequence[float], table: LaunchTable) -> JobData:
    """A job with one GPU, read once a second, whose log shows no times."""
    steps = step_table([float("nan")] * 4)
    seen = GpuTable(
        time_unix_s=1000.0 + np.arange(len(active)),
        gpus=[GpuKey(node="node0", gpu="0", rank=0)],
        metrics={GpuColumn.SM_ACTIVE: np.array(active, dtype=np.float32)[:, None]},
    )
    return job_data(
        steps,
        description=description(world_size=1),
        gpu=seen,
        launches=table,
        now_unix_s=1000.0 + len(active) - 1,
    )


ASLEEP_NOW = launches([[0.4], [0.4], [0.2], [0.03]], ranks=1)


def test_a_gpu_that_becomes_less_active_while_its_host_sleeps_shows_slow_input_without_steps() -> None:
    found = loading(on_one_gpu([0.9] * 20 + [0.6, 0.59, 0.61], ASLEEP_NOW))
    assert found is not None
    assert found.gain_ratio == pytest.approx(1 / 3, rel=0.01)
    assert found.longer_for_s == 3.0
    assert found.culprits == ()
    # As in recording alone26: the first fault came six seconds after the start.
    early = loading(on_one_gpu([0.0] * 9 + [0.9] * 5 + [0.6, 0.59, 0.61], ASLEEP_NOW))
    assert early is not None
    assert early.gain_ratio == found.gain_ratio
    assert (
        "SMs have been active 60.0% of the last 3000.0 ms, and 90.0% of the time before (GPM)."
        in found.evidence
    )


@pytest.mark.parametrize(
    "active",
    [
        pytest.param([0.9] * 20 + [0.6] * 2, id="for two seconds"),
        pytest.param([0.9] * 4 + [0.6] * 3, id="after four seconds"),
        pytest.param([0.9] * 20 + [0.84] * 4, id="by little"),
        pytest.param([0.9, 0.5, 0.7] * 7 + [0.5] * 4, id="as often"),
        pytest.param([0.0] * 24, id="before it begins"),
        pytest.param([0.9] * 20 + [0.02] * 4, id="pause"),
        pytest.param([0.9] * 20 + [0.02] * 4 + [0.6] * 4, id="after a pause"),
        pytest.param([0.9] * 20 + [0.6] * 4 + [0.9] * 2, id="over"),
        pytest.param([0.6] * 20 + [0.9] * 4, id="more active"),
    ],
)
def test_other_changes_of_a_gpu_s_activity_show_no_slow_input(active: Sequence[float]) -> None:
    assert loading(on_one_gpu(active, ASLEEP_NOW)) is None


@pytest.mark.parametrize(
    ("times_s", "found"),
    [
        pytest.param([0.6] * 40 + [0.4] * 10, False, id="shorter steps"),
        pytest.param([0.6] * 50, False, id="steps as long"),
        pytest.param([0.6] * 40 + [0.9] * 5, True, id="longer steps"),
        pytest.param([float("nan")] * 50, True, id="no times"),
    ],
)
def test_a_gpu_that_is_less_active_in_steps_no_longer_than_before_waits_for_no_input(
    times_s: Sequence[float], found: bool
) -> None:
    """As after a slow rank: its peers' GPUs wait no more in a kernel of NCCL."""
    steps = replace(step_table(times_s), time_unix_s=1024.0 - np.cumsum(times_s[::-1])[::-1] + times_s)
    data = replace(on_one_gpu([0.9] * 21 + [0.6] * 4, ASLEEP_NOW), steps=steps)
    assert (loading(data) is not None) is found


def test_a_host_that_launches_meanwhile_or_slept_as_much_before_has_no_slow_input() -> None:
    active = [0.9] * 20 + [0.6] * 4
    assert loading(on_one_gpu(active, launches([[0.2], [0.2], [0.1], [0.0]], ranks=1))) is None
    assert loading(on_one_gpu(active, launches([[0.4], [0.4], [0.4], [0.4]], ranks=1))) is None


@pytest.mark.parametrize(
    ("least", "found"), [(1.01, True), (0.99, False)], ids=["a little more", "a little less"]
)
def test_hosts_must_sleep_for_most_of_the_added_time(least: float, found: bool) -> None:
    asleep = least * THRESHOLDS.sleeping_hosts_asleep_ratio * GAIN
    assert (loading(job(launches([[asleep], [asleep], [asleep / 2], [0.0]]))) is not None) is found


@pytest.mark.parametrize(("busy", "sure"), [(0.8, 0.8), (0.79, 0.6), (0.2, 0.6)])
def test_workers_that_are_busy_are_what_the_input_waits_for(busy: float, sure: float) -> None:
    seen = loading(job(launches([[0.4], [0.4], [0.2], [0.03]], busy=busy)))
    assert seen is not None
    assert seen.confidence == sure
    asleep = any("workers of each rank sleep" in sentence for sentence in seen.evidence)
    assert asleep is (busy <= THRESHOLDS.loader_workers_asleep_ratio)


def test_a_window_that_holds_some_of_the_time_before_hides_nothing() -> None:
    """Steps are longer for 3 s: the newest 2 s are all of that, of the newest 4 s a second is not."""
    table = launches([[0.36], [0.27], [0.108], [0.018]])
    found = loading(job(table, [1 / 3] * 20 + [0.5] * 6))
    assert found is not None
    assert found.gain_ratio == pytest.approx(GAIN)
    # Without a third window, the rest of the second one shows the time before, if that is at least a second.
    assert loading(job(shortest_two(table), [1 / 3] * 20 + [0.5] * 6)) is not None
    mostly_since = shortest_two(launches([[0.36], [0.32], [0.108], [0.018]]))
    assert loading(job(mostly_since, [1 / 3] * 20 + [0.5] * 7)) is None


def shortest_two(table: LaunchTable) -> LaunchTable:
    return replace(
        table, **{name: getattr(table, name)[:2] for name in ("span_s", "asleep_ratio", "loader_busy_ratio")}
    )


@pytest.mark.parametrize("earlier", [0.0, 0.2, 0.5])
def test_a_rank_that_slept_in_an_earlier_fault_did_not_sleep_just_before_the_change(earlier: float) -> None:
    """In this job rank 0 had a late host at least 10 s ago: it slept then, too."""
    long_ago = [0.03 + earlier, 0.03, 0.03, 0.03]

    found = loading(job(launches([[0.4], [0.4], [0.2], long_ago])))

    assert found is not None
    assert (found.culprits, found.gain_ratio) == ((), pytest.approx(GAIN))
    # A rank that slept as much just before the change does not wait for data now.
    always = [0.4, 0.03, 0.03, 0.03]
    assert loading(job(launches([[0.4], [0.4], [0.4, 0.2, 0.2, 0.2], always]))) is None


LAST = (True, False, False, False)
"""The GPU of rank 0 idles; the others wait for it in a kernel of NCCL."""


def test_ranks_that_wait_in_nccl_wait_for_data_themselves_if_their_hosts_began_to_sleep() -> None:
    found = loading(job(idle=LAST))

    assert found is not None
    assert (found.culprits, found.gain_ratio) == ((), pytest.approx(GAIN))
    assert any("GPUs of ranks 1, 2, 3 wait in NCCL" in sentence for sentence in found.evidence)


@pytest.mark.parametrize(
    ("table", "seen"),
    [
        (launches([[0.4], [0.4], [0.24], [0.2]]), {}),
        (launches([[0.4, 0.0, 0.0, 0.0]] * 2 + [[0.2, 0.0, 0.0, 0.0], [0.03, 0.0, 0.0, 0.0]]), {}),
        (SINCE, {"more_work_s": [0, 0.1, 0.1, 0.1]}),
    ],
    ids=["they slept before", "they do not sleep", "their GPUs have more to do"],
)
def test_otherwise_they_wait_for_that_rank(table: LaunchTable, seen: dict[str, object]) -> None:
    assert loading(job(table, idle=LAST, **seen)) is None


@pytest.mark.parametrize("seen", [{"idle": LAST}, {"idle": LAST, "more_work_s": [0, 0.06, 0.06, 0.06]}])
def test_hosts_that_are_awake_for_far_less_of_a_step_wait_for_data_whatever_gpus_seem_to_do(
    seen: dict[str, object],
) -> None:
    # Clocks of GPUs and steps may be apart, so that GPUs seem to compute in a third of the added time.
    slept_before = 0.12
    found = loading(job(launches([[0.72], [0.72], [0.42], [0.22]]), **seen))
    assert found is not None
    assert found.culprits == ()
    # Who waits for longer is awake for as long: 0.88 of 400 ms are 0.59 of 600 ms.
    as_long = 1 - (1 - slept_before) * (1 - GAIN)
    assert loading(job(launches([[as_long], [as_long], [0.26], [0.17]]), **seen)) is None


def test_hosts_that_were_never_ahead_of_their_gpus_may_sleep_until_the_last_rank_comes() -> None:
    slack = job(idle=LAST)
    half = {**slack.gpu.metrics, GpuColumn.SM_ACTIVE: slack.gpu.metrics[GpuColumn.SM_ACTIVE] / 2}
    assert loading(replace(slack, gpu=replace(slack.gpu, metrics=half))) is None


def test_busy_workers_make_it_more_certain() -> None:
    found = loading(job(launches([[0.4], [0.4], [0.2], [0.03]], busy=0.99)))

    assert found is not None
    assert found.confidence == 0.8
    assert "busy 99.0% of the time" in found.evidence[-1]


@pytest.mark.parametrize(
    "table",
    [
        None,
        launches([[0.25], [0.25], [0.1], [0.02]]),
        launches([[0.4, 0.4, 0.05, 0.4]] * 2 + [[0.2], [0.03]]),
        launches([[0.4]] * 4),
        launches([[0.4], [0.4], [0.2], [0.03]], ranks=3),
    ],
    ids=["unknown", "too little", "not all", "before as well", "one unseen"],
)
def test_without_every_rank_asleep_for_the_added_time_and_not_before_it_is_not_named(
    table: LaunchTable | None,
) -> None:
    assert loading(job(table)) is None


def test_gpus_that_run_kernels_for_longer_have_work() -> None:
    assert loading(job(more_work_s=[0.2] * RANKS)) is None


def test_hosts_that_slept_before_too_were_ahead_of_their_gpus_then_and_are_not_now() -> None:
    always = job(launches([[0.5]] * 4))
    pauses_s, ahead = [0.1] * 12 + [0.3] * 8, [0.2] * 12

    lost = loading(paced(always, pauses_s, [*ahead, *[0.05] * 8]))
    assert lost is not None
    assert any("less far ahead" in sentence for sentence in lost.evidence)
    assert any("last reduction" in sentence for sentence in lost.evidence)
    assert loading(paced(always, pauses_s, [*ahead, *[0.2] * 8])) is None


def test_slow_from_the_first_step_they_sleep_for_as_long_as_gpus_idle() -> None:
    # GPUs run kernels for 0.38 of 0.6 s.
    found = loading(job(launches([[0.5]] * 4), [0.6] * 20))

    assert found is not None
    assert found.gain_ratio == pytest.approx(1 - 0.38 / 0.6, abs=0.01)
    assert loading(job(launches([[0.5, 0.5, 0.5, 0.05]] * 4), [0.6] * 20)) is None
    assert loading(job(launches([[0.5]] * 4), [0.4] * 20)) is None


def test_what_is_lost_of_the_time_in_which_hosts_sleep_is_a_share_of_its_mean_step() -> None:
    # The window that counts is 10 s long: 13 of these steps, of which three take twice as long.
    found = loading(job(launches([[0.5]] * 4), [0.6, 0.6, 0.6, 0.6, 1.2] * 4))

    assert found is not None
    assert found.step_s == pytest.approx(9.6 / 13)
    assert loading(job()) is not None
    assert (loading(job()) or found).step_s == pytest.approx(0.6)


def test_without_steps_the_time_in_which_the_job_trains_shows_it() -> None:
    always = on_one_gpu([0.5] * 20, launches([[0.5]] * 4, ranks=1))
    running = {**always.gpu.metrics, GpuColumn.BUSY: np.full((20, 1), 0.6, dtype=np.float32)}
    idling = replace(always, gpu=replace(always.gpu, metrics=running))

    found = loading(idling)
    assert found is not None
    assert found.gain_ratio == pytest.approx(0.4)
    for window, ratio in ((2, 0.05), (3, 0.5)):
        asleep = [[0.5] if at != window else [ratio] for at in range(4)]
        named = loading(replace(idling, launches=launches(asleep, ranks=1))) is not None
        assert named is (window == 3)
    young = replace(launches([[0.5]] * 4, ranks=1), span_s=np.full((4, 1), 4.0))
    assert loading(replace(idling, launches=young)) is None


def test_while_workers_of_all_ranks_are_busy_the_gpu_that_idles_most_counts_for_all() -> None:
    # Rank 1 gets its data last: the others wait for it in NCCL, which runs a kernel.
    waiting = (False, True, False, False)
    busy = launches([[0.5]] * 4, busy=THRESHOLDS.loader_workers_busy_ratio)
    found = loading(job(busy, [0.6] * 20, idle=waiting))

    assert found is not None
    assert (found.confidence, found.culprits) == (0.8, ())
    assert found.gain_ratio == pytest.approx(1 - 0.38 / 0.6, abs=0.01)
    assert any("GPU that idles most runs no kernel in 36." in sentence for sentence in found.evidence)
    apart = [[0.5, 0.5, 0.5, 0.39]] * 4
    assert loading(job(launches(apart, busy=0.79), [0.6] * 20, idle=waiting)) is None
    of_three = replace(launches(apart), loader_busy_ratio=np.tile([1.0, 1.0, 1.0, 0.5], (4, 1)))
    assert loading(job(of_three, [0.6] * 20, idle=waiting)) is None


@pytest.mark.parametrize(
    ("asleep", "busy", "gpus_seen", "named"),
    [
        ([0.5, 0.5, 0.5, 0.39], 0.8, False, False),
        ([0.5, 0.5, 0.5, 0.39], 0.79, False, True),
        ([0.5, 0.5, 0.5, 0.41], 0.79, False, False),
        ([0.06], 0.8, False, True),
        ([0.5], 0.8, True, True),
    ],
    ids=["all wait", "workers keep up", "all sleep as long", "costs more", "GPUs are busy"],
)
def test_a_rank_that_comes_last_while_all_wait_for_busy_workers_is_not_named_until_gpus_show_the_cost(
    asleep: list[float], busy: float, gpus_seen: bool, named: bool
) -> None:
    steps = step_table([STEP_S] * 100)
    data = job_data(
        steps,
        description=description(world_size=RANKS, dp=RANKS),
        collectives=[gradients(lags(20, RANKS, {0: 0.1}))],
        nccl=[NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(RANKS)],
        launches=launches([asleep] * 4, busy=busy),
        **({"gpu": gpus(steps, idle=(False,) * RANKS)} if gpus_seen else {}),
    )
    found = summarise(data, AnalysisSettings()).findings
    assert any(one.kind is Kind.STRAGGLER for one in found) is named


@pytest.mark.parametrize(("asleep", "named"), [(0.2, False), (0.185, False), (0.16, True)])
def test_a_rank_that_seems_to_cost_about_what_waiting_of_all_hosts_does_is_the_last_by_chance(
    asleep: float, named: bool
) -> None:
    steps = step_table([STEP_S] * 100)
    seen = gpus(steps, idle=(False,) * RANKS)
    idling = {**seen.metrics, GpuColumn.BUSY: np.full(seen.metrics[GpuColumn.BUSY].shape, 0.7)}
    data = job_data(
        steps,
        description=description(world_size=RANKS, dp=RANKS),
        collectives=[gradients(lags(20, RANKS, {0: 0.2}))],
        nccl=[NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(RANKS)],
        launches=launches([[asleep]] * 4),
        gpu=replace(seen, metrics=idling),
    )
    found = summarise(data, AnalysisSettings()).findings

    assert [one.kind for one in found if one.kind in {Kind.STRAGGLER, Kind.DATA_LOADING}][-1:] != []
    blamed = [one for one in found if one.kind is Kind.STRAGGLER]
    assert bool(blamed) is named
    assert all(one.gain_ratio == pytest.approx(0.2, abs=0.01) for one in blamed)


@pytest.mark.parametrize("idle_steps", [0, 30])
def test_what_gpus_did_before_the_newest_steps_does_not_show_that_they_are_busy(idle_steps: int) -> None:
    """Hosts sleep as long as each other; a GPU has idled for a quarter of the steps that are looked at."""
    steps = step_table([STEP_S] * 100)
    seen = gpus(steps, idle=(False,) * RANKS)
    running = np.ones(seen.metrics[GpuColumn.BUSY].shape, dtype=np.float32)
    running[len(running) - 2 * idle_steps :, 0] = 0.5
    data = job_data(
        steps,
        description=description(world_size=RANKS, dp=RANKS),
        collectives=[gradients(lags(20, RANKS, {0: 0.1}))],
        nccl=[NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(RANKS)],
        launches=launches([[0.5]] * 4),
        gpu=replace(seen, metrics={**seen.metrics, GpuColumn.BUSY: running}),
    )
    blamed = any(one.kind is Kind.STRAGGLER for one in summarise(data, AnalysisSettings()).findings)
    assert blamed is (idle_steps == 0)


def readings(counts: Sequence[tuple[float, float]], *, rank: int = 0) -> LaunchReadings:
    """Times and counters of one rank."""
    found = LaunchReadings(Limits(), AggregatorCounters())
    for time_s, busy_s in counts:
        found.put(rank, time_s, counted(busy_s), read_s=time_s)
    return found


def counted(busy_s: float) -> dict[RankColumn, float]:
    return {
        RankColumn.LAUNCH_BUSY: busy_s,
        RankColumn.LOADER_BUSY: 2 * busy_s,
        RankColumn.LOADER_WORKERS: 4.0,
        RankColumn.IO: 1e6 * busy_s,
    }


def test_rates_are_over_the_newest_readings() -> None:
    # Busy all the time for 20 s, then half of it for 4 s.
    counters = [(float(at), float(min(at, 20)) + max(0, at - 20) / 2) for at in range(25)]
    table = readings(counters, rank=3).table(24.0)

    assert table is not None
    assert table.rank.tolist() == [3]
    assert table.span_s[:, 0].tolist() == [2.0, 4.0, 10.0, 24.0]
    assert table.asleep_ratio[:, 0].tolist() == pytest.approx([0.5, 0.5, 0.2, 2 / 24])
    assert table.loader_busy_ratio[0, 0] == pytest.approx(2 * 0.5 / 4)
    assert table.io_bytes_per_s is not None
    assert table.io_bytes_per_s[:, 0].tolist() == pytest.approx([5e5, 5e5, 8e5, 22e6 / 24])


def test_what_a_rank_reads_and_writes_is_known_before_its_threads_are() -> None:
    found = LaunchReadings(Limits(), AggregatorCounters())
    for at in range(4):
        found.put(0, float(at), {RankColumn.IO: 3e6 * at}, read_s=float(at))
    table = found.table(3.0)
    assert table is not None
    assert table.io_bytes_per_s is not None
    assert table.io_bytes_per_s[:, 0].tolist() == pytest.approx([3e6] * 4)
    assert np.isnan(table.asleep_ratio).all()
    for at in (4, 5):
        found.put(0, float(at), counted(100.0 + at / 2), read_s=float(at))
    table = found.table(5.0)
    assert table is not None
    assert table.asleep_ratio[:, 0].tolist() == pytest.approx([0.5] * 4)


def test_counters_that_went_back_begin_again_and_a_silent_rank_has_no_row() -> None:
    restarted = readings([(0.0, 5.0), (1.0, 6.0), (2.0, 0.5)])

    table = restarted.table(2.0)
    assert table is not None
    assert np.isnan(table.asleep_ratio).all()
    assert table.loader_workers.tolist() == [4.0]
    restarted.put(0, 3.0, counted(0.75), read_s=3.0)
    table = restarted.table(4.5)
    assert table is not None
    assert table.asleep_ratio[-1, 0] == pytest.approx(0.75)
    assert table.age_s.tolist() == [1.5]
    assert restarted.table(60.0) is None
    restarted.clear()
    assert restarted.table(3.0) is None


@pytest.mark.parametrize(("after_s", "asleep"), [(0.0, 0.3), (1.2, 0.3), (3.2, 0.125), (20.0, None)])
def test_hosts_that_sleep_after_the_last_step_do_not_wait_for_input(
    after_s: float, asleep: float | None
) -> None:
    # The next line is due within two steps; of 10 s, 3 are asleep.
    data = job_data(step_table([0.6] * 50), launches=launches([[0.3]] * 4))
    table = launches_of_training(replace(data, now_unix_s=float(data.steps.time_unix_s[-1]) + after_s))

    assert table is not None
    found = float(table.asleep_ratio[2][0])
    assert np.isnan(found) if asleep is None else found == pytest.approx(asleep)


@pytest.mark.parametrize(("train_steps", "asleep"), [(50, 0.25), (51, 0.3), (None, 0.3)])
def test_of_a_job_that_has_made_its_last_step_hosts_do_not_wait_for_another(
    train_steps: int | None, asleep: float
) -> None:
    # Of 10 s, 3 are asleep, and the last line is two thirds of a second old.
    layout = replace(description(), train_steps=train_steps)
    data = job_data(step_table([0.6] * 50), description=layout, launches=launches([[0.3]] * 4))
    table = launches_of_training(replace(data, now_unix_s=float(data.steps.time_unix_s[-1]) + 2 / 3))

    assert table is not None
    assert float(table.asleep_ratio[2][0]) == pytest.approx(asleep)


@pytest.mark.parametrize(("train_steps", "asleep"), [(502, 0.25), (509, 0.3), (510, 0.3), (499, 0.25)])
def test_steps_after_the_last_line_of_a_job_are_its_last_ones(train_steps: int, asleep: float) -> None:
    # Lines of ten steps; two more take 1.2 s, and two thirds of a second later all hosts have slept so long.
    steps = step_table([0.6] * 50, step=np.arange(10, 510, 10), steps_covered=10)
    due_s = 1.2 if train_steps > 500 else 0.0
    layout = replace(description(), train_steps=train_steps)
    data = job_data(steps, description=layout, launches=launches([[0.3]] * 4))
    now_unix_s = float(data.steps.time_unix_s[-1]) + due_s + 2 / 3
    table = launches_of_training(replace(data, now_unix_s=now_unix_s))

    assert table is not None
    assert float(table.asleep_ratio[2][0]) == pytest.approx(asleep)


@pytest.mark.parametrize(("said", "named"), [(RANKS, True), (None, False), (2 * RANKS, False)])
def test_without_gpus_a_launcher_says_how_many_hosts_there_are(said: int | None, named: bool) -> None:
    """Only where all are seen to sleep do all wait for data."""
    placed = [RankPlacement(job="job", rank=rank, world_size=said) for rank in range(RANKS)]
    steps = step_table(LONGER)
    unseen = job_data(steps, description=description(), launches=SINCE, placements={"node0": placed})

    assert (loading(unseen) is not None) is named
