"""A rank of unknown role that alone does not wait: blamed only where its GPU shows that it is slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.test_reading_rank import GAIN, facts, longer, slow
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.collectives import NcclSummary
from perfd.analysis.diagnosis.bottleneck import find_bottlenecks
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.analysis.steps import LongerSteps

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
