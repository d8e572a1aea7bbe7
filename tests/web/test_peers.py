"""The matrices of ranks: which waits for which, and the bandwidth of the links between them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perfd.aggregator.web_api.charts import peer_matrices
from perfd.formatting import percent
from tests.support.chromium import Tab
from tests.support.page_server import StandIn, job_entry


def group(
    ranks: Sequence[int], bus_bytes_per_s: float | None, expected: float | None = None, **changes: Any
) -> dict[str, Any]:
    return {
        "communicator": "-".join(map(str, ranks)), "group": "dp", "operation": "AllReduce",
        "ranks": list(ranks), "bus_bytes_per_s": bus_bytes_per_s, "expected_bus_bytes_per_s": expected,
        "expected_source": "NVLink" if expected else None, "latency_bound": False, **changes,
    }  # fmt: skip


def links(*groups: dict[str, Any]) -> Any:
    return peer_matrices({"nccl": {"groups": groups}})["links"]


def test_two_ranks_have_the_slowest_of_their_groups() -> None:
    found = links(
        group([0, 1, 2, 3], 300e9, 400e9),
        group([0, 1], 100e9, 400e9, group="tp", operation="AllGather"),
    )

    assert found["ranks"] == [0, 1, 2, 3]
    assert found["bus_ratios"][0] == [None, 0.25, 0.75, 0.75]
    named = found["groups"][found["group_index"][1][0]]
    assert (named["operation"], named["rank_count"], named["reference"]) == ("AllGather", 2, "NVLink")
    assert (named["bus_bytes_per_s"], named["expected_bus_bytes_per_s"]) == (100e9, 400e9)


def test_links_of_unknown_speed_are_compared_with_their_likes() -> None:
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7)]
    found = links(*(group(pair, 20e9 if pair == (4, 5) else 50e9) for pair in pairs))

    assert found["bus_ratios"][4][5] == pytest.approx(0.4)
    assert found["bus_ratios"][0][1] == 1
    assert found["groups"][found["group_index"][4][5]]["reference"] == "median of similar groups"
    assert links(*(group(pair, 50e9) for pair in pairs[:3])) is None


def test_what_says_nothing_of_links_is_left_out() -> None:
    assert links(group([0, 1], None, 400e9), group([0, 1], 1e9, 400e9, latency_bound=True)) is None
    assert peer_matrices({"nccl": None})["links"] is None
    assert peer_matrices({})["waits"] is None


def test_of_thousands_of_ranks_the_one_with_the_slow_link_is_shown() -> None:
    """A rank is in a group of its row and in one of its column; the slow one's are both slow."""
    side, slow = 128, 5000
    rows = [list(range(i * side, (i + 1) * side)) for i in range(side)]
    columns = [list(range(i, side * side, side)) for i in range(side)]
    groups = [group(ranks, 10e9 if slow in ranks else 40e9, 40e9) for ranks in (*rows, *columns)]

    found = links(*groups)

    assert len(found["ranks"]) == 12
    assert slow in found["ranks"]
    place = found["ranks"].index(slow)
    shown = [ratio for ratio in found["bus_ratios"][place] if ratio is not None]
    assert shown
    assert set(shown) == {0.25}


@pytest.mark.system
def test_the_page_shows_what_the_interface_returns(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("dp2_nccl")
    with urllib.request.urlopen(f"{url}/api/v1/jobs/dp2_nccl/peers", timeout=10) as answer:
        found = json.load(answer)
    assert found["schema"] == "perfd.peers/1"
    tab.open(f"{url}/jobs/dp2_nccl", "document.getElementById('peer-waits')")

    waits = found["waits"]
    for i, rank in enumerate(waits["waiting"]):
        row = tab.text(f"#peer-waits tbody tr:nth-child({i + 1})")
        assert row.startswith(f"rank {rank}")
        assert row.endswith(percent(waits["all_ratios"][i]))
        for other, ratio in zip(waits["last"], waits["wait_ratios"][i], strict=True):
            says = f"rank {rank} waits {percent(ratio)} of the time for rank {other}"
            assert tab.count(f"#peer-waits td[title='{says}']") == (rank != other)
    tab.run("document.getElementById('peers-links').click()")
    tab.wait("document.getElementById('peer-links')")
    assert percent(found["links"]["bus_ratios"][0][1], 0) in tab.text("#peer-links")
    assert found["links"]["groups"][0]["reference"] in tab.run(
        "document.querySelector('#peer-links td[title]').title"
    )


@pytest.mark.system
def test_the_matrix_is_a_table_whose_heads_open_ranks(tab: Tab, stand_in: StandIn) -> None:
    ranks = [3, 70, 700, 701, 900]
    waits = {
        "waiting": ranks, "last": [700, 16_000], "all_ratios": [0.3] * 5,
        "wait_ratios": [[0.25, 0.01], [0.25, 0.01], [0.0, 0.2], [0.25, 0.0], [0.25, 0.01]],
    }  # fmt: skip
    job = job_entry("llm", ranks=16_384, slow=700)
    job["nccl"] = {"source": "nccl plugin", "peer_waits": waits, "missing_ranks": [9]}
    stand_in.answers["jobs"] = {"jobs": [job]}
    tab.look(390, 900)
    tab.open(f"{stand_in.url}/jobs/llm", "document.getElementById('peer-waits')")

    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.text("#peer-waits thead").strip() == "Waits \\ for\trank 700\trank 16000\tAll"
    assert "Of 16,384 ranks, those that wait most" in tab.text("[data-section=peers] figcaption")
    assert "No data from rank 9" in tab.text("[data-section=peers] figcaption")
    heads = tab.run("[...document.querySelectorAll('#peer-waits th')].every((one) => one.scope)")
    assert heads is True
    link = tab.run("document.querySelector('#peer-waits thead a').getAttribute('href')")
    assert link == "/jobs/llm/ranks/700"


@pytest.mark.system
def test_without_times_of_nccl_the_page_says_what_is_missing(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["jobs"] = {"jobs": [job_entry("llm", ranks=8)]}
    tab.open(f"{stand_in.url}/jobs/llm", "document.getElementById('no-peers')")
    assert "docs/nccl.md" in tab.text("#no-peers")
