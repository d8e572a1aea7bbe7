"""What the page of a job of 16,384 ranks and 10,000 steps costs, as far as it does not depend on speed."""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chromium import Tab
from tests.support.large_job import LargeJob, large_job

pytestmark = pytest.mark.system
RANKS, STEPS = 16_384, 10_000
PAGE_BYTES = 300_000
UPDATE_BYTES = 150_000
READY = (
    "performance.getEntriesByName('shown').length && document.getElementById('rank-grid')?.style.height"
    " && document.querySelector('#gpu-power_w output')?.innerText"
)


@pytest.fixture(scope="module")
def job() -> Iterator[LargeJob]:
    with large_job(RANKS, STEPS, slow=4321) as job:
        yield job


def lists(value: Any) -> Iterator[list[Any]]:
    """All lists of a document."""
    if isinstance(value, list):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from lists(inner)


def api(job: LargeJob, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"{job.url}/api/v1/{path}", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=240) as answer:
        body = answer.read()
        assert answer.headers["Content-Encoding"] == "gzip"
        return len(body), json.loads(gzip.decompress(body))


def test_the_page_is_small_and_names_the_rank(tab: Tab, job: LargeJob) -> None:
    tab.open(f"{job.url}/jobs/{job.name}", READY)
    tab.collect_garbage()
    sizes, counts = tab.transferred(), tab.metrics()

    assert tab.text("#headline").startswith("A straggler limits this job: rank 4321")
    assert tab.run("document.getElementById('rank-grid').ariaLabel").startswith("16,384 ranks by node: ")
    assert tab.text("#ranks tbody tr").startswith("rank 4321 culprit")
    # Each address once: the stream of events does not ask again for what was just loaded.
    assert sum(sizes.values()) < PAGE_BYTES, sizes
    assert any(name.endswith("/gpu_series") for name in sizes)
    assert counts["Nodes"] < 2000
    assert counts["LayoutCount"] <= 40


def test_the_whole_page_fits_the_window(tab: Tab, job: LargeJob) -> None:
    for width in (1280, 390):
        tab.look(width)
        tab.open(f"{job.url}/jobs/{job.name}", READY)
        assert tab.run("document.documentElement.scrollWidth") <= width
        # All ranks are there, in a grid that fits a screen or two.
        assert tab.run("document.getElementById('rank-grid').clientHeight") < 1200


def test_a_round_costs_one_request_each_and_no_more_elements(tab: Tab, job: LargeJob) -> None:
    tab.open(f"{job.url}/jobs/{job.name}", READY)
    job.advance()
    shown = f"document.querySelector('.title').innerText.includes('step {job.step} of')"
    tab.wait(shown)
    tab.collect_garbage()
    before = tab.metrics()
    tab.run("performance.clearResourceTimings()")
    job.advance()
    tab.wait(f"document.querySelector('.title').innerText.includes('step {job.step} of')")
    tab.collect_garbage()
    after, sizes = tab.metrics(), tab.transferred()
    rounds = tab.run(
        "performance.getEntriesByType('resource').filter(({name}) => name.includes('/ranks?')).length"
    )

    assert rounds >= 1
    assert sum(sizes.values()) / rounds < UPDATE_BYTES, sizes
    assert not any("/static/" in name for name in sizes)
    assert abs(after["Nodes"] - before["Nodes"]) < 200
    assert (after["LayoutCount"] - before["LayoutCount"]) / rounds <= 25


def test_an_answer_has_no_more_long_lists_than_are_drawn(job: LargeJob) -> None:
    size, ranks = api(job, f"jobs/{job.name}/ranks?columns=1120&metric=power_w")
    assert size < 120_000
    # Values and GPUs of the grid.
    assert [len(one) for one in lists(ranks) if len(one) > 2048] == [RANKS, RANKS]
    size, short = api(job, f"jobs?short=1&job={job.name}")
    assert size < 20_000
    assert max(len(one) for one in lists(short)) <= RANKS // 8
    _, series = api(job, f"jobs/{job.name}/series")
    assert max(len(one) for one in lists(series)) <= 600
    assert series["step"][-1] == job.step


def test_a_rank_is_its_own_page_of_few_bytes(tab: Tab, job: LargeJob) -> None:
    size, ranks = api(job, f"jobs/{job.name}/ranks?rank=4321")
    assert size < 2000
    tab.open(f"{job.url}/jobs/{job.name}/ranks/4321", "document.getElementById('rank-numbers')")
    assert tab.text("#rank").startswith("rank 4321 culprit")
    shown = f"{ranks['rows'][0]['values']['power_w']:.0f} W"
    assert shown in tab.text("[data-key=power_w]")
