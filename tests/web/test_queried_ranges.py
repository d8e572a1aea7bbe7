"""Charts of ranges that only a Prometheus has: a real server, and one that is away."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from analysis.jobs import step_table
from history.support import SqliteLocation, write

from perfd.aggregator.aggregator import Aggregator
from perfd.aggregator.history.history_rows import job_rows
from perfd.aggregator.prometheus_charts import AskedRange, ChartQueries, TimeRange
from perfd.aggregator.prometheus_charts.chart_expressions import (
    gpus_of,
    progress_expression,
    progress_of,
    with_earlier,
)
from perfd.aggregator.prometheus_charts.chart_queries import missing_range
from perfd.aggregator.prometheus_charts.prometheus_ranges import PrometheusRanges, QueriedSeries
from perfd.clock import VirtualClock
from perfd.config import AggregatorConfig, HistoryConfig, HttpClientConfig, RulesConfig
from perfd.errors import ConfigError, PerfdError
from perfd.metrics.series import SeriesKey
from perfd.model import JobOrigin, TrainingStep
from tests.support.chromium import Tab
from tests.support.fake_agent import FakeAgent
from tests.support.pki import Authority
from tests.support.prometheus import PrometheusServer, prometheus_server

JOB = {"perfd_job": 'llm "7b"\\ö', "cluster": "c1", "user": "somebody"}
START, MINUTE = 1_790_000_000 // 60 * 60, 60


def series(name: str, values: list[float], times: list[float] | None = None, **labels: str) -> QueriedSeries:
    return QueriedSeries(
        {"__name__": name, **labels}, times or [60.0 * i for i in range(len(values))], values
    )


def test_a_job_is_found_by_what_identifies_it() -> None:
    assert progress_expression({"perfd_job": "a", "cluster": "", "user": "u"}) == (
        'max by (__name__) ({__name__=~"perfd_loss|perfd_mfu_ratio|perfd_step|perfd_step_time_seconds",'
        ' perfd_job="a"})'
    )


def test_instants_without_a_new_step_are_left_out() -> None:
    found = progress_of(
        [
            series("perfd_step", [10, 20, 20, 15, 30]),
            series("perfd_loss", [3.0, math.nan, 2.5, 2.0, 1.0]),
            series("perfd_step_time_seconds", [0.5], times=[240.0]),
            series("perfd_else", [1.0]),
        ]
    )

    # Step 15 came again after a restart.
    assert (found["step"], found["time_unix_s"]) == ([10, 15, 30], [0.0, 180.0, 240.0])
    assert (found["loss"], found["step_time_s"]) == ([3.0, 2.0, 1.0], [None, None, 0.5])


def test_earlier_points_come_before_those_that_are_known() -> None:
    earlier = progress_of([series("perfd_step", [10, 20, 30, 40])])
    columns = {
        "step": [30, 31], "time_unix_s": [110.0, 120.0], "loss": [1.0, 0.9],
        "phases_s": {"forward": [0.1, 0.1]}, "steady": [True, False],
    }  # fmt: skip

    found = with_earlier(earlier, columns, (11.0, 100.0))

    assert found["step"] == [20, 30, 31]
    assert found["phases_s"] == {"forward": [None, 0.1, 0.1]}
    assert found["loss"] == [None, 1.0, 0.9]
    assert found["steady"] == [True, True, False]
    assert with_earlier(earlier, {"step": [], "time_unix_s": []}, None)["step"] == [10, 20, 30, 40]


def test_gpus_without_all_statistics_are_left_out() -> None:
    assert gpus_of([series("perfd_gpu_power_watts", [1.0], statistic="median")], []) == {
        "time_unix_s": [0.0], "gpus": 0, "metrics": {},
    }  # fmt: skip


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://prometheus", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"history\.query_url"):
        ChartQueries(HistoryConfig(query_url=url), VirtualClock())


class Answers(BaseHTTPRequestHandler):
    """Answers with what its server holds, and remembers what was asked."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        server.asked.append((self.path, body, self.headers.get("Authorization")))
        status, answer = server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.asked, server.answer = [], (200, b'{"data": {"resultType": "matrix", "result": []}}')
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ranges(
    server: Any, clock: VirtualClock | None = None, scheme: str = "http", **http: Any
) -> PrometheusRanges:
    url = f"{scheme}://127.0.0.1:{server.server_address[1]}/prometheus/"
    return PrometheusRanges(
        HistoryConfig(query_url=url, query_http=HttpClientConfig(**http)), clock or VirtualClock()
    )


def test_a_range_is_asked_for_once_until_its_next_instant(answering: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    queries = ranges(answering, bearer_token_file=str(token))

    for moved in (0.0, 10.0, 59.0, 60.0):
        queries.range("x", TimeRange(1.0 + moved, 7140.0 + moved, 121))
    queries.close()

    assert [asked[1] for asked in answering.asked] == [
        "query=x&start=60.000&end=7140.000&step=60.0",
        "query=x&start=120.000&end=7200.000&step=60.0",
    ]
    assert {asked[0] for asked in answering.asked} == {"/prometheus/api/v1/query_range"}
    assert {asked[2] for asked in answering.asked} == {"Bearer abc"}


def test_over_tls_the_server_must_have_a_certificate_that_is_trusted(answering: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("server", names="IP:127.0.0.1")
    files = authority.tls("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    answering.socket = context.wrap_socket(answering.socket, server_side=True)

    assert ranges(answering, scheme="https", ca=files.ca).range("x", TimeRange(0.0, 600.0, 10)) == []
    with pytest.raises(PerfdError, match="certificate"):
        ranges(answering, scheme="https").range("x", TimeRange(0.0, 600.0, 10))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, b"broken"), "answered with status 500: broken"),
        ((200, b"<html>"), "did not answer with series"),
        (
            (200, b'{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"]}]}}'),
            "series",
        ),
        (
            (200, b'{"data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "x"]]}]}}'),
            "with series",
        ),
    ],
)
def test_what_is_wrong_with_a_server_is_said_and_it_is_left_alone_for_a_while(
    answering: Any, answer: tuple[int, bytes], said: str
) -> None:
    clock = VirtualClock()
    queries = ranges(answering, clock)
    good, answering.answer = answering.answer, answer

    for _ in range(3):
        with pytest.raises(PerfdError, match=said):
            queries.range("x", TimeRange(0.0, 600.0, 10))
    assert len(answering.asked) == 1
    clock.advance(30.0)
    answering.answer = good
    assert queries.range("x", TimeRange(0.0, 600.0, 10)) == []


def test_a_series_without_values_is_none(answering: Any) -> None:
    answering.answer = (200, b'{"data": {"resultType": "matrix", "result": [{"metric": {}, "values": []}]}}')

    assert ranges(answering).range("x", TimeRange(0.0, 600.0, 10)) == []


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    if shutil.which("prometheus") is None and not os.environ.get("CI"):
        pytest.skip("needs the Debian package `prometheus`")
    with prometheus_server(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="module")
def running(prometheus: PrometheusServer) -> Iterator[str]:
    """The address of an aggregator with the newest 5 minutes of a job, of which Prometheus has 3 hours."""
    times = [START + MINUTE * i for i in range(180)]
    written = {
        SeriesKey.of(name, {**JOB, "instance": instance}): [
            (at * 1000, value(i)) for i, at in enumerate(times)
        ]
        for instance in ("a", "b")
        for name, value in (
            ("perfd_step", lambda i: 10.0 * i),
            ("perfd_step_time_seconds", lambda i: 5.0 + i / 100),
            ("perfd_mfu_ratio", lambda i: 0.4 - i / 1000),
            ("perfd_loss", lambda i: 10.0 / (1 + i)),
        )
    }
    for gpu in range(4):
        labels = {**JOB, "node": "n0", "gpu": str(gpu), "rank": str(gpu)}
        for name, value in (
            ("perfd_gpu_power_watts", 600.0 + 10 * gpu),
            ("perfd_gpu_memory_used_bytes", 20e9 * (gpu + 1)),
            ("perfd_gpu_memory_total_bytes", 100e9),
        ):
            written[SeriesKey.of(name, labels)] = [(at * 1000, value) for at in times]
    prometheus.write(written)
    clock = VirtualClock(round((START + MINUTE * 180) * 1e9))
    config = AggregatorConfig(
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        rules=RulesConfig(builtin=False),
        history=HistoryConfig(query_url=f"http://127.0.0.1:{prometheus.port}"),
    )
    aggregator = Aggregator(config, clock, manual=True)
    aggregator.start()
    try:
        with FakeAgent(aggregator.grpc_address) as agent:
            agent.hello()
            records = [
                JobOrigin(job=JOB["perfd_job"], cluster="c1"),
                *(
                    TrainingStep(
                        job=JOB["perfd_job"],
                        step=1750 + i,
                        step_time_s=6.0,
                        time_unix_ns=round((START + MINUTE * 175 + 6 * i) * 1e9),
                    )
                    for i in range(50)
                ),
            ]
            agent.send(*records, sent_unix_ns=clock.unix_ns())
            aggregator.tick()
            yield f"http://{aggregator.http_address}"
    finally:
        aggregator.stop()


def api(url: str, path: str, **query: Any) -> Any:
    address = f"{url}/api/v1/jobs/{quote(JOB['perfd_job'], safe='')}/{path}?{urlencode(query)}"
    with urllib.request.urlopen(address, timeout=20) as answer:
        return json.load(answer)


@pytest.mark.system
def test_steps_before_those_in_memory_are_those_that_prometheus_has(running: str) -> None:
    memory = api(running, "series")
    assert memory["step"][0] == 1750
    assert "queried_problem" not in memory

    found = api(running, "series", seconds=2 * 3600, points=400)

    assert found["queried_problem"] is None
    earlier = len(found["step"]) - 50
    assert found["step"][earlier:] == memory["step"]
    assert found["step_time_s"][earlier:] == memory["step_time_s"]
    assert found["time_unix_s"] == sorted(found["time_unix_s"])
    assert found["time_unix_s"][0] == pytest.approx(memory["time_unix_s"][-1] - 2 * 3600, abs=MINUTE)
    for step, at, time_s, mfu, loss in zip(
        *(found[name][:earlier] for name in ("step", "time_unix_s", "step_time_s", "mfu_ratio", "loss")),
        strict=True,
    ):
        i = step // 10
        assert 0 <= at - (START + MINUTE * i) < MINUTE
        assert (time_s, mfu, loss) == pytest.approx((5.0 + i / 100, 0.4 - i / 1000, 10.0 / (1 + i)))
    assert len(api(running, "series", seconds=2 * 3600, points=20)["step"]) <= 20
    whole = api(running, "series", **{"from": 0, "points": 600})
    assert whole["step"][:2] == [0, 10]
    # At least every second minute: it begins with the job's first hour, not months before.
    assert len(whole["step"]) >= 50 + 175 // 2
    some = api(running, "series", **{"from": 500, "to": 600})
    assert set(some["step"]) <= set(range(500, 610, 10))
    assert len(some["step"]) >= 5


@pytest.mark.system
def test_gpus_over_hours_are_those_that_prometheus_has(running: str) -> None:
    assert api(running, "gpu_series")["gpus"] == 0

    found = api(running, "gpu_series", seconds=2 * 3600, rank=3)

    assert found["gpus"] == 4
    span = found["time_unix_s"][-1] - found["time_unix_s"][0]
    assert span == pytest.approx(2 * 3600, abs=6 * MINUTE)
    power, memory = found["metrics"]["power_w"], found["metrics"]["memory_used_ratio"]
    assert {name: set(values) for name, values in power.items()} == {
        "median": {615.0}, "lowest": {600.0}, "highest": {630.0}, "rank": {630.0},
    }  # fmt: skip
    assert (memory["median"][0], memory["rank"][0]) == pytest.approx((0.5, 0.8))


@pytest.mark.system
def test_the_page_shows_the_range_that_was_picked(running: str, tab: Tab) -> None:
    address = f"{running}/jobs/{quote(JOB['perfd_job'], safe='')}?range=21600"
    tab.open(address, "document.querySelector('#gpu-power_w output')?.innerText")

    assert "GPUs, last 175.0 min" in tab.text("[data-section=gpu-charts] h2")
    assert "4 GPUs" in tab.text("[data-section=gpu-charts] h2")
    tab.run("document.getElementById('time-chart').scrollIntoView()")
    tab.wait("document.querySelector('#time-chart output').innerText === 'step 1799: 6000.0 ms'")
    tab.run("document.getElementById('time-chart-drawing').focus()")
    assert tab.count("#queried-problem") == 0


def test_a_server_that_is_away_leaves_what_is_known_and_says_so() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        queries = ChartQueries(HistoryConfig(query_url=url), VirtualClock())
        known = step_table([1.0] * 10, step=np.arange(500, 510))
        found = queries.progress(lambda points: {"points": points}, known, JOB, AskedRange(100, (0, 600)))
        assert found["points"] == 50
        assert "did not answer" in found["queried_problem"]
        with pytest.raises(PerfdError, match="did not answer"):
            queries.gpus(JOB, TimeRange(START, START + 600.0, 100), None)


def test_the_gpus_of_a_stored_job_are_those_until_it_sent_no_more(answering: Any, tmp_path: Path) -> None:
    stored = SqliteLocation(tmp_path)
    url = f"http://127.0.0.1:{answering.server_address[1]}"
    history = HistoryConfig(path=stored.config.path, query_url=url)
    store = stored.store()
    write(store, *job_rows("old", 1, None, START))
    store.close()
    config = AggregatorConfig(
        listen="127.0.0.1:0", http_listen="127.0.0.1:0", rules=RulesConfig(builtin=False), history=history
    )
    aggregator = Aggregator(config, VirtualClock((START + 86_400 * 5) * 10**9), manual=True)
    try:
        assert aggregator.gpu_series("old", 11, None, 600.0) is not None
        assert aggregator.gpu_series("other", 11, None, 600.0) is None
    finally:
        aggregator.stop()

    assert {body.partition("start=")[2] for _, body, _ in answering.asked} == {
        f"{START - 600:.3f}&end={START:.3f}&step=60.0"
    }


@pytest.mark.parametrize(
    ("asked", "since_s"),
    [
        (AskedRange(100), None),
        (AskedRange(100, newest_s=9.0), None),
        (AskedRange(100, newest_s=3600.0), -3591.0),
        (AskedRange(100, within=(500, 600)), None),
        (AskedRange(100, within=(499, 600)), -math.inf),
    ],
)
def test_only_what_is_not_known_is_asked_for(asked: AskedRange, since_s: float | None) -> None:
    known = step_table([1.0] * 10, step=np.arange(500, 510))
    first_s = float(known.time_unix_s[0])

    found = missing_range(known, asked)

    assert (found and found.start_unix_s - first_s) == since_s
    assert missing_range(step_table([1.0] * 10), AskedRange(100, newest_s=1e6)) is None
    assert missing_range(step_table([]), asked) is None
