"""Links to other systems, as the configuration names them."""

from __future__ import annotations

import pytest

from tests.support.chromium import Tab
from tests.support.page_server import StandIn, everything, job_entry

pytestmark = pytest.mark.system

LINKS = {
    "job": {
        "Grafana": "https://g.org/d/j?var-job={job}&from={from}&to={to}",
        "By owner": "https://g.org/{owner}",
    },
    "rank": {"GPU": "https://g.org/{node}/{gpu}?r={rank}&j={job}"},
    "node": {"Machine": "https://cmdb.org/{node}"},
    "log": {"Loki": "https://g.org/explore?r={rank}&from={from}&to={to}"},
}


def hrefs(tab: Tab, within: str) -> dict[str, str]:
    """Addresses of the links to other hosts, by their text."""
    found = tab.run(
        f"[...document.querySelectorAll('{within} a.outside')].map((one) => [one.innerText, one.href])"
    )
    return dict(found)


def test_links_are_filled_with_what_is_known_and_others_are_left_out(tab: Tab, stand_in: StandIn) -> None:
    everything(stand_in)
    trouble = {"kind": "log_error", "message": "CUDA error", "count": 1, "ranks": [3], "step": 7}
    times = {"first_unix_s": 1000.0, "last_unix_s": 1010.5}
    job = job_entry("a b/ü&x", ranks=8, started_unix_s=100.25, troubles=[trouble | times])
    stand_in.answers |= {"links": {"links": LINKS}, "jobs": {"jobs": [job]}}
    tab.open(f"{stand_in.url}/jobs/a%20b%2F%C3%BC%26x", "document.querySelector('#troubles')")

    # There is no owner.
    assert hrefs(tab, ".title") == {
        "Grafana": "https://g.org/d/j?var-job=a%20b%2F%C3%BC%26x&from=100250&to=now"
    }
    assert hrefs(tab, "#troubles") == {"Loki": "https://g.org/explore?r=3&from=940000&to=1070500"}

    over = job_entry("llama", started_unix_s=1.0, ended=True, ended_unix_s=2.0, owner="ada", silent_s=0.0)
    stand_in.answers["jobs"] = {"jobs": [over]}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('.title .outside')")
    assert hrefs(tab, ".title") == {
        "Grafana": "https://g.org/d/j?var-job=llama&from=1000&to=2000",
        "By owner": "https://g.org/ada",
    }

    tab.open(f"{stand_in.url}/jobs/llama/ranks/3", "document.querySelector('main h1')")
    assert hrefs(tab, "main") == {
        "GPU": "https://g.org/node0/3?r=3&j=llama",
        "Machine": "https://cmdb.org/node0",
    }
    for view in ("agents", "nodes"):
        tab.open(f"{stand_in.url}/{view}", f"document.querySelector('#{view}')")
        assert hrefs(tab, f"#{view}")["Machine"] in {"https://cmdb.org/n1", "https://cmdb.org/n2"}
        assert tab.count(f"#{view} a.outside") == 2


def test_a_job_has_a_link_to_its_run_of_wandb_without_configuration(tab: Tab, stand_in: StandIn) -> None:
    url = "https://wandb.ai/team/proj/runs/2v1"
    run = {"entity": "team", "project": "proj", "run_id": "2v1", "url": url}

    def shown(run: dict[str, str | None], links: dict[str, str]) -> dict[str, str]:
        job = job_entry("llama", wandb=run)
        stand_in.answers |= {"links": {"links": {"job": links}}, "jobs": {"jobs": [job]}}
        tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('#headline')")
        return hrefs(tab, ".title")

    assert shown(run, {}) == {"W&B run": url}
    assert shown(run | {"url": None}, {}) == {}
    assert shown(run | {"url": "javascript:alert(1)//wandb.ai"}, {}) == {}
    own = {"W&B": "https://w.org/{wandb_entity}/{wandb_project}/runs/{wandb_run}"}
    assert shown(run, own) == {"W&B": "https://w.org/team/proj/runs/2v1"}
    assert shown(run | {"entity": None}, own) == {}


def test_an_address_that_is_none_is_no_link(tab: Tab, stand_in: StandIn) -> None:
    # As of a saved page that somebody else wrote.
    links = {"job": {"Bad": "javascript:alert(1)", "Good": "https://g.org"}, "other": {"X": "https://x"}}
    stand_in.answers |= {"links": {"links": links}, "jobs": {"jobs": [job_entry("llama")]}}
    tab.open(f"{stand_in.url}/jobs/llama", "document.querySelector('.title .outside')")
    assert hrefs(tab, "main") == {"Good": "https://g.org/"}
