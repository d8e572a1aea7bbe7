"""Every finding is on the page: ranked, with its numbers, its cost in the bar of a step, and what to do."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from perfd.analysis.findings import Kind
from perfd.formatting import duration, percent
from tests.support.chromium import Tab
from tests.support.page_server import StandIn, alert_entry, job_entry

pytestmark = pytest.mark.system
SHOWN = "document.getElementById('mfu')"
SLOW = {
    "kind": "straggler",
    "name": "straggler",
    "sentence": "A straggler limits this job",
    "certainty": "measured",
    "culprits": [{"kind": "rank", "id": "3"}],
    "evidence": ["Rank 3 takes 1.3 times as long."],
    "advice": "Look at rank 3.",
    "gain_ratio": 0.199,
    "effects": [{"kind": "communication", "summary": "waiting of 7 ranks", "evidence": ["They wait 20%."]}],
}
DATA = {
    "kind": "data_loading",
    "name": "data loading",
    "sentence": "Data loading limits this job",
    "certainty": "likely",
    "culprits": [],
    "evidence": ["The loader takes 8%."],
    "advice": "Use more workers.",
    "gain_ratio": 0.08,
    "effects": [],
}
STYLE = "getComputedStyle(document.querySelector('.verdict'))"
COLOR = (
    "((probe) => { probe.style.color = 'var(%s)'; document.body.append(probe);"
    " const {color} = getComputedStyle(probe); probe.remove(); return color; })(document.createElement('i'))"
)
PARTS = {"forward_ratio": 0.3, "backward_ratio": 0.6, "unattributed_ratio": 0.06}


def shown(stand_in: StandIn, tab: Tab, **changes: Any) -> None:
    entry = job_entry("llm", ranks=8, slow=3, **{"bottleneck": SLOW, "other_findings": [DATA], **changes})
    stand_in.answers["jobs"] = {"jobs": [entry]}
    tab.open(f"{stand_in.url}/jobs/llm", SHOWN)


def test_effects_are_below_their_cause_and_other_findings_follow(stand_in: StandIn, tab: Tab) -> None:
    shown(stand_in, tab)

    assert tab.text("#evidence > li.effect > ul > li") == "They wait 20%."
    assert tab.text("#evidence > li.effect").startswith("Explains waiting of 7 ranks.")
    assert tab.count("#findings > li") == 1
    assert tab.text("#findings h3").split("\n") == [
        "data loading",
        "likely costs about 8.0% of the time",
    ]
    assert "What to do: Use more workers." in tab.text("#findings")


def test_faults_that_are_over_and_restarts_are_below_the_findings_of_now(stand_in: StandIn, tab: Tab) -> None:
    over = {"lasts": False, "sentence": "straggler: rank 1 (10:00 to 10:05): cost 17.0% of a step."}
    first = {"lasts": False, "sentence": "hang: rank 5 (09:00 to 09:02): cost 100.0% of a step."}
    lasts = {"lasts": True, "sentence": "straggler: rank 3 (10:07 and goes on): cost 19.9% of a step."}
    said = "The job started again once, which cost 40.0 s."
    shown(stand_in, tab, past={"restarts_sentence": said, "faults": [first, over, lasts]})

    assert tab.text("#restarts").replace("\xa0", " ") == said
    # The newest comes first; one that goes on is a finding.
    assert tab.count("#past-faults > li") == 2
    assert tab.text("#past-faults > li") == over["sentence"]

    shown(stand_in, tab, past={"restarts_sentence": "", "faults": [lasts]})
    assert tab.count("#section-past *") == 0


def test_what_stands_between_backticks_is_code_and_never_markup(stand_in: StandIn, tab: Tab) -> None:
    line = "Rank 3 waits 20 ms: `<img src=x onerror=fail()>` and a lone ` stay as they are."
    finding = {**SLOW, "evidence": [line], "advice": "Run `perfd doctor` on it, then `nvidia-smi -q`."}
    shown(stand_in, tab, bottleneck=finding)

    assert tab.text("#evidence > li") == line.replace("`", "", 2)
    assert tab.text("#evidence code") == "<img src=x onerror=fail()>"
    assert tab.count("#evidence img") == 0
    assert tab.text("#advice").endswith("To find it: Run perfd doctor on it, then nvidia-smi -q.")
    assert tab.run("[...document.querySelectorAll('#advice code')].map((one) => one.textContent)") == [
        "perfd doctor",
        "nvidia-smi -q",
    ]


def test_the_bar_of_a_step_has_the_headlines_number(stand_in: StandIn, tab: Tab) -> None:
    shown(stand_in, tab, breakdown=PARTS)

    assert "costs about 19.9% of the time" in tab.text("#headline")
    lines = tab.run("[...document.querySelectorAll('.cost-line')].map((line) => line.innerText)")
    assert [line.replace("\n", " ") for line in lines] == ["straggler: rank 3 19.9%", "data loading 8.0%"]
    widths = ("cost", "bar")
    cost, bar = (
        tab.run(f"document.querySelector('.{name}').getBoundingClientRect().width") for name in widths
    )
    assert cost / bar == pytest.approx(0.199, abs=0.002)


@pytest.mark.parametrize(("backward", "line"), [(0.6, ""), (0.7, "They add up to 106.0%"), (0.5, "")])
def test_numbers_that_do_not_add_up_say_why(stand_in: StandIn, tab: Tab, backward: float, line: str) -> None:
    parts = {**PARTS, "backward_ratio": backward, "unattributed_ratio": 0.06}
    shown(stand_in, tab, breakdown=parts)

    text = tab.text("#breakdown figcaption")
    assert (line in text) if line else ("add up" not in text)


def test_the_idle_share_of_a_pipeline_is_theory_and_excess(tab: Tab, played: Callable[[str], str]) -> None:
    url = played("pp4_few")
    with urllib.request.urlopen(f"{url}/api/v1/jobs?job=pp4_few", timeout=10) as answer:
        (job,) = json.load(answer)["jobs"]
    tab.open(f"{url}/jobs/pp4_few", SHOWN)

    found = job["pipeline"]
    idle, theory, excess = (percent(found[f"{name}_ratio"]) for name in ("stall", "bubble_theory", "excess"))
    assert f"{idle} idle = {theory} theory + {excess} excess." in tab.text("#breakdown")
    tab.run("document.querySelector('.verdict details').open = true")
    numbers = tab.text(".verdict details")
    gain = job["bottleneck"]["gain_ratio"]
    assert all(value in numbers for value in (idle, theory, excess, percent(gain)))
    assert duration(job["step_time_s"]["median"] * gain) in numbers
    assert [one["kind"] for one in job["other_findings"]] == []


@pytest.mark.parametrize(
    ("kind", "gain", "color"),
    [
        ("straggler", 0.1, "--bad"),
        ("communication", None, "--bad"),
        ("communication", 0.0999, "--warn"),
        ("compute_bound", None, "--quiet"),
        ("none", None, "--good"),
        ("unknown", None, "--quiet"),
    ],
)
def test_the_headline_is_red_only_for_what_costs_a_tenth_of_a_step(
    stand_in: StandIn, tab: Tab, kind: str, gain: float | None, color: str
) -> None:
    shown(stand_in, tab, bottleneck={**SLOW, "kind": kind, "gain_ratio": gain})

    assert tab.run(f"{STYLE}.borderLeftColor") == tab.run(COLOR % color)


def test_no_kind_of_finding_takes_the_color_of_a_part_of_a_step(stand_in: StandIn, tab: Tab) -> None:
    for kind in Kind:
        shown(stand_in, tab, bottleneck={**SLOW, "kind": kind.value})
        assert tab.run(f"{STYLE}.backgroundColor") == tab.run(COLOR % "--card"), kind


def test_evidence_opens_to_the_culprits_numbers(stand_in: StandIn, tab: Tab) -> None:
    shown(stand_in, tab)
    tab.run("document.querySelector('.verdict details').open = true")

    assert "650 W; median of ranks 573 W" in tab.text(".verdict details")


def test_a_capture_of_the_culprit_is_a_command_and_a_button_with_a_token(stand_in: StandIn, tab: Tab) -> None:
    stand_in.answers["captures"] = {"captures": [], "capture": {"id": "manual-1"}}
    shown(stand_in, tab)

    assert tab.text(".verdict .command") == "perfd capture start llm --ranks 3+peer --steps 3 --wait"
    tab.run("document.querySelector('.verdict .start-capture').click()")
    tab.wait("document.querySelector('dialog[open] #capture-token')")
    tab.run("document.getElementById('capture-token').value = 'word'")
    tab.run("document.querySelector('dialog[open] button[value=start]').click()")
    tab.wait("document.querySelector('.verdict .actions a')")
    assert stand_in.posted == [
        ("captures", {"job": "llm", "steps": 3, "by": "the page", "ranks": "3+peer"}, "Bearer word")
    ]
    assert tab.run("document.querySelector('.verdict .actions a').getAttribute('href')") == (
        "/jobs/llm/captures/manual-1"
    )


def test_a_job_that_is_over_offers_no_capture(stand_in: StandIn, tab: Tab) -> None:
    shown(stand_in, tab, ended=True)

    assert tab.count(".start-capture") == tab.count(".command") == 0
    assert tab.text(".verdict .copy") == "Copy advice"


def test_names_are_quoted_in_commands(stand_in: StandIn, tab: Tab) -> None:
    stand_in.answers["jobs"] = {"jobs": [job_entry("a; rm 'x'", ranks=8, slow=3, bottleneck=SLOW)]}
    tab.open(f"{stand_in.url}/jobs/a%3B%20rm%20%27x%27", SHOWN)

    assert tab.text(".command").startswith("perfd capture start 'a; rm '\\''x'\\''' --ranks")


def test_only_what_limits_a_job_has_its_cost_drawn(tab: Tab, stand_in: StandIn) -> None:
    for kind, drawn in (("straggler", 1), ("compute_bound", 0), ("missing_telemetry", 0)):
        finding = {"kind": kind, "confidence": 0.9, "gain_ratio": 0.2, "culprits": [], "evidence": []}
        job = job_entry("llm", bottleneck=finding, breakdown={"forward_ratio": 0.3, "backward_ratio": 0.4})
        stand_in.answers["jobs"] = {"jobs": [job]}
        tab.open(f"{stand_in.url}/jobs/llm", "document.querySelector('#breakdown')")
        assert tab.count("#breakdown .cost") == drawn, kind


@pytest.mark.parametrize(
    ("word", "said", "border"),
    [
        ("measured", "costs about", "solid"),
        ("likely", "costs about", "double"),
        ("possible", "may cost up to", "dotted"),
    ],
)
def test_what_is_less_certain_looks_less_certain(
    stand_in: StandIn, tab: Tab, word: str, said: str, border: str
) -> None:
    shown(stand_in, tab, bottleneck={**SLOW, "limits_job": True, "certainty": word})

    assert tab.text("#headline .certainty") == word
    assert f"{word} {said} 19.9% of the time" in tab.text("#headline")
    assert tab.run(f"{STYLE}.borderLeftStyle") == border


def test_what_may_be_over_is_said_beside_the_headline_and_is_not_red(stand_in: StandIn, tab: Tab) -> None:
    shown(stand_in, tab, bottleneck={**SLOW, "limits_job": True, "may_be_over": True})

    assert "measured may be over cost about 19.9% of the time" in tab.text("#headline")
    assert tab.run(f"{STYLE}.borderLeftColor") == tab.run(COLOR % "--warn")


@pytest.mark.parametrize(
    ("evidence", "label"),
    [
        ("Rank 3 takes 1.3 times as long.", "The cause is not known yet. To find it: Look at rank 3."),
        ("Its SM clock is 80.0% of theirs (NVML).", "What to do: Look at rank 3."),
        ("Every 5 steps, one takes 2.0 s instead of 1.0 s.", "What to do: Look at rank 3."),
    ],
)
def test_a_straggler_without_a_cause_says_so(stand_in: StandIn, tab: Tab, evidence: str, label: str) -> None:
    shown(stand_in, tab, bottleneck={**SLOW, "evidence": [evidence]})

    assert tab.text("#advice") == label


@pytest.mark.parametrize(
    ("evidence", "label"),
    [
        (
            "Rank 3 takes 1.3 times as long.",
            "The cause is not known. To find it in the next run: Look at rank 3.",
        ),
        ("Its SM clock is 80.0% of theirs (NVML).", "For the next run: Look at rank 3."),
    ],
)
def test_advice_for_an_ended_job_is_for_its_next_run(
    stand_in: StandIn, tab: Tab, evidence: str, label: str
) -> None:
    shown(stand_in, tab, bottleneck={**SLOW, "evidence": [evidence]}, ended=True)

    assert tab.text("#advice") == label


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.05, "median; p95 600.0 ms"),
        (0.051, "median; p95 600.0 ms; 5.1% of steps are outliers, not counted"),
    ],
)
def test_many_outliers_are_said_beside_the_percentile_without_them(
    stand_in: StandIn, tab: Tab, ratio: float, said: str
) -> None:
    shown(stand_in, tab, step_time_s={"median": 0.5, "p95": 0.6, "outlier_ratio": ratio})

    assert tab.text("#step-time + dd") == said


def test_a_tier_names_no_cause_that_the_headline_does_not(stand_in: StandIn, tab: Tab) -> None:
    shown(stand_in, tab, efficiency={"mfu_ratio": 0.35, "mfu_tier": "communication_bound"})

    assert tab.text("#mfu + dd") == "of the dense peak; tier fair"


def test_the_parts_of_a_page_are_reached_from_its_top(stand_in: StandIn, tab: Tab) -> None:
    stand_in.answers["alerts"] = {"alerts": [alert_entry("Slow")]}
    shown(stand_in, tab, bottleneck=SLOW)
    links = "[...document.querySelectorAll('[aria-label=\"On this page\"] a')]"

    assert tab.run(f"{links}.map((one) => one.innerText)") == ["Charts", "Ranks", "Alerts"]
    assert tab.run(f"{links}.every((one) => document.querySelector(one.hash).querySelector('h2'))")


def test_what_has_no_value_is_one_line_with_the_reason(stand_in: StandIn, tab: Tab) -> None:
    unknown = {"share_ratio": None, "source": None}
    shown(stand_in, tab, optimizer=unknown, data=unknown, parallel={"pp": 1, "world_size": 8})

    line = tab.text("#not-measured")
    assert "Data loading (no timer for it); Optimizer (no timer for it)" in line
    assert "Pipeline stall" not in tab.text("main")
    assert tab.count(".numbers #data") == 0


def test_what_may_be_no_step_is_not_called_one(stand_in: StandIn, tab: Tab) -> None:
    shown(stand_in, tab, steps={"first": 1, "last": 90, "doubt": "micro-batch"}, train_steps=None)

    assert "step or micro-batch 90" in tab.text(".title")
    assert tab.text("#step-time + dd").startswith("median per step or micro-batch; p95")
    assert "if each step or micro-batch is a step" in tab.text("#mfu + dd")
