"""Each bound of a verdict, from both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from analysis.jobs import description, gpu_table, infos, job_data, step_table
from analysis.test_bottleneck import H100, judge, pipeline_job
from analysis.test_captured import captured, judged

from perfd.analysis.collectives.waiting_by_rank import NcclRank
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.diagnosis.straggler_findings import Late, late
from perfd.analysis.findings.finding_kind import Kind
from perfd.gpu_peaks import load_peaks

TIMED = {"forward-compute": (0.3, 0.3), "backward-compute": (0.6, 0.6)}
PEAK_FLOPS_PER_S = 989.4e12


def timer(name: str) -> Callable[[float], JobSummary]:
    """The same share of a step on all ranks."""
    return lambda share: judge({name: (share, share)})


def active(idle_ratio: float) -> JobSummary:
    return judge(metrics={"graphics_active_ratio": [1 - idle_ratio] * 8})


def in_no_timer(share: float) -> JobSummary:
    return judge({"forward-backward": (0.9 - share, 0.9 - share), "optimizer": (0.1, 0.1)})


def waited_for(share: float) -> JobSummary:
    return judge(by_rank={"forward-compute": [0.1 + share] + [0.1] * 7, "backward-compute": [0.2] * 8})


def held(clock_ratio: float, *, reason: int = 0x40, time_ratio: float = 1.0) -> JobSummary:
    """One hot GPU, held so long, by NVML's mask in a hundred samples."""
    steps = step_table([1.0] * 21)
    gpu = gpu_table(
        steps,
        {"clocks_event_reasons_bits": [0.0] * 8, "sm_clock_hz": [1.98e9 * clock_ratio] + [1.98e9] * 7},
        per_step=5,
    )
    # The first step is not counted.
    gpu.metrics["clocks_event_reasons_bits"][5 : 5 + round(100 * time_ratio), 0] = reason
    return summarise(job_data(steps, gpu=gpu, gpu_infos=infos(H100, 8)), AnalysisSettings(peaks=load_peaks()))


def copying(bytes_per_s: float) -> JobSummary:
    return judge(
        metrics={"pcie_rx_bytes_per_s": [bytes_per_s] * 8}, job=description(None, world_size=1, dp=1)
    )


def two_stages(imbalance: float) -> JobSummary:
    """They stall little in all, and only since the second one has less to do."""
    busy_s = [0.9 * 0.98, 0.9 * (0.98 - 2 * imbalance)]
    return judge(
        by_rank={
            "forward-backward": [0.9] * 2,
            "forward-compute": [one / 3 for one in busy_s],
            "backward-compute": [2 * one / 3 for one in busy_s],
        },
        job=pipeline_job(2, 16),
    )


EDGES = [
    (Kind.OPTIMIZER, timer("optimizer"), 0.151, 0.149),
    (Kind.COMMUNICATION, timer("all-grads-sync"), 0.151, 0.149),
    (Kind.DATA_LOADING, timer("batch-generator"), 0.051, 0.049),
    (Kind.HOST_BOUND, active, 0.151, 0.149),
    (Kind.HOST_BOUND, in_no_timer, 0.101, 0.099),
    (
        Kind.MEMORY_CAPACITY,
        lambda used: judge(metrics={"memory_used_bytes": [used * 80e9] * 8}),
        0.951,
        0.949,
    ),
    (Kind.NONE, lambda mfu: judge(TIMED, flops=mfu * PEAK_FLOPS_PER_S), 0.401, 0.399),
    (Kind.NONE, lambda mfu: judge(TIMED, flops=mfu * PEAK_FLOPS_PER_S), 0.849, 0.851),
    (Kind.COMPUTE_BOUND, lambda mfu: judge(TIMED, flops=mfu * PEAK_FLOPS_PER_S), 0.399, 0.401),
    (Kind.STRAGGLER, waited_for, 0.051, 0.049),
    (Kind.THROTTLING, held, 0.949, 0.951),
    (Kind.THROTTLING, lambda clock: held(clock, reason=0x4), 0.649, 0.651),
    (Kind.THROTTLING, lambda share: held(0.5, time_ratio=share), 0.20, 0.19),
    (Kind.HOST_TRANSFER, copying, 8.01e9, 7.99e9),
    # 7 of 35, and 7 of 36.
    (Kind.PIPELINE_BUBBLE, lambda count: judge(job=pipeline_job(8, int(count))), 28, 29),
    (Kind.PIPELINE_IMBALANCE, two_stages, 0.101, 0.099),
    (Kind.LAUNCH_BOUND, lambda share: judged(captured(launch_ratio=share)), 0.101, 0.099),
    (Kind.SYNCHRONIZATION, lambda share: judged(captured(synchronization_ratio=share)), 0.051, 0.049),
]


@pytest.mark.parametrize(
    ("kind", "judged_with", "inside", "outside"),
    EDGES,
    ids=[f"{kind}-{inside:g}" for kind, _, inside, _ in EDGES],
)
def test_what_is_just_inside_a_bound_is_said_and_just_outside_it_is_not(kind, judged_with, inside, outside):
    assert kind in {found.kind for found in judged_with(inside).findings}
    assert kind not in {found.kind for found in judged_with(outside).findings}


# Ranks that are late together.

LATE = NcclRank(
    rank=2,
    busy_ratio=0.3,
    wait_ratio=0.0,
    gain_ratio=0.1,
    gain_error_ratio=0.0,
    last_ratio=1.0,
    persistence_ratio=1.0,
    slowdown_ratio=1.2,
)


def test_of_ranks_that_are_late_together_the_one_is_named_whose_own_excess_explains_it():
    def named(*excess_ratios: float) -> int | None:
        ranks = [
            replace(LATE, rank=rank, excess_ratio=excess)
            for rank, excess in enumerate(excess_ratios, start=1)
        ]
        found = late(ranks)
        assert found is not None
        return found.rank.rank if found.rank else None

    # 60% of the gain of a tenth.
    assert named(0.0, 0.06) == 2
    assert named(0.0, 0.059) is None
    # Twice that of the next one.
    assert named(0.05, 0.1) == 2
    assert named(0.051, 0.1) is None
    assert named(0.06, 0.13) is None


def test_of_ranks_that_are_late_together_the_one_whose_gpu_idles_is_named_before_the_slower_one():
    def named(*idle: int) -> int | None:
        found = late([LATE, replace(LATE, rank=3, slowdown_ratio=1.0)], idle=idle)
        assert found is not None
        return found.rank.rank if found.rank else None

    assert named(1, 3) == 3
    # Both, or neither: nothing is shown by it.
    assert named(2, 3) == 2
    assert named() == 2


def test_of_ranks_that_are_late_together_none_is_named_where_operations_of_one_were_lost():
    def named(seen_ratio: float) -> int | None:
        slow = replace(LATE, excess_ratio=0.1, seen_ratio=1.0)
        found = late([slow, replace(LATE, rank=3, excess_ratio=0.0, seen_ratio=seen_ratio)])
        assert found is not None
        return found.rank.rank if found.rank else None

    assert named(0.8) == 2
    assert named(0.79) is None


def test_where_operations_of_a_rank_were_lost_one_that_is_late_with_it_may_be_unseen():
    lost = replace(LATE, seen_ratio=0.5)
    with_groups, of_data = late([lost], inner_groups=True), late([lost])
    assert with_groups is not None
    assert of_data is not None
    assert (with_groups.rank, of_data.rank) == (None, lost)
    assert late([replace(LATE, seen_ratio=0.8)], inner_groups=True).rank is not None


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ({"last_ratio": 0.6}, {"last_ratio": 0.59}),
        ({"persistence_ratio": 0.9}, {"persistence_ratio": 0.89}),
        ({"gain_ratio": 0.03}, {"gain_ratio": 0.029}),
        # Five times its standard error.
        ({"gain_error_ratio": 0.02}, {"gain_error_ratio": 0.0201}),
        # It reaches the least one also when it is less by one.
        ({"gain_ratio": 0.035, "gain_error_ratio": 0.005}, {"gain_ratio": 0.034, "gain_error_ratio": 0.005}),
    ],
)
def test_a_rank_is_late_from_each_of_its_bounds_on(inside: dict[str, float], outside: dict[str, float]):
    assert late([replace(LATE, **inside)]) is not None
    assert late([replace(LATE, **outside)]) is None


def slowest(first: float, second: float) -> int | None:
    """The rank that is named of two that are late together and so much slower than their peers."""
    found = late([replace(LATE, slowdown_ratio=first), replace(LATE, rank=3, slowdown_ratio=second)])
    assert isinstance(found, Late)
    return None if found.rank is None else found.rank.rank


def test_of_ranks_that_are_late_together_one_is_named_that_is_far_slower_than_the_next():
    assert slowest(1.031, 1.0) == 2
    assert slowest(1.029, 1.0) is None
    assert slowest(1.21, 1.1) == 2
    assert slowest(1.19, 1.1) is None
