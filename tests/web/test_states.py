"""In a real browser: every state of the page, at every size, with any names, by keyboard and live."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from perfd.net.http import Response
from perfd.web.live_updates import Live
from tests.support.chromium import Browser, Tab
from tests.support.page_server import (
    VIEWS,
    StandIn,
    alert_entry,
    capture_entry,
    everything,
    fleet_row,
    job_entry,
    node_entry,
    rank_entry,
    server_entry,
)

pytestmark = pytest.mark.system
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}</td><script>alert(2)</script>"
FLEET = "document.querySelector('#jobs')"
LIVE = "document.getElementById('updated').dataset.how === 'live'"

# Two lengths are no answer to a browser: the request fails as if nobody were there.
GONE = Response(body=b"{}", headers={"Content-Length": "9"})
SHIFTS = (
    "globalThis.shifts = 0; new PerformanceObserver((list) => list.getEntries().forEach((one) => {"
    " if (!one.hadRecentInput) shifts += one.value; })).observe({type: 'layout-shift', buffered: true});"
)
"""Sums up layout shifts, as Lighthouse's CLS does."""


def fleet_of(stand_in: StandIn, *jobs: dict[str, Any]) -> None:
    stand_in.answers["fleet"] = {**stand_in.answers["fleet"], "jobs": list(jobs)}


# What is missing, wrong or away


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", "No jobs yet"),
        ("/servers", "No serving engines yet"),
        ("/agents", "No agent yet"),
        ("/nodes", "No node was blamed yet"),
        ("/alerts", "No alert has fired"),
        ("/jobs/llama", "There is no such job."),
        ("/jobs/llama/captures", "There is no such job."),
        ("/jobs/mistral/captures", "No captures of this job"),
    ],
)
def test_an_empty_aggregator_says_so_and_what_to_do(
    path: str, said: str, tab: Tab, stand_in: StandIn
) -> None:
    stand_in.answers["jobs/mistral"] = {"jobs": [{"name": "mistral"}]}
    tab.open(stand_in.url + path, "document.querySelector('main h1')")

    assert said in tab.text("main")
    assert tab.count("main a, main pre") > 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Response(status=503, body=b'{"error": "History is away."}'), "History is away. Retrying"),
        (Response(status=500, body=b"<h1>?"), "The aggregator answered with status 500. Retrying"),
        (Response(body=b"{"), "not JSON. Retrying"),
        (GONE, "The aggregator does not answer. Retrying"),
    ],
)
def test_an_error_is_said_as_a_sentence(answer: Response, said: str, tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["fleet"] = answer
    tab.open(f"{stand_in.url}/", "document.querySelector('[role=alert]')")

    assert said in tab.text("#notices")


def test_what_is_shown_stays_and_turns_pale_when_the_aggregator_is_gone(tab: Tab, stand_in: StandIn) -> None:
    fleet_of(stand_in, fleet_row("llama"))
    tab.look(calm=True)
    tab.open(f"{stand_in.url}/", FLEET)
    tab.wait(LIVE)
    stand_in.answers["fleet"] = GONE
    stand_in.live.close()
    tab.wait("document.querySelector('main').dataset.state === 'disconnected'")

    assert "The aggregator does not answer. Retrying every 5 s. Showing data from" in tab.text("#notices")
    assert "llama" in tab.text("#jobs")
    assert float(tab.run("getComputedStyle(document.querySelector('main section')).opacity")) < 1
    assert "every 5 s" in tab.text("#updated")


def test_an_alert_that_belongs_to_no_job_is_above_all_jobs(tab: Tab, stand_in: StandIn) -> None:
    fleet_of(stand_in, fleet_row("llama"))
    stand_in.answers["fleet"]["alerts"] = [{"name": "PerfdXid", "summary": "GPU 3 of n7 reports XID 79"}]
    tab.open(f"{stand_in.url}/", FLEET)

    assert "PerfdXid GPU 3 of n7 reports XID 79" in tab.text("main")


@pytest.mark.parametrize("problem", ["history_problem", "jobs_problem", "stream_problem"])
def test_what_is_not_kept_is_noted_above_every_view(tab: Tab, stand_in: StandIn, problem: str) -> None:
    sentence = "History cannot be written: database or disk is full"
    stand_in.answers["status"][problem] = sentence
    fleet_of(stand_in, fleet_row("llama"))
    for path in ("/", "/agents"):
        tab.open(stand_in.url + path, "document.querySelector('#notices [role=alert]')")
        assert tab.text("#notices") == sentence
    stand_in.answers["status"][problem] = None
    stand_in.live.notify()
    tab.wait("!document.querySelector('#notices [role=alert]')")


def test_a_silent_job_is_stale_on_both_views(tab: Tab, stand_in: StandIn) -> None:
    fleet_of(stand_in, fleet_row("llama", silent_s=45.0), fleet_row("mistral"))
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", silent_s=45.0)]}
    tab.open(f"{stand_in.url}/", FLEET)
    assert "1 silent" in tab.text("main")
    assert tab.count("#jobs .state.silent") == 1

    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#stale')")
    assert "No agent has reported this job for 45.0 s" in tab.text("#stale")


# Live


def test_a_round_is_shown_when_it_is_over_without_asking_again_and_again(tab: Tab, stand_in: StandIn) -> None:
    fleet_of(stand_in, fleet_row("llama", step=1))
    tab.open(f"{stand_in.url}/", FLEET)
    tab.wait(LIVE)
    # From here on only events can make the page ask.
    tab.run("void (window.setTimeout = () => 0)")

    for step in range(2, 6):
        fleet_of(stand_in, fleet_row("llama", step=step))
        stand_in.live.notify()
        tab.wait(f"document.querySelector('#jobs').innerText.includes('{step} of 1000')")
    assert tab.text("#updated").startswith("Updated ")
    assert "every 5 s" not in tab.text("#updated")


def test_a_page_that_is_refused_a_stream_asks_every_few_seconds(tab: Tab) -> None:
    stand_in = StandIn(viewers=0)
    try:
        fleet_of(stand_in, fleet_row("llama", step=1))
        tab.open(f"{stand_in.url}/", FLEET)
        fleet_of(stand_in, fleet_row("llama", step=2))
        tab.wait("document.querySelector('#jobs').innerText.includes('2 of 1000')")

        assert "every 5 s" in tab.text("#updated")
        assert "fleet" in stand_in.asked
    finally:
        stand_in.close()


def test_a_stream_that_broke_comes_back(tab: Tab, stand_in: StandIn) -> None:
    fleet_of(stand_in, fleet_row("llama"))
    tab.open(f"{stand_in.url}/", FLEET)
    tab.wait(LIVE)
    # How the page was updated, all of it: it may poll for less time than lies between two looks.
    tab.run(
        "void (window.seen = [], new MutationObserver(() => seen.push(document.getElementById('updated')"
        ".dataset.how)).observe(document, {subtree: true, childList: true, attributes: true}))"
    )
    broken, stand_in.live = stand_in.live, Live(viewers=8, heartbeat_s=0.1)
    broken.close()

    # The browser tries again by itself.
    tab.wait(f"seen.includes('polling') && ({LIVE})")


def test_a_page_that_nobody_sees_gives_its_stream_back(tab: Tab, stand_in: StandIn) -> None:
    tab.open(f"{stand_in.url}/", "document.querySelector('#empty')")
    tab.wait(LIVE)
    tab.run("void Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true})")
    tab.run("void document.dispatchEvent(new Event('visibilitychange'))")

    while stand_in.live.viewers:
        assert tab.run("document.visibilityState") == "hidden"


def test_what_the_job_complained_of_and_how_much_of_communication_is_waiting_is_shown(
    tab: Tab, stand_in: StandIn
) -> None:
    trouble = {
        "message": "CUDA out of memory",
        "count": 9,
        "ranks": list(range(9)),
        "step": 17,
        "first_unix_s": 1e9,
    }
    communication = {"share_ratio": 0.4, "transfer_ratio": 0.16, "wait_ratio": 0.24}
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", troubles=[trouble], communication=communication)]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#troubles')")

    reported = "CUDA out of memory ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more · after step 17 · 9 times"
    assert tab.text("#troubles").startswith(reported)
    assert "transfer, 24.0% waiting for other ranks" in tab.text("main").replace("\N{NO-BREAK SPACE}", " ")


def test_each_dimension_of_communication_is_shown_with_what_of_it_is_exposed(
    tab: Tab, stand_in: StandIn
) -> None:
    data = {
        "group": "dp", "share_ratio": 0.3, "source": "nccl plugin: kernels on the GPU",
        "exposed_ratio": 0.1, "exposed_source": "timers: all-grads-sync", "missing": None,
    }  # fmt: skip
    tensor = {**data, "group": "tp", "exposed_ratio": None, "exposed_source": None, "missing": HOSTILE}
    stages = {
        **data,
        "group": "pp",
        "exposed_ratio": 0.3,
        "transfer_ratio": 0.05,
        "exposed_source": "schedule",
    }
    little = {**data, "group": None, "share_ratio": 0.0001}
    communication = {
        "share_ratio": 0.9, "exposed_ratio": 0.4, "dimensions": [data, tensor, stages, little],
    }  # fmt: skip
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", communication=communication)]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#dimensions')")

    said = tab.text("#dimensions").replace("\N{NO-BREAK SPACE}", " ").split("\n")
    assert said[:3] == ["Data (dp)", "30.0%, exposed 10.0%", "timers: all-grads-sync"]
    assert said[3:6] == ["Tensor (tp)", "30.0%, exposed unknown", HOSTILE]
    assert said[6:] == ["Pipeline (pp)", "30.0%, exposed 30.0%", "schedule"]
    # Waiting for other stages is a part of its own.
    whole = tab.text("#breakdown").replace("\N{NO-BREAK SPACE}", " ")
    assert "Communication 15.0%" in whole


def test_a_reason_that_all_dimensions_share_is_said_once(tab: Tab, stand_in: StandIn) -> None:
    data = {
        "group": "dp", "share_ratio": 0.3, "source": "nccl plugin", "exposed_ratio": None,
        "missing": "no capture was analyzed",
    }  # fmt: skip
    communication = {
        "share_ratio": 0.5,
        "source": "nccl plugin",
        "dimensions": [data, {**data, "group": "pp"}],
    }
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", communication=communication)]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#dimensions')")

    assert tab.text("main").count("no capture was analyzed") == 1


def test_without_timers_nothing_is_put_down_to_waiting_for_stages(tab: Tab, stand_in: StandIn) -> None:
    communication = {"share_ratio": 0.3, "source": "nccl plugin"}
    job = job_entry("llama", communication=communication, parallel={"pp": 2}, breakdown={})
    stand_in.answers["jobs"] = {"jobs": [job]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#breakdown')")

    whole = tab.text("#breakdown")
    assert "Unaccounted" in whole
    assert "stages" not in whole
    assert "slowest rank" not in whole


def test_a_total_by_timers_says_which_dimensions_it_does_not_count(tab: Tab, stand_in: StandIn) -> None:
    stages = {"group": "pp", "share_ratio": 0.24, "source": "timers: sends", "exposed_ratio": 0.24}
    gradients = {"group": "dp", "share_ratio": 0.01, "source": "timers: all-grads-sync"}
    communication = {"share_ratio": 0.01, "source": "timers: all", "dimensions": [stages, gradients]}
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", communication=communication)]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#dimensions')")

    assert "of a step, not counting pp\n" in tab.text("main")


def test_without_a_gpu_numbers_are_reported_per_rank(tab: Tab, stand_in: StandIn) -> None:
    for gpus, device in (({}, "GPU"), ({"gpus": []}, "rank")):
        stand_in.answers["jobs"] = {
            "jobs": [
                job_entry("llama", efficiency={"tokens_per_s": 80.0, "tokens_per_s_per_gpu": 10.0}, **gpus)
            ]
        }
        tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#flops')")

        assert f"10 per {device}" in tab.text("main")
        assert f"FLOP/s per {device}" in tab.text("main")


def test_what_a_finding_explains_is_indented_below_it(tab: Tab, stand_in: StandIn) -> None:
    effect = {
        "kind": "host_bound",
        "name": "host",
        "summary": "host: 33.5% of 40.0%; 6.5% more is unexplained",
        "evidence": ["GPUs run no kernel at all in 40.0% of steady steps (NVML)."],
    }
    finding = {
        "kind": "data_loading", "certainty": "measured", "gain_ratio": 0.335, "culprits": [],
        "evidence": ["Loading data takes 33.5% of a step."], "effects": [effect], "advice": "",
    }  # fmt: skip
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", bottleneck=finding)]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#evidence')")
    assert tab.text("#evidence > li:last-child").splitlines() == [
        "Explains host: 33.5% of 40.0%; 6.5% more is unexplained.",
        "GPUs run no kernel at all in 40.0% of steady steps (NVML).",
    ]
    assert tab.count("#evidence ul li") == 1


# Names of anyone's choosing


def test_no_name_is_ever_read_as_markup(tab: Tab, stand_in: StandIn) -> None:
    name, culprit = HOSTILE, {"kind": HOSTILE, "id": HOSTILE}
    finding = {
        "kind": "straggler",
        "confidence": 0.9,
        "certainty": "measured",
        "evidence": [HOSTILE],
        "advice": HOSTILE,
    }
    alert = alert_entry(
        HOSTILE, job=name, labels={"alertname": HOSTILE, HOSTILE: HOSTILE}, captures=[HOSTILE]
    )
    alert["annotations"] = {"summary": HOSTILE, "runbook_url": f"javascript:{HOSTILE}"}
    file = {"path": f"/x/{HOSTILE}", "size_bytes": 1, "removed": None}
    capture = capture_entry(
        "c1", job=name, tool=HOSTILE, profile=HOSTILE, alert=HOSTILE, summary=HOSTILE, value=1.0,
        state="refused", reason=HOSTILE, correction={"words": HOSTILE, "command": HOSTILE, "node": HOSTILE},
        ranks=[rank_entry(0, "refused", node=HOSTILE, reason=f"{HOSTILE}!", files=[file])],
    )  # fmt: skip
    job = job_entry(name, framework=HOSTILE, bottleneck={**finding, "culprits": [culprit]})
    job["gpus"][0]["node"] = HOSTILE
    job["troubles"] = [{"message": HOSTILE, "count": 1, "first_unix_s": 1e9}]
    job["pipeline"] = {
        "bubble_theory_ratio": 0.4, "source": HOSTILE, "stages": [{"stage": HOSTILE, "stall_ratio": 0.5}],
    }  # fmt: skip
    row = fleet_row(name, framework=HOSTILE, bottleneck={"kind": HOSTILE, "culprits": [culprit]})
    knob = {"name": HOSTILE, "summary": HOSTILE, "advice": HOSTILE}
    agent = {
        "agent_id": "a", "node": HOSTILE, "connected": True, "version": HOSTILE, "batches": 1, "silent_s": 1,
        "dropped_records": 0, "clock_offset_s": None, "capture_tools": [HOSTILE],
    }  # fmt: skip
    path = quote(name, safe="")
    fleet_of(stand_in, row, fleet_row("b"))
    stand_in.answers["fleet"]["alerts"] = [{"name": HOSTILE, "summary": HOSTILE}]
    stand_in.answers |= {
        "jobs": {"jobs": [job]},
        "alerts": {"alerts": [alert]},
        "captures": {"captures": [capture]},
        "servers": {
            "servers": [
                server_entry(HOSTILE, node=HOSTILE, engine=HOSTILE, model=HOSTILE, findings=[knob]),
                server_entry("b"),
            ]
        },
        "agents": {"agents": [agent, {**agent, "node": "b"}]},
        "nodes": {"nodes": [node_entry(HOSTILE, job=HOSTILE, evidence=HOSTILE, suspect=True)]},
        f"jobs/{path}/series": {
            "step": [1, 2, 3], "time_unix_s": [1, 2, 3], "step_time_s": [1, 1, 1], "mfu_ratio": [0.1] * 3,
            "step_time_max_s": [1, 1, 1], "steady": [True] * 3,
        },
    }  # fmt: skip

    for view in (
        "/",
        f"/jobs/{path}",
        f"/jobs/{path}/captures",
        f"/jobs/{path}/captures/c1",
        "/servers",
        "/agents",
        "/nodes",
    ):
        tab.open(stand_in.url + view, "document.querySelector('main h1')")
        assert tab.count("img, main script, [onerror]") == 0, view
        assert HOSTILE in tab.text("main"), view


# Size


def test_of_500_jobs_the_table_draws_100_and_finds_all(tab: Tab, stand_in: StandIn) -> None:
    jobs = [fleet_row(f"job-{number}", mfu_ratio=number / 1000) for number in range(500)]
    fleet_of(stand_in, *jobs)
    tab.open(f"{stand_in.url}/", FLEET)
    rows = "#jobs tbody tr"

    assert tab.count(rows) == 100
    assert tab.count("*") < 3000
    tab.run("document.getElementById('jobs-next').click()")
    tab.wait("document.querySelector('#jobs tbody').innerText.startsWith('job-100')")
    assert tab.count(rows) == 100
    assert tab.run("location.search") == "?offset=100"

    tab.press("/")
    tab.type("job-49 megatron running")
    tab.wait("document.querySelector('.count').innerText === '11 of 500'")
    assert tab.count(rows) == 11

    tab.run("document.getElementById('search').value = ''")
    tab.run("void document.getElementById('search').dispatchEvent(new Event('input'))")
    by_mfu = (
        "[...document.querySelectorAll('#jobs thead button')].find((one) => one.innerText.startsWith('MFU'))"
    )
    tab.run(f"{by_mfu}.click()")
    tab.wait("document.querySelector('#jobs tbody').innerText.startsWith('job-499')")
    assert tab.run("location.search") == "?sort=mfu&down=1"
    tab.run(f"{by_mfu}.click()")
    tab.wait("document.querySelector('#jobs tbody').innerText.startsWith('job-0')")
    assert tab.run("document.querySelector('[aria-sort]').ariaSort") == "ascending"


def test_of_1000_agents_those_that_are_away_come_first(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["agents"] = {
        "agents": [
            {
                "agent_id": f"a{number}", "node": f"n{number}", "connected": number != 777, "silent_s": 1.0,
                "version": "1", "batches": 1, "dropped_records": 0, "clock_offset_s": 0, "capture_tools": [],
            }
            for number in range(1000)
        ]
    }  # fmt: skip
    tab.open(f"{stand_in.url}/agents", "document.querySelector('#agents')")

    assert tab.text("h1") == "999 of 1,000 agents connected"
    assert tab.count("#agents tbody tr") == 100
    assert tab.text("#agents tbody tr").startswith("n777")


def test_a_suspect_node_comes_first_with_the_command_to_copy(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["nodes"] = {
        "nodes": [node_entry("n1", suspect_ratio=0.1), node_entry("n2", suspect=True, suspect_ratio=0.98)]
    }
    tab.open(f"{stand_in.url}/nodes", "document.querySelector('#nodes')")

    assert tab.text("h1") == "1 suspect node"
    assert tab.text("#nodes tbody tr").startswith("n2")
    assert tab.text(".notice pre") == "scontrol update NodeName=n2 State=DRAIN Reason=x"


def test_a_straggler_stands_out_among_1024_ranks(tab: Tab, stand_in: StandIn) -> None:
    stand_in.answers["jobs"] = {"jobs": [job_entry("llama", ranks=1024, slow=517)]}
    tab.open(
        f"{stand_in.url}/jobs/llama",
        "![undefined, 150].includes(document.querySelector('#rank-picture')?.height)",
    )

    assert tab.text("#ranks tbody tr").startswith("rank 517 culprit")
    assert tab.count("*") < 600
    assert "Most unusual: rank 517." in next(name for _, name in tab.names() if "unusual" in name)
    # Of all columns of the picture, only the straggler's is coloured in the line of tensor cores.
    coloured = tab.run(
        """(() => {
          const canvas = document.getElementById("rank-picture");
          const pixels = canvas.getContext("2d").getImageData(0, 30, canvas.width, 1).data;
          const at = (x) => pixels.slice(4 * x, 4 * x + 3).join();
          const columns = [...Array(canvas.width).keys()].filter((x) => at(x) !== at(0));
          return columns.map((x) => x / canvas.width);
        })()"""
    )
    assert coloured
    assert all(abs(place - 517.5 / 1024) < 0.005 for place in coloured)


@pytest.mark.parametrize("view", [*VIEWS, "/compare", "/compare?a=llama&b=b", "/jobs/llama/ranks/3"])
def test_no_screen_needs_sideways_scrolling(view: str, tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    for width in (320, 390, 1280, 2560):
        tab.look(width, 844)
        tab.open(stand_in.url + view, "document.querySelector('main h1')")
        assert tab.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("view", [*VIEWS, "/jobs/llama/ranks/3"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_that_is_read_moves_while_a_page_loads_and_updates(
    view: str, width: int, tab: Tab, stand_in: StandIn
) -> None:
    everything(stand_in)
    tab.look(width)
    tab.before_each_page(SHIFTS)
    tab.open(stand_in.url + view, "document.querySelector('main h1')")
    tab.wait("document.getElementById('updated').dataset.how === 'live'")
    rounds = len(stand_in.asked)
    stand_in.live.notify()
    while len(stand_in.asked) == rounds:
        stand_in.live.notify()
    tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    # From 0.1 on, Lighthouse no longer calls it good.
    assert tab.run("shifts") < 0.1


# For everybody

LOW_CONTRAST = """(() => {
  const rgba = (text) => {
    const numbers = text.match(/-?[0-9.]+(e-?[0-9]+)?/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return [...numbers.slice(0, 3).map((part) => part * scale), numbers[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const paper = (element) => {
    if (!element) return [255, 255, 255, 1];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own : over(own, paper(element.parentElement));
  };
  const light = (colour) => {
    const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = colour.map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    const text = own.map((node) => node.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest("noscript, .skip")) continue;
    const [ink, ground] = [rgba(getComputedStyle(element).color), paper(element)];
    const [bright, dim] = [light(over(ink, ground)), light(ground)].sort((a, b) => b - a);
    const ratio = (bright + 0.05) / (dim + 0.05);
    if (ratio < 4.5) low.push(`${element.className}: ${text.slice(0, 40)} ${ratio.toFixed(2)}`);
  }
  return low;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_all_text_stands_out_from_its_ground(view: str, dark: bool, tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    tab.look(dark=dark, calm=True)
    tab.open(stand_in.url + view, "document.querySelector('main h1')")

    # WCAG 2.2, 1.4.3: 4.5 to 1.
    assert tab.run(LOW_CONTRAST) == []


@pytest.mark.parametrize("view", VIEWS)
def test_everything_that_can_be_used_has_a_name(view: str, tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    tab.open(stand_in.url + view, "document.querySelector('main h1')")
    names = tab.names()

    used = {"button", "link", "image", "img", "searchbox", "region", "table", "dialog", "navigation"} - {
        "table"
    }
    assert [role for role, name in names if role in used and not name] == []
    assert {"main", "banner", "navigation"} <= {role for role, _ in names}


def test_who_wants_little_motion_gets_none(tab: Tab, stand_in: StandIn) -> None:
    durations = []
    for calm in (False, True):
        tab.look(calm=calm)
        tab.open(f"{stand_in.url}/", "document.querySelector('#empty')")
        durations.append(tab.run("getComputedStyle(document.querySelector('main > *')).transitionDuration"))

    assert durations == ["0.2s", "0s"]


def test_the_focus_goes_from_the_top_to_the_bottom(tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    tab.open(f"{stand_in.url}/", FLEET)
    order = []
    for _ in range(13):
        tab.press("Tab")
        focused = "document.activeElement.matches('select') ? '' : document.activeElement.innerText"
        order.append(tab.run(f"({focused}) || document.activeElement.id"))

    assert order == [
        *(
            "Skip to content",
            "perfd",
            "Jobs",
            "Serving",
            "Nodes",
            "Agents",
            "Alerts",
            "Compare",
            "theme",
            "?",
        ),
        *("2 firing alerts", "0 of 0 agents connected", "search"),
    ]


def test_keys_open_the_list_of_keys_and_walk_through_jobs(tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    tab.open(f"{stand_in.url}/", FLEET)
    tab.press("?")
    assert tab.run("document.getElementById('keys').open")
    assert "serving engines" in tab.text("#keys")
    tab.press("Escape")
    tab.wait("!document.getElementById('keys').open")

    tab.press("j")
    first = tab.run("document.activeElement.innerText")
    tab.press("j")
    tab.press("k")
    assert tab.run("document.activeElement.innerText") == first == "llama"
    tab.press("Enter")
    tab.wait("location.pathname === '/jobs/llama' && document.getElementById('headline')")
    tab.press("c")
    tab.wait("location.pathname === '/jobs/llama/captures' && document.querySelector('article')")
    tab.press("s")
    tab.wait("location.pathname === '/servers' && document.querySelector('article')")


def test_a_job_of_which_little_is_known_says_why_and_claims_nothing(tab: Tab, stand_in: StandIn) -> None:
    unknown = {"kind": "unknown", "confidence": 0.0, "culprits": [], "evidence": ["No timers."]}
    job = job_entry("llama", efficiency={"model_flops_per_s_per_gpu": 3e14}, bottleneck=unknown)
    stand_in.answers["jobs"] = {"jobs": [job]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.getElementById('headline')")

    assert "peak of this GPU unknown" in tab.text("#not-measured")
    assert "Pipeline stall" not in tab.text("main")
    edge = "getComputedStyle(document.querySelector('.verdict')).borderLeftColor"
    assert tab.run(edge) == tab.run("getComputedStyle(document.querySelector('dd.quiet')).color")

    stand_in.answers["jobs"] = {"jobs": [{**job, "parallel": {"pp": 4}}]}
    stand_in.live.notify()
    tab.wait(
        "document.getElementById('not-measured').innerText.includes('Pipeline stall (no timers of stages')"
    )


def test_ranks_of_a_capture_that_ended_alike_are_one_line(tab: Tab, stand_in: StandIn) -> None:
    file = {"path": "/captures/c1/rank-0.nsys-rep", "size_bytes": 5, "removed": None}
    alike = [rank_entry(rank, "refused", reason="No nsys.") for rank in range(2, 1024)]
    ranks = [rank_entry(0, "done", files=[file]), rank_entry(1, "done", files=[file]), *alike]
    stand_in.answers["captures"] = {"captures": [capture_entry("c1", state="refused", ranks=ranks)]}
    tab.open(f"{stand_in.url}/jobs/llama/captures/c1", "document.querySelector('#ranks')")

    assert [line for line in tab.text("#ranks").splitlines() if line] == [
        *["rank 0 on n done", "/captures/c1/rank-0.nsys-rep 5 B"],
        *["rank 1 on n done", "/captures/c1/rank-0.nsys-rep 5 B"],
        *[f"ranks {', '.join(map(str, range(2, 10)))} and 1014 more on n refused", "No nsys."],
    ]
    tab.open(f"{stand_in.url}/jobs/llama/captures", "document.querySelector('article')")
    assert "2 ranks done, 1,022 ranks refused" in tab.text("article")


def test_the_focus_stays_where_it_is_when_newer_numbers_come(tab: Tab, stand_in: StandIn) -> None:
    fleet_of(stand_in, fleet_row("llama", step=1), fleet_row("b"))
    tab.open(f"{stand_in.url}/", FLEET)
    tab.wait(LIVE)
    tab.run("document.getElementById('job-llama').focus()")
    fleet_of(stand_in, fleet_row("llama", step=2), fleet_row("b"))
    stand_in.live.notify()
    tab.wait("document.querySelector('#jobs').innerText.includes('2 of 1000')")

    assert tab.run("document.activeElement.id") == "job-llama"


# Serving


def test_servers_are_shown_beside_theory(tab: Tab, stand_in: StandIn) -> None:
    knob = {"name": "PerfdServerQueue", "summary": "12 requests wait", "advice": "Admit more."}
    stand_in.answers["servers"] = {"servers": [server_entry("h:1", findings=[knob])]}
    tab.open(f"{stand_in.url}/servers", "document.querySelector('article')")
    shown = tab.text("article")

    assert "sglang 0.5.9 · meta-llama/Llama-3.3-70B-Instruct · tp 8" in shown
    assert "TPOT p50 is 12.0 ms, 0.99 times the floor of its batch (12.1 ms)" in shown
    for text in ("p50", "12.0 ms", "p90", "19.0 ms", "p99", "45.0 ms", "310.0 ms", "720.0 ms", "1400.0 ms"):
        assert text in shown
    assert "Theory: 12.1 ms floor at the current batch, 5.2 ms floor of a single request." in shown
    assert "Theory: 71.0 ms floor for a prompt of mean length." in shown
    assert "12 requests wait. Admit more." in shown


def test_servers_are_found_by_engine_and_model(tab: Tab, stand_in: StandIn) -> None:
    unsaid = {"engine": None, "version": None, "model": None, "role": None}
    stand_in.answers["servers"] = {
        "servers": [
            server_entry("h:1"),
            server_entry("h:2", engine="vllm", version="0.11.0", model="Qwen/Qwen3-32B", role="decode"),
            server_entry("h:3", **unsaid, parallel=dict.fromkeys(("tp", "pp", "dp"))),
        ]
    }
    tab.open(f"{stand_in.url}/servers", "document.querySelectorAll('article').length === 3")
    shown = tab.text("main")

    assert "vllm 0.11.0 · Qwen/Qwen3-32B · decode · tp 8" in shown
    assert "null" not in shown
    assert "undefined" not in shown


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"up": False}, "No metrics from this server."),
        ({"theory": None}, "Theory unknown"),
        ({"tpot_s": {"p50": 0.03}}, "kernels and links do not explain it"),
        ({"tpot_s": {"p50": None}}, "No tokens decoded in the newest window."),
        ({"silent_s": 60.0}, "No data from its agent for 60.0 s."),
    ],
)
def test_a_server_says_what_is_the_matter_with_it(
    changes: dict[str, Any], said: str, tab: Tab, stand_in: StandIn
) -> None:
    stand_in.answers["servers"] = {"servers": [server_entry("h:1", **changes)]}
    tab.open(f"{stand_in.url}/servers", "document.querySelector('article')")

    assert said in tab.text("article")


def test_the_browser_reports_what_a_policy_refuses(browser: Browser, stand_in: StandIn) -> None:
    # The other tests rely on it.
    tab = browser.tab()
    tab.open(f"{stand_in.url}/", "document.querySelector('#empty')")
    tab.run("void (document.body.append(new Image()), (document.images[0].src = 'http://127.0.0.1:9/x'))")
    while not browser.problems:
        tab.run("1")
    tab.close()

    assert "Content Security Policy" in browser.problems[0]
