"""Verdicts that blame a link, a silent rank, the data or the host: and those that blame nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, gpu_table, infos, job_data, phase_table, step_table
from analysis.test_nccl import DP4, summary, table

from perfd.analysis.collectives.slow_links import Reference
from perfd.analysis.data.job_data import GpuKey, GpuTable, LaunchTable
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.analysis.hang.hang_detection import hang
from perfd.analysis.hang.silence import longest_pause_s
from perfd.gpu_peaks import load_peaks
from perfd.model import CollectiveProgress, Event, EventKind, ParallelLayout
from perfd.thresholds import THRESHOLDS
from tests.support.nccl_records import CollectiveTable, NcclTime

H200 = "NVIDIA H200"
STEPS = step_table([1.0] * 20)


def finding(result: JobSummary, kind: Kind) -> Finding | None:
    return next((one for one in result.findings if one.kind is kind), None)


def ranks_of(found: Finding | None) -> list[int | str]:
    assert found is not None
    return [culprit.id for culprit in found.culprits]


# Links.


def test_a_group_that_was_twice_as_fast_before_has_a_slow_link_and_no_rank_is_blamed():
    slow = table([0, 1, 2, 3], [0, 0, 0, 0], transfer_s=0.02, best_s_per_byte=0.01 / 1e9, best_size_bytes=1e9)

    result = summary([slow])

    assert result.bottleneck.kind is Kind.SLOW_LINK
    assert [culprit.kind for culprit in result.bottleneck.culprits] == ["group"]
    (group,) = result.nccl.slow_groups
    assert (group.reference, group.slowdown_ratio) == (Reference.HISTORY, pytest.approx(2))
    # 20% of the time, of which half would do.
    assert result.bottleneck.gain_ratio == pytest.approx(0.1)
    assert finding(result, Kind.STRAGGLER) is None


def test_waiting_for_a_late_rank_is_not_taken_for_a_slow_link():
    late = table([0, 1, 2, 3], [0, 0, 0.05, 0], best_s_per_byte=0.01 / 1e9, best_size_bytes=1e9)

    result = summary([late])

    assert result.nccl.slow_groups == ()
    assert result.bottleneck.kind is Kind.STRAGGLER


def test_small_messages_are_not_held_against_the_pace_of_large_ones():
    small = table(
        [0, 1, 2, 3],
        [0, 0, 0, 0],
        size_bytes=np.full(100, 1e4),
        best_s_per_byte=0.01 / 1e9,
        best_size_bytes=1e9,
    )

    assert summary([small]).nccl.slow_groups == ()


def test_one_slow_group_among_its_sisters_is_found():
    layout = description(world_size=8, tp=2, dp=4, micro_batch_size=1, global_batch_size=8)
    pairs = [
        table(
            [2 * pair, 2 * pair + 1], [0, 0], transfer_s=0.03 if pair == 2 else 0.01, communicator=f"c{pair}"
        )
        for pair in range(4)
    ]

    result = summary(pairs, job=layout)

    (group,) = result.nccl.slow_groups
    assert (group.reference, group.ranks, group.group) == (Reference.SISTERS, (4, 5), "tp")


@pytest.mark.parametrize("costliest", [0, 1])
def test_slow_groups_that_cost_about_as_much_keep_their_order(costliest):
    layout = description(world_size=16, tp=2, dp=8, micro_batch_size=1, global_batch_size=8)
    slow_s = {1: 0.030, 2: 0.030}
    slow_s[1 + costliest] += 0.001
    pairs = [
        table([2 * pair, 2 * pair + 1], [0, 0], transfer_s=slow_s.get(pair, 0.01), communicator=f"c{pair}")
        for pair in range(8)
    ]

    found = finding(summary(pairs, job=layout), Kind.SLOW_LINK)

    assert ranks_of(found) == ["tp[2,3]", "tp[4,5]"]


def on_one_node(slow: CollectiveTable, gpu_name: str) -> JobSummary:
    """A job of four GPUs of a node, whose NCCL warns that it goes through shared memory."""
    gpus = GpuTable(
        time_unix_s=np.zeros(0), gpus=[GpuKey(node="n", gpu=str(r), rank=r) for r in range(4)], metrics={}
    )
    remark = Event(kind=EventKind.NCCL_WARNING, time_unix_ns=1, message="NCCL connects GPUs through SHM.")
    data = job_data(
        STEPS,
        description=DP4,
        collectives=[slow],
        nccl=[NcclTime(rank=r, busy_s=5, span_s=10, lost_operations=0) for r in range(4)],
        gpu=gpus,
        gpu_infos={"n": infos(gpu_name, 4)["node0"]},
        events=[remark],
    )
    return summarise(data, AnalysisSettings(peaks=load_peaks()))


def test_nccl_that_does_not_use_nvlink_is_held_against_it():
    slow = table([0, 1, 2, 3], [0, 0, 0, 0], transfer_s=0.05)

    result = on_one_node(slow, H200)

    (group,) = result.nccl.slow_groups
    assert (group.reference, group.expected_bytes_per_s) == (Reference.LINKS, pytest.approx(450e9))
    assert result.bottleneck.confidence == 0.9
    assert "NCCL connects GPUs through SHM. (NCCL_DEBUG)" in result.bottleneck.evidence
    # Cards that no NVLink joins need not be faster.
    assert on_one_node(slow, "NVIDIA H100 PCIe").nccl.slow_groups == ()


@pytest.mark.parametrize(("size_bytes", "found"), [(8 << 20, 1), ((8 << 20) - 1, 0)])
def test_only_large_messages_are_held_against_nvlink(size_bytes: int, found: int):
    small = table(
        [0, 1, 2, 3],
        [0, 0, 0, 0],
        # A sixteenth of what NVLink does.
        transfer_s=1.5 * size_bytes / (450e9 / 16),
        size_bytes=np.full(100, float(size_bytes)),
        kernel_ratio=[0.5] * 4,
    )

    assert len(on_one_node(small, H200).nccl.slow_groups) == found


@pytest.mark.parametrize(("of_links", "found"), [(8.01, 1), (7.99, 0)])
def test_transfers_below_an_eighth_of_nvlink_are_slow(of_links: float, found: int):
    slow = table(
        [0, 1, 2, 3], [0, 0, 0, 0], transfer_s=1.5 * 1e9 / (450e9 / of_links), kernel_ratio=[0.5] * 4
    )

    assert len(on_one_node(slow, H200).nccl.slow_groups) == found


@pytest.mark.parametrize(("times", "found"), [(1.51, 1), (1.49, 0)])
def test_a_group_is_slow_at_half_more_than_its_own_best_pace(times: float, found: int):
    slow = table(
        [0, 1, 2, 3], [0, 0, 0, 0], transfer_s=0.01 * times, best_s_per_byte=0.01 / 1e9, best_size_bytes=1e9
    )

    assert len(summary([slow]).nccl.slow_groups) == found


def test_a_slow_group_that_takes_next_to_no_time_is_not_reported():
    slow = table(
        [0, 1, 2, 3],
        [0, 0, 0, 0],
        best_s_per_byte=0.001 / 1e9,
        best_size_bytes=1e9,
        kernel_ratio=[0.01] * 4,
    )

    assert summary([slow]).nccl.slow_groups == ()


# Pipelines and tensor groups that are late together.


def late_pipeline(**recv_waits: float) -> JobSummary:
    """Two stages of two ranks: pipeline 1 (ranks 1 and 3) is late for both stages' reductions."""
    layout = description(world_size=4, dp=2, pp=2, micro_batch_size=1, global_batch_size=8)
    tables = [table([0, 1], [0, 0.02]), table([2, 3], [0, 0.02], communicator="cd")]
    for name, wait in recv_waits.items():
        sender, receiver = map(int, name[1:].split("_"))
        tables.append(table([sender, receiver], [wait, 0.0], operation="SendRecv", communicator=name))
    return summary(tables, job=layout)


def test_of_a_late_pipeline_the_rank_that_waits_for_nobody_is_named():
    result = late_pipeline(p1_3=0.02)

    assert ranks_of(finding(result, Kind.STRAGGLER)) == [1]
    assert "Rank 3 is late too, but it waits meanwhile." in result.bottleneck.evidence


def test_of_a_late_pipeline_nobody_is_named_when_nothing_distinguishes_them():
    result = late_pipeline()

    found = finding(result, Kind.STRAGGLER)
    assert ranks_of(found) == []
    assert found.confidence == 0.4
    assert "Which of them is slow is unknown." in found.evidence


def test_timers_settle_which_rank_of_a_late_pipeline_is_slow():
    layout = description(world_size=4, dp=2, pp=2, micro_batch_size=1, global_batch_size=8)
    steps = step_table([0.1] * 200)
    by_rank = {"forward-compute": [0.02, 0.02, 0.02, 0.03], "backward-compute": [0.04, 0.04, 0.04, 0.06]}
    tables = [table([0, 1], [0, 0.02]), table([2, 3], [0, 0.02], communicator="cd")]
    job = job_data(
        steps,
        description=layout,
        phases=phase_table(steps, by_rank=by_rank),
        collectives=tables,
        nccl=[NcclTime(rank=r, busy_s=2, span_s=10, lost_operations=0) for r in range(4)],
    )

    result = summarise(job, AnalysisSettings())

    assert ranks_of(result.bottleneck) == [3]
    assert result.bottleneck.confidence == 0.9
    assert {one.rank: one.ratio for one in result.slowdowns} == pytest.approx({0: 1, 1: 1, 2: 0.8, 3: 1.2})


# Ranks that say nothing.


def test_where_a_rank_is_missing_nobody_of_its_stage_is_blamed_and_the_missing_one_is_reported():
    layout = description(world_size=4, tp=2, dp=2, micro_batch_size=1, global_batch_size=8)
    # Rank 3 is silent; rank 2, in its tensor group, is late because of it.
    result = summary([table([0, 1], [0, 0]), table([0, 2], [0, 0.05], communicator="cd")], job=layout)

    assert finding(result, Kind.STRAGGLER) is None
    assert result.nccl.missing_ranks == (3,)
    missing = finding(result, Kind.MISSING_TELEMETRY)
    assert missing.culprits == ()
    assert "from rank 3" in missing.evidence[0]
    assert "no rank of their stage" in missing.evidence[0]


def test_where_one_is_silent_another_stage_of_a_pipeline_may_be_late_because_of_one_that_is_not_seen():
    stages = description(world_size=4, pp=2, dp=2, micro_batch_size=1, global_batch_size=8)
    late = table([0, 1], [0.05, 0])
    seen = summary([late, table([2, 3], [0, 0], communicator="cd")], job=stages)
    assert finding(seen, Kind.STRAGGLER) is not None
    # Rank 3 is silent, so that of rank 2, whose pipeline rank 0 is of, nothing is known.
    assert finding(summary([late, table([2], [0], communicator="cd")], job=stages), Kind.STRAGGLER) is None


@pytest.mark.parametrize(("behind_s", "named"), [(7.0, True), (20.0, False)])
def test_whom_ranks_waited_for_some_time_ago_need_not_be_late_any_more(behind_s: float, named: bool):
    """Operations of rank 3, ten a second, come late."""
    operations = table([0, 1, 2, 3], [0, 0, 0.05, 0], operations=300, operations_per_s=10.0)
    durations = operations.durations_s.copy()
    durations[300 - round(10 * behind_s) :, 3] = np.nan
    result = summary([replace(operations, durations_s=durations)])

    assert (finding(result, Kind.STRAGGLER) is not None) is named
    assert result.nccl.behind_ranks == (() if named else (3,))
    if not named:
        missing = finding(result, Kind.MISSING_TELEMETRY)
        assert "Operations of rank 3 come seconds later" in missing.evidence[0]
        assert "comes late" in missing.advice


@pytest.mark.parametrize(("counted", "named"), [(5000, False), (50, True)])
def test_a_rank_that_counts_operations_and_reports_none_may_be_the_late_one(counted: int, named: bool):
    times = [
        NcclTime(rank=r, busy_s=3, span_s=10, lost_operations=0, operations=5000 if r < 3 else counted)
        for r in range(4)
    ]
    late = table([0, 1, 2], [0, 0, 0.05])
    job = job_data(step_table([0.1] * 200), description=DP4, collectives=[late], nccl=times)
    result = summarise(job, AnalysisSettings())

    assert (finding(result, Kind.STRAGGLER) is not None) is named
    assert result.nccl.behind_ranks == (() if named else (3,))


def test_a_finding_that_rests_on_a_part_of_the_operations_says_so():
    def judged(lost: int) -> JobSummary:
        waits = [table([0, 1, 2, 3], [0, 0, 0.02, 0])]
        times = [NcclTime(rank=r, busy_s=3, span_s=10, lost_operations=lost) for r in range(4)]
        steps = step_table([0.1] * 200)
        loading = phase_table(steps, {"batch-generator": (0.02, 0.02)})
        return summarise(
            job_data(steps, description=DP4, collectives=waits, nccl=times, phases=loading),
            AnalysisSettings(),
        )

    note = "1,200 NCCL operations were not seen (nccl plugin): this rests on the others."
    some = judged(300)
    assert finding(some, Kind.STRAGGLER).evidence[-1] == note
    assert note not in finding(some, Kind.DATA_LOADING).evidence
    assert all("not seen" not in sentence for one in judged(0).findings for sentence in one.evidence)


def test_a_rank_whose_agent_died_is_missing_though_it_reported_before():
    times = [
        NcclTime(rank=r, busy_s=1, span_s=10, lost_operations=0, read_s=900 if r == 2 else 1000 + r)
        for r in range(4)
    ]
    job = job_data(STEPS, description=DP4, collectives=[table([0, 1, 2, 3], [0, 0, 0, 0])], nccl=times)

    assert summarise(job, AnalysisSettings()).nccl.missing_ranks == (2,)


def test_gpus_that_nobody_reads_are_reported():
    gpu = gpu_table(STEPS, {"sm_active_ratio": [0.8] * 3, "graphics_active_ratio": [0.95] * 3})

    result = summarise(job_data(STEPS, description=DP4, gpu=gpu), AnalysisSettings())

    missing = finding(result, Kind.MISSING_TELEMETRY)
    assert "No agent reads the GPUs of rank 3" in missing.evidence[0]
    assert missing.advice.startswith("Run an agent on every node")
    assert "NCCL, 2.27" not in missing.advice


def test_what_is_unknown_because_a_rank_says_nothing_is_not_to_be_fixed_by_timers():
    gpu = gpu_table(STEPS, {"sm_active_ratio": [0.8] * 3, "graphics_active_ratio": [0.95] * 3})
    silent = summarise(job_data(STEPS, description=DP4, gpu=gpu), AnalysisSettings())
    missing = finding(silent, Kind.MISSING_TELEMETRY)

    assert silent.bottleneck.kind is Kind.UNKNOWN
    assert silent.bottleneck.evidence[-1] == missing.evidence[0]
    assert silent.bottleneck.advice == missing.advice

    whole = gpu_table(STEPS, {"sm_active_ratio": [0.8] * 4, "graphics_active_ratio": [0.95] * 4})
    reported = summarise(job_data(STEPS, description=DP4, gpu=whole), AnalysisSettings()).bottleneck
    assert reported.kind is Kind.UNKNOWN
    assert "timers" in reported.advice


def test_ranks_with_an_nccl_that_shows_no_gpu_time_are_there_but_leave_shares_open():
    times = [
        NcclTime(rank=r, busy_s=float("nan") if r == 1 else 1.0, span_s=10, lost_operations=0)
        for r in range(4)
    ]

    result = summarise(job_data(STEPS, description=DP4, nccl=times), AnalysisSettings())

    assert result.nccl.missing_ranks == ()
    assert result.nccl.share_ratio is None
    assert [rank.busy_ratio for rank in result.nccl.ranks] == [0.1, None, 0.1, 0.1]


@pytest.mark.parametrize(("operations", "reported"), [(5000.0, True), (3.0, False)])
def test_missing_gpu_times_are_reported_once_there_are_operations(operations: float, reported: bool):
    times = [
        NcclTime(rank=r, busy_s=float("nan"), span_s=10, lost_operations=0, operations=operations)
        for r in range(4)
    ]

    result = summarise(job_data(STEPS, description=DP4, nccl=times), AnalysisSettings())

    missing = finding(result, Kind.MISSING_TELEMETRY)
    assert (missing is not None) is reported
    if missing is not None:
        assert "".join(missing.evidence) == (
            "No rank reports times on the GPU (nccl plugin), so shares of time are unknown: NCCL has them"
            " since 2.27, and perfd requests them unless its `gpu_time` is off."
        )
        assert missing.advice.startswith("Use one NCCL version, 2.27 or newer")


def test_a_job_without_layout_that_sends_nothing_has_no_pipeline_so_all_are_peers():
    result = summary([table([0, 1, 2, 3], [0, 0, 0.02, 0])], job=replace(DP4, parallel=ParallelLayout()))

    assert ranks_of(result.bottleneck) == [2]
    transfers = table([0, 1], [0, 0], operation="SendRecv", communicator="p")
    unknown = summary(
        [table([0, 1, 2, 3], [0, 0, 0.02, 0]), transfers], job=replace(DP4, parallel=ParallelLayout())
    )
    assert finding(unknown, Kind.STRAGGLER) is None


def test_a_communicator_of_one_waits_for_nobody():
    result = summary([table([0], [0.0]), table([0, 1, 2, 3], [0, 0, 0, 0], communicator="cd")])

    assert result.nccl.groups[0].operations == 0
    assert result.nccl.ranks[0].wait_ratio == pytest.approx(0)


# Hangs.


def progress(rank: int, enqueued: int, completed: int = 4, members=(0, 1, 2, 3)) -> CollectiveProgress:
    return CollectiveProgress(
        job="job",
        rank=rank,
        communicator="0",
        communicator_name="dp",
        members=members,
        operation="all_reduce",
        enqueued=enqueued,
        completed=completed,
        time_unix_ns=1,
        source="flight_recorder",
    )


def sleeping(ranks: int = 8) -> LaunchTable:
    """Hosts that do nothing."""
    return LaunchTable(
        rank=np.arange(ranks),
        span_s=np.broadcast_to(np.array([2.0, 4.0, 10.0, 60.0])[:, None], (4, ranks)),
        asleep_ratio=np.ones((4, ranks)),
        loader_busy_ratio=np.full((4, ranks), np.nan),
        loader_workers=np.full(ranks, np.nan),
        age_s=np.zeros(ranks),
    )


def silent(seconds: float = 30.0, steps=STEPS, **fields):
    return job_data(steps, description=DP4, log_silent_s=seconds, launches=sleeping(), **fields)


def test_a_flight_recorder_names_the_rank_that_did_not_enter_the_collective():
    found = hang(silent(progress=[progress(0, 5), progress(1, 5), progress(2, 4), progress(3, 5)]))

    assert found.culprits == (2,)
    assert "all_reduce 5 of group dp is not complete" in found.evidence[1]
    result = summarise(
        silent(90, progress=[progress(r, 4 if r == 2 else 5) for r in range(4)]), AnalysisSettings()
    )
    assert result.bottleneck.kind is Kind.HANG
    assert result.bottleneck.culprits == (Culprit(kind="rank", id=2),)


def test_a_rank_that_left_no_dump_is_the_one_that_could_not_unless_another_one_is_behind():
    stopped = hang(silent(progress=[progress(r, 5) for r in (0, 1, 3)]))
    assert stopped.culprits == (2,)
    assert "rank 2 reported nothing of it" in stopped.evidence[1]

    cut = hang(silent(progress=[progress(0, 5), progress(1, 4), progress(3, 5)]))
    assert cut.culprits == (1,)
    assert "rank 1 did not enter it, rank 2 reported nothing of it" in cut.evidence[1]


def test_a_rank_whose_dump_cannot_be_read_is_accused_of_nothing():
    unreadable = Event(kind=EventKind.DUMP_UNREADABLE, time_unix_ns=1, message="It is cut.", rank=2)
    found = hang(silent(progress=[progress(r, 5) for r in (0, 1, 3)], events=[unreadable]))
    assert found.culprits == ()
    assert "rank 2 left a dump that cannot be read" in found.evidence[1]


def test_when_all_have_entered_the_transfer_hangs_and_nobody_is_named():
    found = hang(silent(progress=[progress(r, 5) for r in range(4)]))

    assert found.culprits == ()
    assert "its transfer hangs" in found.evidence[1]


def counters(*operations: int, still_s: float = 30.0) -> list[NcclTime]:
    return [
        NcclTime(rank=r, busy_s=1, span_s=60, lost_operations=0, operations=count, still_s=still_s)
        for r, count in enumerate(operations)
    ]


def test_counters_that_stand_name_the_one_that_is_behind():
    assert hang(silent(nccl=counters(5000, 5000, 4990, 5000))).culprits == (2,)
    assert hang(silent(nccl=counters(5000, 5000, 5000, 5000))).culprits == ()
    # Stages do different numbers of operations, so one that is far behind another stage is not late.
    assert hang(silent(nccl=counters(9000, 9000, 4000, 5000))).culprits == ()
    assert hang(silent(nccl=counters(5000, 5000, 4990, 5000, still_s=1.0))) is None


def test_a_rank_that_alone_is_behind_hangs_sooner_than_a_pause_that_all_make():
    behind, together = counters(5000, 5000, 4990, 5000, still_s=7.0), counters(5000, 5000, 5000, 5000)

    assert hang(silent(8, nccl=behind)).culprits == (2,)
    assert hang(silent(7, nccl=behind)) is None
    assert hang(silent(8, nccl=together)) is None
    assert hang(silent(10, nccl=together)).culprits == ()


@pytest.mark.parametrize(
    ("active", "silent_s", "hangs"),
    [
        (0.0, 11, False),
        (0.0999, 59.9, False),
        (0.11, 11, True),
        (1.0, 11, True),
        (0.0, 60, True),
        (np.nan, 11, True),
    ],
)
def test_ranks_that_wait_for_nobody_hang_only_after_a_minute(active, silent_s, hangs):
    """A trainer that writes its last checkpoint: all ranks began as many operations, and no GPU runs any."""
    keys = [GpuKey(node="n", gpu=str(r), rank=r) for r in range(4)]
    metrics = {"graphics_active_ratio": np.full((30, 4), active, np.float32)}
    gpu = GpuTable(time_unix_s=1020 + np.arange(30.0), gpus=keys, metrics=metrics)
    together = counters(5000, 5000, 5000, 5000, still_s=60.0)

    assert (hang(silent(silent_s, nccl=together, gpu=gpu)) is not None) is hangs
    behind = counters(5000, 5000, 4990, 5000, still_s=60.0)
    assert hang(silent(silent_s, nccl=behind, gpu=gpu)).culprits == (2,)


def test_gpus_that_spin_name_the_one_that_is_idle():
    times = 1020 + np.arange(30.0)
    keys = [GpuKey(node="n", gpu=str(r), rank=r) for r in range(4)]
    spinning = {
        "graphics_active_ratio": np.tile(np.float32([1, 1, 0, 1]), (30, 1)),
        "tensor_active_ratio": np.zeros((30, 4), np.float32),
    }

    found = hang(silent(gpu=GpuTable(time_unix_s=times, gpus=keys, metrics=spinning)))

    assert found.culprits == (2,)
    working = spinning | {"tensor_active_ratio": np.full((30, 4), 0.3, np.float32)}
    assert hang(silent(gpu=GpuTable(time_unix_s=times, gpus=keys, metrics=working))) is None


def test_silence_alone_is_no_hang_for_a_quarter_of_an_hour_and_neither_is_one_that_the_job_is_used_to():
    standing = counters(5000, 5000, 4990, 5000)

    assert hang(silent(THRESHOLDS.log_silent_hang_s - 1)) is None
    assert hang(silent(5, nccl=standing)) is None
    paused = step_table([1.0] * 10, time_unix_s=[1000 + i + (60 if i > 4 else 0) for i in range(10)])
    assert longest_pause_s(paused) == pytest.approx(91.5)
    assert hang(silent(60, steps=paused, nccl=standing)) is None
    assert hang(silent(60, steps=step_table([]), nccl=standing)) is None
    assert hang(replace(silent(nccl=standing), ended_unix_s=1020.0)) is None


def test_a_hang_that_an_error_ended_is_reported_afterwards_and_a_good_end_is_none():
    def ended(code: float | None, after_s: float = 90, *, done_s: float = 90, **fields) -> JobSummary:
        values = {} if code is None else {"exit_code": code}
        at_s = float(STEPS.time_unix_s[-1]) + after_s
        end = Event(kind=EventKind.JOB_ENDED, time_unix_ns=round(1e9 * at_s), message="ended", values=values)
        gone = replace(end, message="4 ranks of the job ended on this node.", values={})
        done_ns = end.time_unix_ns - round(1e9 * (after_s - min(after_s, done_s)))
        done = replace(gone, time_unix_ns=done_ns, message="The trainer is done.")
        data = job_data(STEPS, description=DP4, events=[done, end, gone], **fields)
        return summarise(replace(data, ended_unix_s=at_s), AnalysisSettings())

    dumps = [progress(r, 4 if r == 2 else 5) for r in range(4)]
    reported = ended(1, progress=dumps).bottleneck

    assert (reported.kind, ranks_of(reported)) == (Kind.HANG, [2])
    assert reported.evidence[0].startswith("The job ended with exit code 1 after 90 s without a step")
    assert ranks_of(ended(137, nccl=counters(5000, 5000, 4990, 5000)).bottleneck) == [2]
    for other in (
        ended(0, progress=dumps),
        ended(None, progress=dumps),
        ended(1),
        ended(1, 5, progress=dumps),
    ):
        assert finding(other, Kind.HANG) is None


def test_a_checkpoint_that_has_begun_is_no_hang_until_it_lasts_a_quarter_of_an_hour():
    standing = counters(5000, 5000, 4990, 5000, still_s=1000.0)
    begun = Event(kind=EventKind.CHECKPOINT_STARTED, time_unix_ns=round(1020.5e9), message="saving", step=20)

    assert hang(silent(100, nccl=standing, events=[begun])) is None
    assert hang(silent(1000, nccl=standing, events=[begun])) is not None
    assert hang(silent(100, nccl=standing, events=[replace(begun, time_unix_ns=round(1015e9))])) is not None
    saved = replace(begun, kind=EventKind.CHECKPOINT, time_unix_ns=round(1020.6e9), message="saved")
    assert hang(silent(100, nccl=standing, events=[begun, saved])) is not None
    # Of some frameworks this is the only line about a checkpoint, printed before it is written.
    assert hang(silent(100, nccl=standing, events=[saved])) is None


def test_after_the_first_evaluation_silence_is_judged_by_what_the_first_took():
    standing = counters(5000, 5000, 4990, 5000, still_s=1000.0)
    first = Event(kind=EventKind.EVALUATION, time_unix_ns=round(1005.5e9), message="evaluated", step=5)
    again = replace(first, time_unix_ns=round(1070.5e9), step=20)
    steps = step_table([1.0] * 20, time_unix_s=[1000 + i + (50 if i > 5 else 0) for i in range(20)])

    def judged(seconds: float, *events: Event):
        return hang(silent(seconds, steps=steps, nccl=standing, events=events))

    assert judged(250, again) is None
    assert judged(310, again) is not None
    # The first one made a pause of 51 s.
    assert judged(70, first, again) is None
    assert judged(80, first, again).culprits == (2,)


def test_of_a_pipeline_the_rank_that_is_behind_its_peers_hangs_unless_each_stage_has_one():
    layout = description(world_size=8, dp=4, pp=2, micro_batch_size=1, global_batch_size=8)

    def named(*operations: int) -> tuple[int, ...]:
        return tuple(hang(replace(silent(nccl=counters(*operations)), description=layout)).culprits)

    assert named(9000, 9000, 8999, 9000, 4000, 4000, 4000, 4000) == (2,)
    assert named(9000, 9000, 8990, 9000, 4000, 4000, 3990, 4000) == ()


# Data and hosts.


def sequences(*, fixed: float = 0.0, ranks: int = 8, steps: int = 40) -> JobSummary:
    """Ranks whose work changes from step to step, and one that is always slower."""
    random = np.random.default_rng(3)
    lengths = 1 + 0.6 * random.random((steps, ranks))
    lengths[:, 5] *= 1 + fixed
    table = step_table((3 * lengths * 0.1).max(axis=1) + 0.05)
    phases = phase_table(table, by_rank={"forward-compute": [0.0] * ranks, "backward-compute": [0.0] * ranks})
    by_rank = {"forward-compute": 0.1 * lengths, "backward-compute": 0.2 * lengths**1.1}
    job = job_data(
        table,
        description=description(world_size=ranks, dp=ranks, micro_batch_size=1, global_batch_size=ranks),
        phases=replace(phases, by_rank_s=by_rank),
    )
    return summarise(job, AnalysisSettings())


def test_sequences_of_unequal_length_are_reported_and_no_rank_is_blamed():
    result = sequences()

    found = finding(result, Kind.SEQUENCE_IMBALANCE)
    assert result.bottleneck == found
    assert found.culprits == ()
    assert finding(result, Kind.STRAGGLER) is None


def test_a_rank_that_is_always_slow_is_no_matter_of_sequences():
    result = sequences(fixed=0.8)

    assert finding(result, Kind.SEQUENCE_IMBALANCE) is None
    assert ranks_of(finding(result, Kind.STRAGGLER)) == [5]


def of_gpus(*, in_nccl: float | None = None, name: str = H200, **metrics: float) -> JobSummary:
    gpu = gpu_table(STEPS, {name: [value] * 4 for name, value in metrics.items()})
    times = (
        [NcclTime(rank=r, busy_s=in_nccl, span_s=1, lost_operations=0) for r in range(4)] if in_nccl else ()
    )
    job = job_data(STEPS, description=DP4, gpu=gpu, gpu_infos=infos(name, 4), nccl=times)
    return summarise(job, AnalysisSettings(peaks=load_peaks()))


def test_tiny_kernels_are_reported_only_where_it_is_known_that_they_are_not_nccls():
    tiny = {"graphics_active_ratio": 0.95, "sm_active_ratio": 0.15, "tensor_active_ratio": 0.02}

    found = finding(of_gpus(in_nccl=0.05, **tiny), Kind.LAUNCH_BOUND)

    assert found is not None
    assert found.gain_ratio > 0.5
    assert finding(of_gpus(**tiny), Kind.LAUNCH_BOUND) is None
    assert finding(of_gpus(in_nccl=0.8, **tiny), Kind.LAUNCH_BOUND) is None
    busy = {"graphics_active_ratio": 0.98, "sm_active_ratio": 0.85, "tensor_active_ratio": 0.02}
    assert finding(of_gpus(in_nccl=0.1, **busy), Kind.LAUNCH_BOUND) is None


def test_tiny_kernels_of_a_rank_alone_need_no_times_of_nccl():
    tiny = {"graphics_active_ratio": [0.95], "sm_active_ratio": [0.15], "tensor_active_ratio": [0.02]}
    job = job_data(
        STEPS,
        description=description(world_size=1, dp=1),
        gpu=gpu_table(STEPS, tiny),
        gpu_infos=infos(H200, 1),
    )

    found = finding(summarise(job, AnalysisSettings()), Kind.LAUNCH_BOUND)

    assert found is not None
    assert found.evidence[0] == "Kernels run 95.0% of the time (GPM)."


def test_traffic_from_the_host_is_reported_with_the_gpus_that_receive_it():
    quiet = of_gpus(graphics_active_ratio=0.8, pcie_rx_bytes_per_s=1e8)
    heavy = of_gpus(graphics_active_ratio=0.8, pcie_rx_bytes_per_s=20e9)

    assert finding(quiet, Kind.HOST_TRANSFER) is None
    found = finding(heavy, Kind.HOST_TRANSFER)
    assert found.gain_ratio == pytest.approx(0.2)
    # All of them alike: nobody's fault.
    assert found.culprits == ()


def test_copies_that_keep_the_multiprocessors_waiting_are_what_limits_a_job():
    # NVML and GPM count a copy as activity of the GPU, so only the multiprocessors tell.
    copying = {"graphics_active_ratio": 0.99, "pcie_rx_bytes_per_s": 40e9}

    waiting = of_gpus(sm_active_ratio=0.27, **copying)
    hidden = of_gpus(sm_active_ratio=0.97, **copying)

    assert waiting.bottleneck.kind is Kind.HOST_TRANSFER
    assert waiting.bottleneck.gain_ratio == pytest.approx(40 / 55)
    assert hidden.bottleneck.kind is not Kind.HOST_TRANSFER
    assert finding(hidden, Kind.HOST_TRANSFER).gain_ratio is None


def test_offloading_to_the_host_is_reported_too():
    found = finding(of_gpus(sm_active_ratio=0.5, pcie_tx_bytes_per_s=30e9), Kind.HOST_TRANSFER)

    assert "send up to 30.0 GB/s" in found.evidence[0]


def test_copies_that_leave_most_of_the_slot_free_may_be_hidden():
    found = finding(of_gpus(sm_active_ratio=0.5, pcie_rx_bytes_per_s=12e9), Kind.HOST_TRANSFER)

    assert found.gain_ratio is None


def test_what_ranks_without_nvlink_move_by_pcie_may_be_between_gpus():
    copying = {"sm_active_ratio": 0.3, "pcie_rx_bytes_per_s": 30e9}
    alone = job_data(
        STEPS,
        description=description(world_size=1, dp=1),
        gpu=gpu_table(STEPS, {metric: [value] for metric, value in copying.items()}),
        gpu_infos=infos("NVIDIA H100 PCIe", 1),
    )

    assert finding(of_gpus(name="NVIDIA H100 PCIe", **copying), Kind.HOST_TRANSFER) is None
    assert finding(summarise(alone, AnalysisSettings(peaks=load_peaks())), Kind.HOST_TRANSFER) is not None


def test_compute_that_waits_for_the_gpus_memory_is_distinguished():
    bound = of_gpus(
        graphics_active_ratio=0.98, sm_active_ratio=0.9, dram_active_ratio=0.8, tensor_active_ratio=0.1
    )

    assert (
        bound.bottleneck.kind is not Kind.MEMORY_BOUND
    )  # Without an MFU it is not even known to be compute.
    steps = step_table([1.0] * 20, flops_per_s_per_gpu=0.2e15)
    gpu = gpu_table(
        steps,
        {
            "graphics_active_ratio": [0.98] * 4,
            "sm_active_ratio": [0.9] * 4,
            "dram_active_ratio": [0.8] * 4,
            "tensor_active_ratio": [0.1] * 4,
        },
    )
    job = job_data(steps, description=DP4, gpu=gpu, gpu_infos=infos(H200, 4))
    result = summarise(job, AnalysisSettings(peaks=load_peaks()))
    assert result.bottleneck.kind is Kind.MEMORY_BOUND


def test_the_rank_whose_input_is_slow_is_named_where_timers_are_by_rank():
    def loading(*seconds: float) -> JobSummary:
        phases = phase_table(STEPS, by_rank={"data_loading": list(seconds)})
        return summarise(job_data(STEPS, description=DP4, phases=phases), AnalysisSettings())

    one = loading(0.01, 0.01, 0.3, 0.01)
    assert (one.bottleneck.kind, ranks_of(one.bottleneck)) == (Kind.DATA_LOADING, [2])
    all_alike = loading(0.3, 0.3, 0.31, 0.3)
    assert (all_alike.bottleneck.kind, ranks_of(all_alike.bottleneck)) == (Kind.DATA_LOADING, [])
    assert ranks_of(loading(0.01, 0.3, 0.3, 0.01).bottleneck) == []


def test_communication_of_tensor_groups_is_reported_with_what_helps_them():
    layout = description(world_size=4, tp=2, dp=2, micro_batch_size=1, global_batch_size=8)
    pairs = [
        table([0, 1], [0, 0], transfer_s=0.03),
        table([2, 3], [0, 0], transfer_s=0.03, communicator="cd"),
    ]

    inside = summary(pairs, job=layout).bottleneck

    assert inside.kind is Kind.COMMUNICATION
    assert "--tp-comm-overlap" in inside.advice
    gpu = gpu_table(STEPS, {"sm_active_ratio": [0.8] * 4})
    apart = replace(gpu, gpus=[GpuKey(node=f"n{rank}", gpu="0", rank=rank) for rank in range(4)])
    times = [NcclTime(rank=r, busy_s=3, span_s=10, lost_operations=0) for r in range(4)]
    job = job_data(STEPS, description=layout, gpu=apart, collectives=pairs, nccl=times)
    over_nodes = summarise(job, AnalysisSettings()).bottleneck
    assert over_nodes.kind is Kind.TENSOR_OVER_NODES
    assert [effect.kind for effect in over_nodes.effects] == [Kind.COMMUNICATION]
    assert "crosses nodes of 1 GPUs" in over_nodes.advice


def test_a_sample_or_two_of_a_short_job_do_not_make_it_host_bound():
    def idling(samples: int) -> JobSummary:
        steps = step_table([1.0] * samples)
        gpu = gpu_table(steps, {"busy_ratio": [0.4] * 4}, per_step=1)
        return summarise(job_data(steps, description=DP4, gpu=gpu), AnalysisSettings())

    assert finding(idling(4), Kind.HOST_BOUND) is None
    assert finding(idling(20), Kind.HOST_BOUND) is not None


def idle_behind_a_rank(active: list[float], late_s: float) -> JobSummary:
    """Four ranks whose third comes so late, and what share of the time each GPU has a kernel."""
    steps = step_table([0.1] * 200)
    one = table([0, 1, 2, 3], [0, 0, late_s, 0])
    times = [
        NcclTime(rank=rank, busy_s=10 * one.kernel_ratio[rank], span_s=10.0, lost_operations=0)
        for rank in range(4)
    ]
    gpu = gpu_table(steps, {"busy_ratio": active}, per_step=1)
    data = job_data(steps, description=DP4, collectives=[one], nccl=times, gpu=gpu)
    return summarise(data, AnalysisSettings())


def test_the_idle_gpu_of_a_rank_that_is_named_makes_no_host_bound_job():
    result = idle_behind_a_rank([0.95, 0.95, 0.3, 0.95], 0.03)

    assert ranks_of(result.bottleneck) == [2]
    assert finding(result, Kind.HOST_BOUND) is None


def test_gpus_that_idle_beside_the_rank_that_is_named_are_still_the_hosts_fault():
    found = finding(idle_behind_a_rank([0.7, 0.7, 0.3, 0.7], 0.03), Kind.HOST_BOUND)

    assert found is not None
    assert found.gain_ratio == pytest.approx(0.3, abs=1e-6)
    assert found.evidence == ["The other GPUs run no kernel at all in 30.0% of steady steps (NVML)."]
    all_ranks = finding(idle_behind_a_rank([0.7] * 4, 0.0), Kind.HOST_BOUND)
    assert all_ranks is not None
    assert all_ranks.evidence == ["GPUs run no kernel at all in 30.0% of steady steps (NVML)."]


@pytest.mark.parametrize(("micro_batches", "theory"), [(4, 0.2), (2, 1 / 3)])
@pytest.mark.parametrize("late_s", [0.006, 0.02])
def test_a_bubble_by_theory_is_reported_behind_a_slow_rank_as_one_of_the_time_that_it_leaves(
    micro_batches: int, theory: float, late_s: float
):
    layout = description(world_size=4, dp=2, pp=2, micro_batch_size=1, global_batch_size=2 * micro_batches)
    late = summary(
        [table([0, 1], [0, late_s], communicator="a"), table([2, 3], [0, 0], communicator="b")], job=layout
    )
    bubble = finding(late, Kind.PIPELINE_BUBBLE)

    assert ranks_of(late.bottleneck) == [1]
    assert late.bottleneck.gain_ratio == pytest.approx(10 * late_s)
    assert bubble.gain_ratio == pytest.approx(theory * (1 - 10 * late_s))
    assert bubble.evidence[1].startswith("Behind a slow rank that cannot be measured")
    alone = finding(summary([], job=layout), Kind.PIPELINE_BUBBLE)
    assert alone.gain_ratio == pytest.approx(theory)


def test_a_bubble_by_theory_is_not_reported_behind_a_rank_that_takes_nearly_all_of_a_step():
    layout = description(world_size=4, dp=2, pp=2, micro_batch_size=1, global_batch_size=8)
    late = summary(
        [table([0, 1], [0, 0.08], communicator="a"), table([2, 3], [0, 0], communicator="b")], job=layout
    )

    assert ranks_of(late.bottleneck) == [1]
    assert late.bottleneck.gain_ratio > 0.75
    assert finding(late, Kind.PIPELINE_BUBBLE) is None
