"""Remote write into real servers, with the samples counted on both sides."""

import os
import shutil
import time

import numpy as np
import pytest
from exporters.support import real_context, until

from perfd.config import RemoteWriteConfig
from perfd.exporters.exporter import Round
from perfd.exporters.remote_write.remote_write_exporter import RemoteWriteExporter
from perfd.metrics.series import SeriesFrame, SeriesKey
from tests.support.services import prometheus, victoria_metrics

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not all(map(shutil.which, ("prometheus", "victoria-metrics"))) and not os.environ.get("CI"),
        reason="needs the Debian packages `prometheus` and `victoria-metrics`",
    ),
]
KEYS = [
    SeriesKey.of(
        "perfd_gpu_power_watts", {"node": f"n{i // 8}", "gpu": str(i % 8), "perfd_job": 'a "job"\n\\ö'}
    )
    for i in range(500)
]
SERVERS = {
    "prometheus": lambda folder: prometheus(folder, "global: {}\n"),
    "victoria_metrics": victoria_metrics,
}
STORED = {
    "prometheus": "prometheus_tsdb_head_samples_appended_total",
    "victoria_metrics": 'vm_rows_inserted_total{type="promremotewrite"}',
}


@pytest.fixture(params=sorted(SERVERS))
def kind(request):
    return request.param


class Writer:
    """An aggregator's side: rounds of all series, each a second after the one before."""

    def __init__(self, url, **config):
        self.given = real_context()
        self.exporter = RemoteWriteExporter(
            RemoteWriteConfig(
                url=f"{url}/api/v1/write",
                interval_s=0.0,
                max_samples_per_request=300,
                external_labels={"cluster": "c1"},
                backoff_initial_s=0.05,
                backoff_max_s=0.1,
                **config,
            ),
            self.given,
        )
        # In the past, so that the rounds can follow each other at once.
        self.time_s = float(int(time.time()) - 120)

    def write(self, values):
        self.time_s += 1.0
        frames = {"nodes": SeriesFrame(self.time_s, KEYS, np.asarray(values, np.float64))}
        self.exporter.export(Round(time_unix_s=self.time_s, frames=frames))
        # Rounds of the past are taken to wait in line; the newest one is sent.
        self.exporter.export(Round(time_unix_s=time.time()))


def stored(server, kind):
    """How many samples the server says that it took."""
    name = STORED[kind]
    lines = [line for line in server.text("/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in lines)


def flush(server, kind):
    """Let queries see what was stored: VictoriaMetrics remembers for ten seconds that it found nothing."""
    if kind == "victoria_metrics":
        server.text("/internal/force_flush")


def instant(server, query, time_s):
    found = server.get("/api/v1/query", query=query, time=str(time_s))["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def test_as_many_samples_are_stored_as_were_sent(tmp_path, kind):
    with SERVERS[kind](tmp_path) as server:
        writer = Writer(server.url)
        for number in range(10):
            writer.write(np.arange(500.0) + number)
        writer.exporter.close()
        assert writer.given.tally.sent == 5000
        assert (writer.given.tally.lost, writer.given.tally.retries) == (0, 0)
        until(lambda: stored(server, kind) == 5000)
        flush(server, kind)
        end_s = writer.time_s
        count = 'sum(count_over_time(perfd_gpu_power_watts{cluster="c1"}[1h]))'
        assert until(lambda: instant(server, count, end_s) == 5000)
        total = sum(range(500)) + 500 * 9
        assert instant(server, 'sum(perfd_gpu_power_watts{perfd_job="a \\"job\\"\\n\\\\ö"})', end_s) == total


def test_a_series_that_ended_is_gone_at_once_and_not_in_five_minutes(tmp_path, kind):
    with SERVERS[kind](tmp_path) as server:
        writer = Writer(server.url)
        writer.write(np.ones(500))
        writer.write([1.0] * 200 + [np.nan] * 300)
        writer.exporter.close()
        assert writer.given.tally.sent == 500 + 200 + 300
        until(lambda: stored(server, kind) == 1000)
        flush(server, kind)
        assert until(lambda: instant(server, "count(perfd_gpu_power_watts)", writer.time_s - 1.0) == 500)
        assert until(lambda: instant(server, "count(perfd_gpu_power_watts)", writer.time_s) == 200)


def test_nothing_is_lost_while_the_server_is_dead(tmp_path, kind):
    with SERVERS[kind](tmp_path) as server:
        writer = Writer(server.url)
        writer.write(np.ones(500))
        server.stop()
        for _ in range(5):
            writer.write(np.ones(500))
        assert writer.given.tally.retries > 0
        assert writer.given.tally.pending == 2500
        server.start()
        before = stored(server, kind)

        def emptied():
            writer.exporter.export(Round(time_unix_s=time.time()))
            return writer.given.tally.pending == 0

        until(emptied)
        writer.exporter.close()
        assert (writer.given.tally.sent, writer.given.tally.lost) == (3000, 0)
        until(lambda: stored(server, kind) - before == 2500)
        count = "sum(count_over_time(perfd_gpu_power_watts[1h]))"
        assert until(lambda: instant(server, count, writer.time_s) == 3000)


def test_samples_that_the_server_refuses_are_counted_as_lost(tmp_path):
    with SERVERS["prometheus"](tmp_path) as server:
        writer = Writer(server.url)
        writer.write(np.ones(500))
        late = Writer(server.url)
        late.time_s = writer.time_s - 10.0
        late.write(np.ones(500))
        assert (late.given.tally.sent, late.given.tally.lost, late.given.tally.retries) == (0, 500, 0)
        assert stored(server, "prometheus") == 500
        writer.exporter.close()
        late.exporter.close()
