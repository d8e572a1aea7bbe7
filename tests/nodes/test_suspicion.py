"""Who is worse than its peers: a base rate, decay, and what cannot be told."""

import numpy as np
import pytest
from nodes.support import DAY_S, HALF_LIFE_S, NOW_S, add_node, incident, ledger, standing

from perfd.aggregator.nodes.node_documents import nodes_json
from perfd.nodes import IncidentKind, NodeLedger, NodeRecord, decayed, standings, suspect_probability
from perfd.thresholds import THRESHOLDS

FLEET = [f"n{number}" for number in range(16)]


def blame(known, node, jobs, **fields):
    for number in range(jobs):
        known.note(incident(node, **{"job": f"job{number}", "gpu": str(number % 8), **fields}))


def test_a_node_that_several_jobs_blame_is_a_suspect_and_its_gpu_is_named():
    known = ledger(*FLEET)
    blame(known, "n3", 3, gpu="5")
    bad = standing(known, "n3")
    assert bad.suspect
    assert bad.worst_gpu == "5"
    assert standings(known, NOW_S)[0] == bad
    assert not any(one.suspect for one in standings(known, NOW_S)[1:])


def test_where_every_node_is_blamed_alike_none_is_a_suspect():
    known = ledger(*FLEET)
    for node in FLEET:
        blame(known, node, 6)
    assert not any(one.suspect for one in standings(known, NOW_S))


def test_a_busy_node_is_not_a_bad_one():
    known = ledger(*FLEET[1:], hours=100.0)
    add_node(known, "n0", hours=1600.0)
    for node in FLEET[1:]:
        blame(known, node, 1)
    blame(known, "n0", 8)
    assert standing(known, "n0").suspect_ratio < 0.05
    assert standing(known, "n0").whole.expected == pytest.approx(16.0)
    idle = ledger(*FLEET)
    for node in FLEET[1:]:
        blame(idle, node, 1)
    blame(idle, "n0", 8)
    assert standing(idle, "n0").suspect, "the same incidents in a sixteenth of the time"


def test_one_job_alone_makes_no_suspect_however_often_it_restarts():
    known = ledger(*[f"n{number}" for number in range(500)])
    for attempt in range(50):
        known.note(incident("n3", job="mine", attempt=attempt))
    one = standing(known, "n3")
    assert one.whole.incidents == pytest.approx(2.0)
    assert not one.suspect


@pytest.mark.parametrize("nodes", [["n0"], []])
def test_without_peers_nothing_is_said(nodes):
    known = ledger(*nodes)
    add_node(known, "other kind", kind="NVIDIA A100", gpus=1)
    for name in [*nodes, "other kind"]:
        blame(known, name, 9, gpu="")
    for one in standings(known, NOW_S):
        assert one.whole.suspect_ratio is None
        assert not one.suspect


def test_an_incident_counts_half_after_its_half_life_and_hours_do_too():
    known = ledger(*FLEET)
    blame(known, "n3", 2, gpu="3")
    later = standing(known, "n3", NOW_S + HALF_LIFE_S)
    assert later.whole.incidents == pytest.approx(1.0)
    assert later.whole.observed_gpu_h == pytest.approx(400.0)
    assert decayed(8.0, -5.0, HALF_LIFE_S) == 8.0, "a clock that was set back"


def test_what_was_long_ago_makes_no_suspect_any_more():
    known = ledger(*FLEET)
    blame(known, "n3", 3, at_s=NOW_S, gpu="3")
    for node in FLEET:
        known.observe(node, {str(gpu): 100 * 3600.0 for gpu in range(8)}, NOW_S + 60 * DAY_S)
    assert standing(known, "n3").suspect
    assert not standing(known, "n3", NOW_S + 60 * DAY_S).suspect


def test_a_finding_that_came_and_went_counts_nothing():
    known = ledger(*FLEET)
    blame(known, "n3", 5, seen_s=THRESHOLDS.node_incident_s / 2)
    assert not standing(known, "n3").incidents
    blame(known, "n3", 5, seen_s=THRESHOLDS.node_incident_s / 2)
    assert len(standing(known, "n3").incidents) == 5


def test_a_gpu_that_was_taken_out_takes_its_incidents_with_it():
    known = ledger(*FLEET)
    blame(known, "n3", 4, gpu="5")
    assert standing(known, "n3").suspect
    known.describe("n3", kind="", scheduler=None, uuids={"5": "GPU-new"})
    assert standing(known, "n3").whole.incidents == 0.0
    blame(known, "n3", 1, gpu="5")
    assert standing(known, "n3").whole.incidents == 1.0


def test_failed_captures_count_a_quarter():
    known = ledger(*FLEET)
    blame(
        known, "n3", 4, kind=IncidentKind.CAPTURE_FAILED, weight=IncidentKind.CAPTURE_FAILED.weight, count=1
    )
    assert standing(known, "n3").whole.incidents == pytest.approx(1.0)


def test_the_probability_grows_with_incidents_and_falls_with_those_of_peers():
    rising = [suspect_probability(n, 1.0, 10.0, 99.0) for n in range(12)]
    assert rising == sorted(rising)
    assert rising[0] < THRESHOLDS.node_bad_ratio < rising[-1]
    falling = [suspect_probability(4.0, 1.0, m, 99.0) for m in (0.0, 10.0, 100.0, 1000.0)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("own", "time_s", "peers", "peer_s"),
    [(0.0, 0.0, 5.0, 1.0), (5.0, 0.0, 5.0, 1.0), (5.0, 1.0, 0.0, 0.0), (0.0, -1.0, 0.0, 1.0)],
)
def test_without_observed_time_there_is_no_probability(own, time_s, peers, peer_s):
    assert suspect_probability(own, time_s, peers, peer_s) is None


@pytest.mark.parametrize(
    ("own", "time_s", "peers", "peer_s"),
    [(1e6, 1.0, 1e6, 1.0), (1e5, 1e-9, 1.0, 1e9), (0.0, 1e9, 1e5, 1e-9), (0.25, 1.0, 0.0, 1e-300)],
)
def test_extremes_stay_probabilities(own, time_s, peers, peer_s):
    assert 0.0 <= suspect_probability(own, time_s, peers, peer_s) <= 1.0


@pytest.mark.parametrize("expected", [0.01, 0.1, 0.3, 1.0, 5.0])
def test_of_a_thousand_nodes_that_are_all_alike_fewer_than_one_is_called_a_suspect(expected):
    random = np.random.default_rng(7)
    called = 0
    for _ in range(20):
        counts = random.poisson(expected, 1000)
        total = int(counts.sum())
        worst = np.unique(counts)
        by_count = {int(n): suspect_probability(float(n), 1.0, float(total - n), 999.0) for n in worst}
        called += sum(by_count[int(n)] >= THRESHOLDS.node_suspect_ratio for n in counts)
    assert called / 20 < 1


def test_of_nodes_that_are_ten_times_as_bad_most_are_found_in_time():
    random = np.random.default_rng(11)
    found = 0
    for _ in range(200):
        own, peers = random.poisson(10.0), random.poisson(999.0)
        found += suspect_probability(float(own), 1.0, float(peers), 999.0) >= THRESHOLDS.node_suspect_ratio
    assert found / 200 > 0.7


def test_the_ledger_is_bounded_and_forgets_what_is_oldest():
    known = ledger("n0")
    for number in range(600):
        known.note(incident("n0", job=f"job{number}", at_s=NOW_S + number, evidence="x" * 100_000))
    kept = known.records["n0"].incidents.values()
    assert len(kept) == 256
    assert min(one.first_unix_s for one in kept) == NOW_S + 600 - 256
    assert max(len(one.evidence) for one in kept) <= 500
    known.expire(NOW_S + 200 * DAY_S, 100 * DAY_S)
    assert not known.records


def test_a_report_about_an_unknown_node_is_dropped():
    known = NodeLedger(HALF_LIFE_S)
    known.note(incident("nobody"))
    known.observe("nobody", {"0": 5.0}, NOW_S)
    assert not known.records


def test_a_restored_ledger_says_the_same():
    known = ledger(*FLEET)
    blame(known, "n3", 3)
    records, incidents = known.changes()
    assert known.changes() == ([], [])
    again = NodeLedger(HALF_LIFE_S)
    bare = [
        NodeRecord(one.node, one.kind, one.scheduler, one.uuids, one.observed_gpu_s, one.observed_unix_s)
        for one in records
    ]
    again.restore(bare, incidents)
    assert standings(again, NOW_S) == standings(known, NOW_S)


def test_a_nodes_document_lists_20_incidents_and_counts_all():
    known = ledger(*FLEET)
    blame(known, "n3", 20)
    (entry,) = nodes_json(standings(known, NOW_S), ())
    assert (entry["incident_count"], len(entry["incident_list"])) == (20, 20)
    known.note(incident("n3", job="one more"))
    (entry,) = nodes_json(standings(known, NOW_S), ())
    assert (entry["incident_count"], len(entry["incident_list"])) == (21, 20)
