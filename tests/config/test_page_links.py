"""Links to other systems: what is refused, and why."""

from __future__ import annotations

import pytest

from perfd.config import PageLinksConfig, check_page_links
from perfd.errors import ConfigError

GRAFANA = "https://grafana.example.org/d/perfd-job?var-job={job}&from={from}&to={to}"


def test_urls_with_what_is_known_at_their_place_are_accepted() -> None:
    check_page_links(PageLinksConfig())
    check_page_links(
        PageLinksConfig(
            job={"Grafana": GRAFANA, "W&B": "http://127.0.0.1:8080/{owner}/{title}#%7Bx%7D"},
            rank={"Node": "https://grafana/d/node?host={node}&gpu={gpu}&rank={rank}"},
            node={"Rack": "https://cmdb/{node}"},
            log={"Loki": "https://grafana/explore?from={from}&rank={rank}"},
        )
    )


@pytest.mark.parametrize(
    ("place", "url", "refused"),
    [
        ("job", "grafana/{job}", "it must be an http or https URL"),
        ("job", "javascript:alert(1)", "it must be an http or https URL"),
        ("job", "file:///etc/{job}", "it must be an http or https URL"),
        ("job", "https://{job}/x", "without placeholders in its host"),
        ("job", "https://a.{job}.org/x", "without placeholders in its host"),
        ("job", "https://{owner}@a.org/x", "without placeholders in its host"),
        ("job", "{job}", "it must be an http or https URL"),
        ("job", "https://a.org/a b", "it must be an http or https URL"),
        ("job", "https://a.org/é", "it must be an http or https URL"),
        ("job", "https://a.org/{job", "write braces"),
        ("job", 'https://a.org/?q={"a":1}', "write braces"),
        ("job", "https://a.org/{node}", r"\{node\} is not known here; there are cluster, from, job"),
        ("job", "https://a.org/{}", r"\{\} is not known here"),
        ("node", "https://a.org/{job}", r"\{job\} is not known here; there are node\.$"),
        ("log", "https://a.org/{gpu}", r"\{gpu\} is not known here"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(place: str, url: str, refused: str) -> None:
    with pytest.raises(ConfigError, match=rf"^links\.{place}\.X: .*{refused}"):
        check_page_links(PageLinksConfig(**{place: {"X": url}}))
