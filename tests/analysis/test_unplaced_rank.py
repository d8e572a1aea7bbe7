"""A rank of unknown role that alone does not wait: blamed only where its GPU shows that it is slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import gpu_table, step_table
from analysis.test_reading_rank import GAIN, facts, longer, slow
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.collectives import NcclRank, NcclSummary
from perfd.analysis.diagnosis.bottleneck import find_bottlenecks
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.diagnosis.straggler_findings import judge_straggler
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.analysis.steps import LongerSteps, gpu_activity
from perfd.analysis.stragglers import Pattern, Straggler
from perfd.model import GpuColumn, ParallelLayout, StepDoubt

RANK = 1
CULPRIT = (Culprit(kind="rank", id=RANK),)


def seen(gpus: LongerSteps | None, *, role: str = "") -> JobEvidence:
    """Rank 1 does not wait since steps are longer; no host is seen."""
    one = NcclSummary(slow_since=replace(slow(RANK), role=role), source="nccl plugin")
    return replace(facts(None), nccl=one, reading=None, only_reader=None, longer_steps=gpus, hosts_seen=False)


def gpus(computing: list[float], running: list[float]) -> LongerSteps:
    return replace(
        longer(0.0),
        ranks=np.arange(len(computing)),
        computing_ratio=np.array(computing),
        running_ratio=np.array(running),
    )


def idling(peer: int) -> Straggler:
    """The GPU of rank 1 idles for a quarter of a step more than that of its peer."""
    return Straggler(
        rank=RANK,
        pattern=Pattern.IDLE,
        ratio=1.25,
        wait_ratio=0.25,
        persistence_ratio=1.0,
        peers=(peer,),
        source="nvml",
    )


def blaming(facts: JobEvidence) -> list[Finding]:
    return [found for found in find_bottlenecks(facts) if CULPRIT[0] in found.culprits]


def test_without_gpus_nothing_shows_that_it_is_slow_itself() -> None:
    assert not blaming(seen(None))
    unknown = next(found for found in find_bottlenecks(seen(None)) if found.ranks == (RANK,))
    assert unknown.kind is Kind.UNKNOWN
    assert unknown.gain_ratio == pytest.approx(GAIN)
    assert any("Slow data loading" in sentence for sentence in unknown.evidence)


@given(idle=st.lists(st.floats(0.0, 0.5), min_size=2, max_size=2))
def test_gpus_that_idle_on_all_ranks_blame_none(idle: list[float]) -> None:
    assert not blaming(seen(gpus([0.1, 0.1], idle)))


@pytest.mark.parametrize(
    "shown",
    [gpus([0.1, 0.9], [1.0, 1.0]), gpus([0.1, 0.0, 0.1], [1.0, 0.0, 1.0])],
    ids=["more work", "idles alone"],
)
def test_its_gpu_shows_that_it_is_slow(shown: LongerSteps) -> None:
    assert [found.kind for found in blaming(seen(shown))] == [Kind.STRAGGLER]


def test_more_work_of_its_gpu_since_another_change_does_not() -> None:
    shown = gpus([0.1, 0.9], [1.0, 1.0])
    assert not blaming(seen(replace(shown, since_step=shown.since_step - 5)))


def test_of_two_gpus_the_one_that_idles_may_be_of_the_last_to_get_its_data() -> None:
    assert not blaming(seen(gpus([0.1, 0.0], [1.0, 0.0])))


def test_a_rank_whose_role_no_other_has_is_blamed_as_before() -> None:
    assert [found.kind for found in blaming(seen(None, role="stage 1"))] == [Kind.STRAGGLER]


def test_where_hosts_are_seen_slow_loaders_would_show_once_their_threads_are_known() -> None:
    known = replace(seen(None), hosts_seen=True)
    assert [found.kind for found in blaming(known)] == [Kind.STRAGGLER]
    assert not blaming(replace(known, awaits_hosts=True))


@pytest.mark.parametrize(
    ("known", "named"),
    [
        ({}, True),
        ({"longer_for_s": 1.9}, False),
        ({"counted_twice": True}, False),
    ],
    ids=["long enough", "a moment ago", "one lag, again and again"],
)
def test_with_peers_it_is_blamed_once_hosts_would_show_and_others_wait_once(
    known: dict[str, object], named: bool
) -> None:
    job = replace(seen(None), hosts_seen=True)
    slow_now = replace(slow(RANK), role="", has_peers=True, longer_for_s=2.0)
    late = replace(job, nccl=replace(job.nccl, slow_since=replace(slow_now, **known)))
    assert bool(blaming(late)) is named
    # More work of its GPU shows it at once.
    assert blaming(replace(late, longer_steps=gpus([0.1, 0.9], [1.0, 1.0])))
    assert blaming(replace(late, computing_more=frozenset({RANK})))
    # Of several that do, another one computes less.
    assert bool(blaming(replace(late, computing_more=frozenset({RANK, RANK + 1})))) is named


@pytest.mark.parametrize(("lasts_s", "named"), [(1.49, False), (1.5, True)])
def test_a_gpu_with_more_work_shows_no_slow_rank_by_a_moment_of_steps_whose_lag_counts_again(
    lasts_s: float, named: bool
) -> None:
    job = replace(seen(None), hosts_seen=True, computing_more=frozenset({RANK}))
    now = replace(slow(RANK), role="", has_peers=True, counted_twice=True, longer_for_s=lasts_s)
    assert bool(blaming(replace(job, nccl=replace(job.nccl, slow_since=now)))) is named


@pytest.mark.parametrize(("lasts_s", "named"), [(1.49, False), (1.5, True)])
def test_nor_by_a_moment_of_what_may_be_micro_batches(lasts_s: float, named: bool) -> None:
    job = replace(seen(None), hosts_seen=True, computing_more=frozenset({RANK}))
    now = replace(slow(RANK), role="", has_peers=True, longer_for_s=lasts_s)
    late = replace(job, nccl=replace(job.nccl, slow_since=now))
    assert bool(blaming(replace(late, step_doubt=StepDoubt.MICRO_BATCHES))) is named
    assert blaming(late)


@pytest.mark.parametrize(("gain", "named"), [(None, True), (0.0, False), (0.06, False), (0.2, True)])
def test_a_gpu_that_idles_is_not_named_where_its_rank_arrives_with_its_peers(
    gain: float | None, named: bool
) -> None:
    """Hosts of a tensor group are late in turn, and a few samples of GPUs may show one of them."""
    idle = idling(0)
    ranks = [NcclRank(rank=rank, busy_ratio=0.3, wait_ratio=0.2, gain_ratio=gain) for rank in range(2)]
    found = judge_straggler(
        replace(
            facts(None),
            reading=None,
            only_reader=None,
            stragglers_by_activity=(idle,),
            nccl=NcclSummary(ranks=ranks, source="nccl plugin"),
        )
    )
    assert (found is not None) is named


@pytest.mark.parametrize(("partner", "named"), [(0.99, True), (0.55, False)], ids=["waits", "idles too"])
def test_a_gpu_that_idles_is_not_named_where_its_tensor_group_does_not_wait(
    partner: float, named: bool
) -> None:
    idle = idling(3)
    steps = step_table([1.0] * 20)
    gpu = gpu_table(steps, {"busy_ratio": [partner, 0.6, 0.9, 0.85]})
    found = judge_straggler(
        replace(
            facts(None),
            reading=None,
            only_reader=None,
            nccl=NcclSummary(),
            parallel=ParallelLayout(world_size=4, tp=2, pp=1, dp=2),
            activity=gpu_activity(gpu, steps, np.arange(1, 20)),
            stragglers_by_activity=(idle,),
        )
    )
    assert (found is not None) is named


@pytest.mark.parametrize(("samples", "taken"), [(4, False), (5, True)])
def test_few_samples_of_gpm_do_not_stand_for_many_of_utilization(samples: int, taken: bool) -> None:
    steps = step_table([1.0] * 21)
    gpu = gpu_table(steps, {"busy_ratio": [0.6] * 2, "graphics_active_ratio": [0.9] * 2}, per_step=1)
    gpu.metrics[GpuColumn.GRAPHICS_ACTIVE][samples + 1 :] = np.nan
    activity = gpu_activity(gpu, steps, np.arange(1, 21))
    assert (activity.kernel_metric is GpuColumn.GRAPHICS_ACTIVE) is taken


@pytest.mark.parametrize(
    ("of_costliest", "of_slow", "over"), [(None, None, False), (3.0, None, True), (None, 4.0, True)]
)
def test_what_ranks_cost_together_is_over_when_the_costliest_is_not_late_any_more(
    of_costliest: float | None, of_slow: float | None, over: bool
) -> None:
    """As in recording random47: another rank became slow, and late steps of before seemed to go on."""
    slow_one = NcclRank(
        rank=2,
        busy_ratio=0.3,
        wait_ratio=0.0,
        gain_ratio=0.06,
        last_ratio=0.7,
        persistence_ratio=0.95,
        excess_ratio=0.2,
        over_steps=of_slow,
    )
    costliest = replace(
        slow_one, rank=3, gain_ratio=0.19, last_ratio=0.8, excess_ratio=0.0, over_steps=of_costliest
    )
    seen_ranks = NcclSummary(ranks=[slow_one, costliest], source="nccl plugin")
    found = judge_straggler(replace(facts(None), reading=None, only_reader=None, nccl=seen_ranks))
    assert found is not None
    assert (found.culprits[0].id, found.gain_ratio, found.may_be_over) == (2, 0.19, over)
    assert any("it was not late" in sentence for sentence in found.evidence) is over
