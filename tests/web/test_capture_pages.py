"""A job's captures, and the page of a capture: what started it, ranks over time, why it was refused."""

from __future__ import annotations

import shlex

import pytest

from tests.support.chromium import Tab
from tests.support.page_server import StandIn, capture_entry, job_entry, rank_entry

pytestmark = pytest.mark.system


def test_what_started_a_capture_and_the_value_that_did_are_shown_wherever_it_is(
    tab: Tab, stand_in: StandIn
) -> None:
    by_rule = capture_entry("c1", alert="PerfdSlow", value=1.73, summary="Rank 2 is slow.")
    by_hand = capture_entry("c2", asked_by="ann@login1")
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama")]}
    stand_in.answers["captures"] = {"captures": [by_rule, by_hand]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#captures')")
    assert "c1 alert PerfdSlow at 1.730" in tab.text("#captures")
    assert "c2 by ann@login1" in tab.text("#captures")
    assert "captures" in stand_in.asked

    tab.run("document.querySelector('#captures a[href$=c1]').click()")
    tab.wait("location.pathname === '/jobs/llama/captures/c1' && document.querySelector('#capture')")
    assert "Rank 2 is slow." in tab.text("main")
    assert tab.run("document.querySelector('main a[href*=runbooks]').pathname") == "/runbooks/PerfdSlow"
    assert tab.count("#ranks, #files, iframe") == 0


def test_the_states_of_a_rank_are_drawn_over_time(tab: Tab, stand_in: StandIn) -> None:
    times = {
        "armed_unix_s": 1e9 + 1,
        "started_unix_s": 1e9 + 3,
        "stopped_unix_s": 1e9 + 8,
        "ended_unix_s": 1e9 + 10,
    }
    ranks = [rank_entry(0, "done", **times, whole_steps=5), rank_entry(1, "refused", ended_unix_s=1e9 + 1)]
    stand_in.answers["captures"] = {"captures": [capture_entry("c1", ranks=ranks, ended_unix_s=1e9 + 10)]}
    tab.open(f"{stand_in.url}/jobs/llama/captures/c1", "document.querySelector('#ranks')")

    drawn = tab.run(
        "[...document.querySelectorAll('#ranks .track')].map((track) => [...track.children].map((one) =>"
        " [one.title, one.style.left, one.style.width]))"
    )
    assert drawn == [
        [
            ["requested", "0%", "10%"],
            ["armed", "10%", "20%"],
            ["profiler collects", "30%", "50%"],
            ["files are written", "80%", "20%"],
        ],
        [["requested", "0%", "10%"]],
    ]
    assert "rank 0 on n done for 5.0 s, 5 whole steps" in tab.text("#ranks")


def test_a_refused_capture_has_its_reason_and_the_command_that_corrects_it(
    tab: Tab, stand_in: StandIn
) -> None:
    correction = {"words": "On n, this shows what is missing:", "command": "perfd doctor", "node": "n"}
    refused = capture_entry("c1", state="refused", reason="No nsys.", correction=correction)
    stand_in.answers["captures"] = {"captures": [refused]}
    for view in ("/jobs/llama/captures", "/jobs/llama/captures/c1"):
        tab.open(stand_in.url + view, "document.querySelector('.correction')")
        assert "No nsys." in tab.text("main")
        assert tab.text(".correction code") == "perfd doctor"
        assert tab.text(".correction button") == "Copy"


def test_the_list_asks_for_no_ranks_and_the_page_of_one_updates_until_it_is_over(
    tab: Tab, stand_in: StandIn
) -> None:
    stand_in.answers["captures"] = {"captures": [capture_entry("c1", ranks=[rank_entry(0, "running")])]}
    tab.open(f"{stand_in.url}/jobs/llama/captures", "document.querySelector('article')")
    assert "1 rank running" in tab.text("article")
    tab.open(f"{stand_in.url}/jobs/llama/captures/c1", "document.querySelector('#ranks .running')")
    tab.wait("document.getElementById('updated').dataset.how === 'live'")
    done = capture_entry("c1", state="done", ranks=[rank_entry(0, "done")], ended_unix_s=1e9 + 9)
    stand_in.answers["captures"] = {"captures": [done]}
    stand_in.live.notify()
    tab.wait("document.querySelector('#ranks .done') && document.querySelector('#capture .done')")


def test_a_path_from_a_node_is_quoted_in_the_command_which_names_the_node_with_the_files(
    tab: Tab, stand_in: StandIn
) -> None:
    gone = {"path": "/a/rank0.sqlite", "size_bytes": 1, "removed": {"unix_s": 1e9, "reason": "full"}}
    kept = {"path": "/b/$(touch x); it's/rank1.sqlite", "size_bytes": 1, "removed": None}
    ranks = [
        {**rank_entry(0, "done"), "node": "n0", "files": [gone]},
        {**rank_entry(1, "done"), "node": "n1", "files": [kept]},
    ]
    stand_in.answers["captures"] = {"captures": [capture_entry("c1", ranks=ranks, ended_unix_s=1e9 + 10)]}
    tab.open(f"{stand_in.url}/jobs/llama/captures/c1", "document.querySelector('#files code')")
    words = shlex.split(tab.text("#files code"))
    assert words[:4] == ["perfd", "trace", "export", "/b/$(touch x); it's"]
    assert "on n1:" in tab.text("#files")


def test_an_unknown_capture_is_reported_as_missing(tab: Tab, stand_in: StandIn) -> None:
    tab.open(f"{stand_in.url}/jobs/llama/captures/c9", "document.querySelector('main .empty')")
    assert tab.text("h1") == "Capture not found"


def test_the_page_says_what_to_do_if_perfetto_does_not_answer(tab: Tab, stand_in: StandIn) -> None:
    report = {
        "path": "/c/c1/perfd.report.html",
        "perfetto_path": "/c/c1/p.gz",
        "words": "It is slow.",
        "shares": None,
    }
    done = capture_entry("c1", state="done", report=report, ended_unix_s=1e9 + 9)
    stand_in.answers["captures"] = {"captures": [done]}
    stand_in.answers["traces/c1/perfetto"] = {"any": "file"}
    tab.open(f"{stand_in.url}/jobs/llama/captures/c1", "document.querySelector('#open-perfetto')")
    tab.run("window.open = () => null; document.getElementById('open-perfetto').click()")
    tab.wait("document.querySelector('#files output').innerText.includes('allow pop-ups')")
    # Skips the 20 s that the page waits.
    tab.run(
        "const slow = window.setTimeout; window.setTimeout = (act) => slow(act, 0);"
        "window.open = () => ({postMessage() {}}); document.getElementById('open-perfetto').click()"
    )
    tab.wait("document.querySelector('#files output').innerText.includes('cannot be reached')")
