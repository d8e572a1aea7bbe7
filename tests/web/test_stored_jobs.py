"""The page of a job that ended long ago, from history."""

from __future__ import annotations

from pathlib import Path

import pytest
from aggregator.support import START_S, aggregator, step
from exporters.support import until

from perfd.clock import VirtualClock
from perfd.config import HistoryConfig, PageLinksConfig
from perfd.model import Event, EventKind
from tests.support.chromium import Tab
from tests.support.fake_agent import FakeAgent

pytestmark = pytest.mark.system
START_MS = round(1000 * START_S)


def test_it_has_its_numbers_its_end_and_links_to_its_time(tab: Tab, tmp_path: Path) -> None:
    clock = VirtualClock(round(START_S * 1e9))
    with (
        aggregator(
            clock,
            history=HistoryConfig(path=str(tmp_path / "h.sqlite")),
            links=PageLinksConfig(job={"Grafana": "https://g.org/{job}?from={from}&to={to}"}),
            job_forgotten_after_s=60.0,
            http_listen="127.0.0.1:0",
        ) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        for name, code in (("old", 1.0), ("old-2", 0.0)):
            agent.send(*(step(at, job=name, time_s=at) for at in range(1, 20)), sent_unix_ns=clock.unix_ns())
            running.tick()
            end = Event(
                kind=EventKind.JOB_ENDED,
                time_unix_ns=clock.unix_ns(),
                message="",
                job=name,
                values={"exit_code": code},
            )
            agent.send(end, sent_unix_ns=clock.unix_ns())
            running.tick()
        clock.advance(61.0)
        running.tick()
        until(lambda: running.stored_summary("old") is not None)
        assert running.jobs() == []

        tab.open(f"http://{running.http_address}/jobs/old", "document.querySelector('.title .outside')")

        assert tab.text(".title").startswith("old ended: failed")
        assert "step 19" in tab.text(".title")
        assert tab.text("#step-time").endswith("ms")
        href = tab.run("document.querySelector('.title .outside').href")
        assert href == f"https://g.org/old?from={START_MS}&to={START_MS}"
