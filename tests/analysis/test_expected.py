"""The bus bandwidth that a group could reach by where its ranks are, beside what it reaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis.jobs import description, infos, job_data, step_table
from analysis.test_nccl import table

from perfd.analysis.collectives.bandwidth_text import bandwidth_words, busiest
from perfd.analysis.collectives.nccl_summary import NcclKind
from perfd.analysis.data.job_data import JobData, Method
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Kind
from perfd.analysis.layout.rank_location import CONFIGURED, PORTS
from perfd.gpu_peaks import load_peaks
from perfd.model import RankPlacement
from perfd.session.text.summary_text import findings_in_words
from tests.support.nccl_records import NcclTime

STEPS = step_table([1.0] * 20)
H200 = "NVIDIA H200"
NVLINK = 450e9
"""One direction of an H200's."""
PORT = 50e9
"""400 Gb/s."""


def job(
    *operations: Any, nodes: tuple[int, ...], gpu: str = H200, ports: float | None = None, **layout: int
) -> JobData:
    """A job whose nodes have so many of its ranks each, and whose GPUs have a port each if that is known."""
    world, ranks = sum(nodes), iter(range(sum(nodes)))
    placements = {
        f"n{number}": [RankPlacement(job="j", rank=next(ranks)) for _ in range(count)]
        for number, count in enumerate(nodes)
    }
    return job_data(
        STEPS,
        description=description(world_size=world, **layout),
        placements=placements,
        gpu_infos={node: infos(gpu, 8)["node0"] for node in placements},
        ports_bytes_per_s={} if ports is None else dict.fromkeys(placements, 8 * ports),
        collectives=list(operations),
        nccl=[NcclTime(rank=r, busy_s=2, span_s=10, lost_operations=0) for r in range(world)],
    )


def judged(data: JobData, network_bytes_per_s: float | None = None) -> JobSummary:
    settings = AnalysisSettings(peaks=load_peaks(), network_bytes_per_s=network_bytes_per_s)
    return summarise(data, settings)


def kind_of(data: JobData, network_bytes_per_s: float | None = None) -> NcclKind:
    (kind,) = judged(data, network_bytes_per_s).nccl.kinds
    return kind


def operation(ranks: int, name: str = "AllReduce", **fields: Any) -> Any:
    return table(list(range(ranks)), [0.0] * ranks, operation=name, **fields)


def test_a_group_inside_a_node_is_held_against_its_nvlink():
    kind = kind_of(job(operation(8), nodes=(8,)))

    # 1 GB in 10 ms, by nccl-tests' factor 2 x 7 / 8.
    assert kind.bus_bytes_per_s == pytest.approx(175e9)
    assert kind.expected_bus_bytes_per_s == pytest.approx(NVLINK)
    assert kind.expected_source == "NVLink between its GPUs, one direction"
    assert kind.latency_bound is False


def test_what_is_not_known_of_links_or_places_stays_unknown():
    cards = kind_of(job(operation(8), nodes=(8,), gpu="NVIDIA H100 PCIe"))
    network = kind_of(job(operation(16), nodes=(8, 8)))
    lost = kind_of(replace(job(operation(8), nodes=(8,)), placements={}))

    for kind in (cards, network, lost):
        assert kind.bus_bytes_per_s is not None
        assert (kind.expected_bus_bytes_per_s, kind.expected_source, kind.latency_bound) == (None, None, None)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((1, 1), PORT),
        ((2, 2), 2 * PORT),
        # The ring leaves each node as often; where there is one GPU of the group, through one port.
        ((3, 1), PORT),
        ((8, 8), 8 * PORT),
    ],
)
def test_over_nodes_the_way_out_of_the_node_with_the_fewest_ranks_counts(nodes, expected):
    kind = kind_of(job(operation(sum(nodes)), nodes=nodes, ports=PORT))

    assert kind.expected_bus_bytes_per_s == pytest.approx(expected)
    assert kind.expected_source == PORTS


def test_ports_that_are_faster_than_nvlink_leave_nvlink_as_the_limit_of_a_ring():
    assert kind_of(job(operation(16), nodes=(8, 8), ports=2 * PORT)).expected_bus_bytes_per_s == NVLINK


def test_the_configured_network_bandwidth_comes_before_the_ports():
    kind = kind_of(job(operation(2), nodes=(1, 1), ports=PORT), network_bytes_per_s=25e9)

    assert (kind.expected_bus_bytes_per_s, kind.expected_source) == (pytest.approx(25e9), CONFIGURED)


def test_all_to_all_sends_over_the_network_only_what_is_for_other_nodes():
    kind = kind_of(job(operation(16, "AlltoAll"), nodes=(8, 8), ports=PORT))

    # A GPU sends 8 of 16 parts by its own port; bus bandwidth counts 15.
    assert kind.expected_bus_bytes_per_s == pytest.approx(PORT * 15 / 8)


def test_sends_between_nodes_have_one_gpus_share_of_the_network():
    pair = table([0, 8], [0.0, 0.0], operation="SendRecv")

    assert kind_of(job(pair, nodes=(8, 8), ports=PORT)).expected_bus_bytes_per_s == pytest.approx(PORT)


def test_small_messages_are_latency_and_no_slow_link():
    small = operation(4, size_bytes=np.full(100, 256e3), transfer_s=30e-6, kernel_ratio=[0.3] * 4)
    was_faster = replace(small, best_s_per_byte=10e-6 / 256e3, best_size_bytes=256e3)
    result = judged(job(was_faster, nodes=(4,), tp=1, pp=1, dp=4))
    (kind,) = result.nccl.kinds

    assert kind.latency_bound is True
    # Ring with the protocol LL: 6.6 us and 2 (n - 1) hops of 0.6 us.
    assert kind.latency_s == pytest.approx(10.2e-6)
    assert result.nccl.slow_groups == ()
    assert bandwidth_words(kind) == (
        "AllReduce over all ranks moves 0.256 MB at a time, too little for bandwidth to matter: it takes"
        " 30 µs, and NCCL assumes a latency of 10 µs."
    )
    found = next(one for one in result.findings if one.kind is Kind.COMMUNICATION)
    assert bandwidth_words(kind) in found.evidence
    assert "larger gradient buckets" in found.advice


def test_bandwidth_stands_beside_how_nccl_did_it():
    kind = replace(
        kind_of(job(operation(8), nodes=(8,))), method=Method(algorithm="RING", protocol="LL128", channels=24)
    )
    assert bandwidth_words(kind).startswith("AllReduce over all ranks (RING, LL128, 24 channels) reaches ")
    unreported = replace(kind, method=Method(algorithm="NVLS", protocol="SIMPLE"))
    assert bandwidth_words(unreported).startswith("AllReduce over all ranks (NVLS, SIMPLE) reaches ")


def test_a_tree_over_many_nodes_takes_less_than_a_ring():
    kind = kind_of(job(operation(64), nodes=(8,) * 8, ports=PORT))

    # 6.8 us, 7 hops inside nodes and 3 between them, there and back.
    assert kind.latency_s == pytest.approx(6.8e-6 + 2 * (7 * 1.08e-6 + 3 * 5e-6))


def test_the_diagnosis_prints_what_transfers_reach_beside_what_links_allow():
    text = "".join(findings_in_words([judged(job(operation(8), nodes=(8,), tp=1, pp=1, dp=8))]))

    assert (
        "- AllReduce over all ranks reaches 175 GB/s of bus bandwidth while data moves, of 450 GB/s that its"
        " links allow (NVLink between its GPUs, one direction).\n"
    ) in text


def test_one_huge_message_at_the_start_does_not_hide_that_nvlink_is_not_used():
    slow = operation(2, size_bytes=np.full(100, 33e6), transfer_s=1.2e-3, kernel_ratio=[0.6] * 2)
    synced = replace(slow, best_s_per_byte=1 / 29e9, best_size_bytes=1.5e9)

    (group,) = judged(job(synced, nodes=(2,))).nccl.slow_groups

    assert group.expected_bytes_per_s == pytest.approx(NVLINK)
    assert group.bus_bytes_per_s == pytest.approx(33e6 / 1.2e-3)


def test_kinds_that_take_little_of_the_time_have_no_line():
    (kind,) = judged(job(operation(8), nodes=(8,), tp=1, pp=1, dp=8)).nccl.kinds
    known = {ratio: replace(kind, kernel_ratio=ratio) for ratio in (0.009, 0.011, 0.3)}

    assert busiest(list(known.values())) == [known[0.3], known[0.011]]
