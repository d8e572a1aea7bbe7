"""What a real Prometheus pays to take in the same values, as a reference for one aggregator.

    python -m benchmarks.prometheus_scrape [--series 100000] [--seconds 20] [--json]

A page of perfd's own series is served on loopback and scraped each second; the figure is the CPU that the
prometheus process uses for each sample that it stored. Needs the program `prometheus`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from prometheus_client import CONTENT_TYPE_LATEST

from perfd.aggregator.series import MetricNames, PageRenderer
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.net import HttpServer, Request, Response
from tests.support.services import free_port

SCHEMA = "perfd.bench.prometheus_scrape/1"


def measure(series: int, seconds: float) -> dict[str, Any]:
    """CPU microseconds of Prometheus a sample, and what it stored."""
    keys = [
        SeriesKey.of("perfd_gpu_power_watts", {"node": f"node{i // 8:05d}", "gpu": str(i % 8)})
        for i in range(series)
    ]
    renderer = PageRenderer(MetricNames([]).describe)
    random = np.random.default_rng(1)

    def page(_: Request) -> Response:
        frame = SeriesFrame(0.0, keys, random.random(series))
        return Response(body=renderer.render(frame), content_type=CONTENT_TYPE_LATEST)

    server = HttpServer("127.0.0.1:0", {"/metrics": page})
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        process = _start(Path(folder), port, server.address)
        try:
            _wait_until_scraping(port, series)
            before, taken = psutil.Process(process.pid).cpu_times(), _samples(port)
            time.sleep(seconds)
            after, stored = psutil.Process(process.pid).cpu_times(), _samples(port) - taken
            cpu_s = after.user + after.system - before.user - before.system
            resident = psutil.Process(process.pid).memory_info().rss
        finally:
            process.terminate()
            process.wait()
            server.close()
    return {
        "schema": SCHEMA,
        "series": series,
        "samples": stored,
        "cpu_us_per_sample": cpu_s / stored * 1e6,
        "resident_bytes": resident,
    }


def _start(folder: Path, port: int, target: str) -> subprocess.Popen[bytes]:
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("There is no prometheus on PATH: apt-get install prometheus")
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        "scrape_configs:\n"
        f"  - {{job_name: perfd, scrape_interval: 1s, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    command = [program, f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"]
    return subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_until_scraping(port: int, series: int) -> None:
    for _ in range(120):
        time.sleep(0.5)
        # Two scrapes: the first one creates the series, which costs more than a sample of a known one.
        if _samples(port) >= 2 * series:
            return
    raise SystemExit("Prometheus did not scrape the page within a minute.")


def _samples(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return 0
    name = "prometheus_tsdb_head_samples_appended_total"
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args.series, args.seconds)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"Prometheus: {result['samples']:,} samples of {result['series']:,} series, "
        f"{result['cpu_us_per_sample']:.2f} us of CPU a sample, {result['resident_bytes'] / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
