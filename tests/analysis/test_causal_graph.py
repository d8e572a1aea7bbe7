"""Causes explain symptoms: which finding leads, what becomes its effect, what is left."""

from __future__ import annotations

from graphlib import TopologicalSorter

import pytest

from perfd.analysis.findings import Culprit, Finding, Kind, computation_leads, ranked
from perfd.analysis.findings.causal_graph import EXPLAINS
from perfd.thresholds import THRESHOLDS


def found(kind: Kind, gain: float | None, confidence: float = 0.8, *, rank: int | None = None, **fields):
    culprits = () if rank is None else (Culprit(kind="rank", id=rank),)
    return Finding(kind=kind, gain_ratio=gain, confidence=confidence, culprits=culprits, **fields)


def shown(findings: list[Finding]) -> list[tuple[Kind, list[Kind]]]:
    return [(one.kind, [effect.kind for effect in one.effects]) for one in findings]


def test_the_table_has_no_cycle():
    TopologicalSorter({kind: set(symptoms) for kind, symptoms in EXPLAINS.items()}).prepare()


def test_slow_input_explains_idle_gpus_and_what_is_left_is_said():
    (root,) = ranked([found(Kind.HOST_BOUND, 0.40, 0.4), found(Kind.DATA_LOADING, 0.335)])

    assert (root.kind, root.gain_ratio) == (Kind.DATA_LOADING, 0.335)
    (effect,) = root.effects
    assert effect.explained_ratio == 0.335
    assert effect.summary == "host: 33.5% of 40.0%; 6.5% more is unexplained"


def test_a_symptom_of_which_more_is_left_than_the_cause_costs_stays_a_finding_of_its_own():
    roots = ranked([found(Kind.DATA_LOADING, 0.06), found(Kind.HOST_BOUND, 0.40, 0.4)])

    assert shown(roots) == [(Kind.HOST_BOUND, []), (Kind.DATA_LOADING, [])]


def test_what_the_evidence_of_a_cause_says_already_is_not_said_again():
    idle, waits = "GPUs run no kernel at all in 22.7% of steady steps.", "They wait another 19.1%."
    (root,) = ranked(
        [
            found(Kind.LAUNCH_BOUND, 0.418, evidence=[idle, waits]),
            found(Kind.HOST_BOUND, 0.227, evidence=[idle]),
            found(Kind.COMMUNICATION, 0.2, waiting_ratio=0.2, evidence=[waits, "Collectives take 20%."]),
        ]
    )

    assert shown([root]) == [(Kind.LAUNCH_BOUND, [Kind.COMMUNICATION])]
    assert root.effects[0].evidence == ["Collectives take 20%."]


def test_an_effect_of_which_a_part_is_unexplained_stays_though_its_evidence_is_known():
    idle = "GPUs run no kernel at all in 40.0% of steady steps."
    (root,) = ranked(
        [
            found(Kind.DATA_LOADING, 0.335, evidence=[idle]),
            found(Kind.HOST_BOUND, 0.40, 0.4, evidence=[idle]),
        ]
    )

    assert [effect.summary for effect in root.effects] == ["host: 33.5% of 40.0%; 6.5% more is unexplained"]


def test_a_chain_of_causes_ends_at_its_root():
    chain = [
        found(Kind.COMMUNICATION, 0.2, waiting_ratio=0.2),
        found(Kind.STRAGGLER, 0.25, rank=3),
        found(Kind.DATA_LOADING, 0.25, rank=3),
    ]

    assert shown(ranked(chain)) == [(Kind.DATA_LOADING, [Kind.STRAGGLER, Kind.COMMUNICATION])]


def test_slow_input_of_one_rank_does_not_explain_that_another_rank_is_slow():
    roots = ranked([found(Kind.DATA_LOADING, 0.2, rank=1), found(Kind.STRAGGLER, 0.2, rank=3)])

    assert shown(roots) == [(Kind.STRAGGLER, []), (Kind.DATA_LOADING, [])]


@pytest.mark.parametrize(("waiting", "explained"), [(None, 0.2), (0.2, 0.2), (0.15, 0.15), (0.0, None)])
def test_a_slow_rank_explains_of_communication_only_what_waits(
    waiting: float | None, explained: float | None
):
    roots = ranked(
        [found(Kind.STRAGGLER, 0.2, rank=1), found(Kind.COMMUNICATION, 0.3, waiting_ratio=waiting)]
    )

    effects = [effect.explained_ratio for effect in roots[0].effects]
    assert roots[0].kind is Kind.STRAGGLER
    assert effects == ([] if explained is None else [explained])


def test_a_slow_link_explains_what_moves_data_and_not_what_waits():
    link = found(Kind.SLOW_LINK, 0.2)

    (root,) = ranked([found(Kind.COMMUNICATION, 0.3, waiting_ratio=0.05), link])
    assert root.effects[0].explained_ratio == 0.2
    assert len(ranked([found(Kind.COMMUNICATION, 0.3, waiting_ratio=0.3), link])) == 2


def test_late_launches_of_all_ranks_explain_no_communication_of_which_waiting_is_unknown():
    late = found(Kind.LAUNCH_BOUND, 0.3)

    assert len(ranked([late, found(Kind.COMMUNICATION, 0.2)])) == 2
    assert len(ranked([late, found(Kind.COMMUNICATION, 0.2, waiting_ratio=0.2)])) == 1


def test_throttled_gpus_explain_the_slow_rank_that_they_serve_and_cost_as_much():
    gpu = Finding(kind=Kind.THROTTLING, confidence=0.6, culprits=(Culprit(kind="gpu", id="n/2"),), ranks=(2,))

    (root,) = ranked([found(Kind.STRAGGLER, 0.2, rank=2), gpu])
    assert (root.kind, root.gain_ratio) == (Kind.THROTTLING, 0.2)
    assert len(ranked([found(Kind.STRAGGLER, 0.2, rank=1), gpu])) == 2


@pytest.mark.parametrize(("gain", "first"), [(0.33, Kind.DATA_LOADING), (0.24, Kind.STRAGGLER)])
def test_what_is_broken_comes_before_up_to_five_times_as_large_a_loss_by_design(gain: float, first: Kind):
    assert ranked([found(Kind.DATA_LOADING, gain), found(Kind.STRAGGLER, 0.05, rank=1)])[0].kind is first


def test_a_sure_loss_comes_before_a_larger_one_that_is_only_supposed():
    assert ranked([found(Kind.HOST_BOUND, 0.3, 0.4), found(Kind.OPTIMIZER, 0.2)])[0].kind is Kind.OPTIMIZER


def test_a_hang_comes_before_everything():
    roots = ranked([found(Kind.STRAGGLER, 0.9, 0.9, rank=1), found(Kind.HANG, 1.0, 0.6)])

    assert roots[0].kind is Kind.HANG
    assert not computation_leads(roots, found(Kind.NONE, None))


@pytest.mark.parametrize(("less", "leads"), [(0.001, True), (0.0, False)])
def test_computation_is_named_first_where_nothing_else_costs_a_tenth_of_a_step(less: float, leads: bool):
    roots = [found(Kind.DATA_LOADING, THRESHOLDS.headline_ratio - less)]

    assert computation_leads(roots, found(Kind.COMPUTE_BOUND, None)) is leads
    assert not computation_leads(roots, found(Kind.UNKNOWN, None, 0.0))


def test_full_memory_is_said_after_the_computation():
    assert computation_leads([found(Kind.MEMORY_CAPACITY, None)], found(Kind.UNKNOWN, None, 0.0))
    assert computation_leads([], found(Kind.UNKNOWN, None, 0.0))
