"""Choosing ranks: lists, roles, labels, slowness, peers."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.capture.selection.rank_conditions import coordinate
from perfd.capture.selection.rank_selection import JobView, RankView, by_hand, check_selector, select
from perfd.errors import CaptureError
from perfd.model import ParallelLayout

# 16 ranks on 2 nodes: tp 2, cp 1, dp 2, pp 4; rank = tp + 2 * (dp + 2 * pp).
PODS = [f"0123456{pod}-89ab-cdef-0123-456789abcdef" for pod in range(4)]
LAYOUT = ParallelLayout(world_size=16, tp=2, dp=2, pp=4, ep=2)
VIEW = JobView(
    job="llama",
    nodes=("a", "b"),
    layout=LAYOUT,
    ranks=tuple(
        RankView(
            rank=rank,
            node="ab"[rank // 8],
            gpu=rank % 8,
            pod_uid=PODS[rank // 4],
            pod_name=f"train-{rank // 4}",
            compute_s=1.0 + (0.5 if rank == 9 else 0),
        )
        for rank in range(16)
    ),
    culprits=(9,),
)


def ranks(selector, view=VIEW, **labels):
    selection = select(selector, view, labels)
    return sorted(rank for ranks in selection.by_node.values() for rank in ranks)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("all", list(range(16))),
        ("0,3,8-10", [0, 3, 8, 9, 10]),
        ("stage=first", [0, 1, 2, 3]),
        ("stage=last,tp=0", [12, 14]),
        ("pp=1", [4, 5, 6, 7]),
        ("dp=1", [2, 3, 6, 7, 10, 11, 14, 15]),
        ("ep=last,stage=0", [2, 3]),
        ("node=b,gpu=1", [9]),
        ("node=a,tp=1,pp=0", [1, 3]),
        ("gpu=0", [0, 8]),
        (f"pod={PODS[1]}", [4, 5, 6, 7]),
        (f"pod={PODS[1]},tp=0", [4, 6]),
        ("pod=train-2", [8, 9, 10, 11]),
        ("pod=train-2-x7k2p,gpu=1", [9]),
        ("pod=train-*,gpu=0", [0, 8]),
        ("pod=a", list(range(8))),
        ("node=*,gpu=7", [7, 15]),
        ("node=a+pod=train-3", [*range(8), 12, 13, 14, 15]),
        ("slowest:1", [9]),
        ("culprits", [9]),
        ("culprits+peer", [9, 11]),
        ("0+stage=last,tp=0", [0, 12, 14]),
    ],
)
def test_a_selector_means_these_ranks(selector, expected):
    assert ranks(selector) == expected
    check_selector(selector)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"rank": "5"}, [5]),
        ({"uid": PODS[2]}, [8, 9, 10, 11]),
        ({"pod": "b", "gpu": "1"}, [9]),
        ({"pod": "train-1"}, [4, 5, 6, 7]),
        ({"pod": "train-1-x7k2p", "node": "a", "gpu": "5"}, [5]),
        ({"pod": "train-1", "node": "b"}, list(range(8, 16))),
        ({"pod": "prometheus-0", "stage": "0"}, [0, 1, 2, 3]),
        ({"stage": "3"}, [12, 13, 14, 15]),
        ({"node": "b", "gpu": "1"}, [9]),
        ({"node": "b"}, list(range(8, 16))),
        ({}, list(range(16))),
        ({"rank": "not a number", "stage": "0"}, [0, 1, 2, 3]),
    ],
)
def test_an_alert_means_the_narrowest_thing_that_its_labels_name(labels, expected):
    assert ranks("alert", **labels) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"rank": "9", "node": "a"}, "9+peer"),
        ({"node": "b", "gpu": "1", "stage": "0"}, "node=b,gpu=1+peer"),
        ({"node": "b", "tp": "1", "stage": "2"}, "node=b,stage=2,tp=1+peer"),
        ({}, "all+peer"),
    ],
)
def test_by_hand_an_alerts_choice_is_what_its_labels_name(labels, expected):
    assert by_hand("alert + peer", labels) == expected
    assert ranks(expected) == ranks("alert+peer", **labels)


def test_by_hand_only_labels_that_can_be_conditions_choose():
    assert by_hand("alert", {"node": "$(reboot)", "stage": "2"}) == "stage=2"
    assert by_hand("culprits+peer", {"rank": "9"}) == "culprits+peer"


def test_ranks_are_grouped_by_node():
    assert select("7,8", VIEW).by_node == {"a": (7,), "b": (8,)}


def test_a_rank_whose_agent_is_away_is_refused_with_the_reason():
    view = JobView(job="llama", nodes=("a",), ranks=VIEW.ranks, layout=LAYOUT)
    selection = select("7,8", view)
    assert selection.by_node == {"a": (7,)}
    assert selection.refused == {8: "The agent of node b is not connected."}


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        ("", "does not choose ranks"),
        ("everyone", "does not choose ranks"),
        ("9-3", "not a range"),
        ("0-99999999", "does not choose ranks"),
        ("0-9999999", "not a range"),
        ("0,stage=last", "mixes ranks with roles"),
        ("node=nosuch", "No rank of job llama matches 'node=nosuch'; its ranks are on a, b."),
        ("pod=train", "its ranks are in train-0, train-1, train-2, train-3."),
        ("pod=train-2-toolong", "its ranks are in train-0"),
        ("node=", "does not choose ranks"),
        ("peer", "name those too"),
        ("tp=5", "No rank of job llama"),
        ("cp=0", "lacks cp"),
    ],
)
def test_a_selector_that_chooses_nothing_says_why(selector, words):
    with pytest.raises(CaptureError, match=words):
        select(selector, VIEW)


def test_slowness_that_nobody_measured_is_an_error_and_not_a_guess():
    view = JobView(job="llama", nodes=("a",), ranks=(RankView(rank=0, node="a"),))
    with pytest.raises(CaptureError, match="neither its log by rank, nor NCCL"):
        select("slowest:2", view)


def test_ranks_without_pods_are_not_those_of_an_alert_without_one():
    view = replace(VIEW, ranks=[replace(rank, pod_uid=None) for rank in VIEW.ranks])
    assert ranks("alert", view, node="b", gpu="1") == [9]


@pytest.mark.parametrize(
    ("selector", "labels", "nodes", "expected"),
    [
        ("all", {}, "ab", {"a": (), "b": ()}),
        ("alert", {}, "ab", {"a": (), "b": ()}),
        ("alert", {"node": "b"}, "ab", {"b": ()}),
        ("alert", {"node": "b", "rank": "9"}, "ab", {"b": (9,)}),
        ("alert", {"rank": "9"}, "a", {"a": (9,)}),
        ("alert+peer", {"rank": "9"}, "a", {"a": (9,)}),
        ("node=b", {}, "ab", {"b": ()}),
        ("node=*", {}, "ab", {"a": (), "b": ()}),
        ("pod=b", {}, "ab", {"b": ()}),
        ("gpu=0", {}, "ab", None),
        ("3,1", {}, "a", {"a": (1, 3)}),
        ("culprits", {}, "a", {"a": (9,)}),
        ("all+3", {}, "a", {"a": ()}),
        ("3", {}, "ab", None),
        ("slowest:1", {}, "a", None),
        ("tp=0", {}, "a", None),
    ],
)
def test_without_placements_whole_nodes_are_asked_or_what_is_clear(selector, labels, nodes, expected):
    view = JobView(job="llama", nodes=tuple(nodes), culprits=(9,))
    if expected is None:
        with pytest.raises(CaptureError, match="choose `all` or node=NAME"):
            select(selector, view, labels)
    else:
        assert select(selector, view, labels).by_node == expected


def test_with_no_agent_there_is_nobody_to_ask():
    with pytest.raises(CaptureError, match="No agent"):
        select("all", JobView(job="llama", nodes=()))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_coordinates_distinguish_every_rank(tp, cp, dp, pp):
    world = tp * cp * dp * pp
    layout = ParallelLayout(world_size=world, tp=tp, cp=cp, dp=dp, pp=pp)
    seen = {
        tuple(coordinate(rank, name, layout) for name in ("tp", "cp", "dp", "pp")) for rank in range(world)
    }
    assert len(seen) == world


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_a_clear_error(text):
    with contextlib.suppress(CaptureError):
        selection = select(text, VIEW, {})
        assert selection.by_node or selection.refused


def test_culprits_that_there_are_not_are_no_ranks_and_keep_nobody_else_out():
    view = replace(VIEW, culprits=())
    with pytest.raises(CaptureError, match="matches 'culprits'; the analysis currently names no culprits"):
        select("culprits", view)
    assert select("culprits+3", view).by_node == select("3", view).by_node
