"""How long it takes from a value to the webhook of an alert about it, through real servers.

    python -m benchmarks.alert_path [--trials 30] [--interval 0.25] [--json]

A number in a /proc made for the purpose changes. A `perfd agent` reads it, a `perfd aggregator` makes it a
series, and a rule without `for` fires: evaluated once by a real Prometheus that scrapes the aggregator, and
once by the embedded engine. A real Alertmanager hears of the alert and sends its webhook to us. All intervals
on the way are the same: collector, batch, round, scrape, evaluation. Needs the programs `prometheus` and
`prometheus-alertmanager`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from perfd.net import HttpServer, Request, Response
from tests.support.fake_node import FakeNode
from tests.support.services import Service, alertmanager, free_port, prometheus

SCHEMA = "perfd.bench.alert_path/1"
_PERFD = Path(sys.executable).with_name("perfd")
_WITHIN_S = 60.0
_RULE = """
groups:
  - name: alert-path
    rules:
      # Each value is an alert of its own, as one about another rank or job would be.
      - alert: Value
        expr: perfd_node_load_1min_processes > 10
        labels: {value: "{{ $value }}"}
"""
_ALERTMANAGER = """
route:
  receiver: here
  group_by: ["..."]
  group_wait: 0s
  group_interval: 1s
receivers:
  - name: here
    webhook_configs: [{{url: "{url}", send_resolved: false}}]
"""


class Arrivals:
    """Takes webhooks and notes when each value's first one came."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self._times: dict[int, float] = {}
        self._server = HttpServer("127.0.0.1:0", {"/webhook": self._take})
        self.url = f"http://{self._server.address}/webhook"

    def wait(self, value: int) -> float:
        """When the alert about a value came."""
        with self._came:
            if not self._came.wait_for(lambda: value in self._times, _WITHIN_S):
                raise SystemExit(f"No alert about the value {value} came within {_WITHIN_S:.0f} s.")
            return self._times[value]

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _take(self, request: Request) -> Response:
        now_s = time.monotonic()
        with self._came:
            for alert in json.loads(request.body)["alerts"]:
                self._times.setdefault(int(float(alert["labels"]["value"])), now_s)
            self._came.notify_all()
        return Response(body=b"")


def measure(engine: str, trials: int, interval_s: float) -> dict[str, Any]:
    """The times from value to webhook, with the rule evaluated by `prometheus` or `embedded`."""
    arrivals = Arrivals()
    try:
        with (
            tempfile.TemporaryDirectory() as name,
            _running(engine, Path(name), interval_s, arrivals) as node,
        ):
            _set(node, 11)
            arrivals.wait(11)
            times_s = list(_trials(node, arrivals, trials))
    finally:
        arrivals.close()
    return {
        "engine": engine,
        "interval_s": interval_s,
        "trials": len(times_s),
        "median_s": statistics.median(times_s),
        "p95_s": statistics.quantiles(times_s, n=20)[-1],
        "min_s": min(times_s),
        "max_s": max(times_s),
    }


def _trials(node: FakeNode, arrivals: Arrivals, trials: int) -> Iterator[float]:
    for value in range(12, 12 + trials):
        # At any phase of the intervals, which would otherwise march in step with us.
        time.sleep(random.uniform(0.5, 1.5))
        changed_s = time.monotonic()
        _set(node, value)
        yield arrivals.wait(value) - changed_s


def _set(node: FakeNode, value: int) -> None:
    path = node.proc / "loadavg"
    new = path.with_suffix(".new")
    new.write_text(f"{value}.00 0.75 0.25 3/400 4242\n", encoding="ascii")
    new.rename(path)


@contextmanager
def _running(engine: str, folder: Path, interval_s: float, arrivals: Arrivals) -> Iterator[FakeNode]:
    node = FakeNode(folder)
    (folder / "rules.yaml").write_text(_RULE, encoding="utf-8")
    with ExitStack() as stack:
        alerts = stack.enter_context(alertmanager(folder, _ALERTMANAGER.format(url=arrivals.url)))
        grpc = f"127.0.0.1:{free_port()}"
        embedded = engine == "embedded"
        aggregator = stack.enter_context(
            _role(
                "aggregator",
                folder,
                {
                    "listen": grpc,
                    "round_interval_s": interval_s,
                    "rules": {
                        "builtin": embedded,
                        "files": [str(folder / "rules.yaml")] if embedded else [],
                        "interval_s": interval_s,
                    },
                    "exporters": {"alertmanager": {"urls": [alerts.url] if embedded else []}},
                },
                address_key="http_listen",
                ready="/api/v1/readyz",
            )
        )
        stack.enter_context(
            _role(
                "agent",
                folder,
                {
                    "node": "n1",
                    "proc": str(node.proc),
                    "sys": str(node.sys),
                    "uplink": {"address": grpc, "batch_interval_s": interval_s},
                    "spool": {"directory": str(folder / "spool")},
                    "collectors": {"host": {"interval_s": interval_s}},
                },
                address_key="listen",
                ready="/metrics",
            )
        )
        if not embedded:
            stack.enter_context(prometheus(folder, _scraping(aggregator, alerts, interval_s)))
        yield node


def _role(name: str, folder: Path, config: dict[str, Any], *, address_key: str, ready: str) -> Service:
    def command(port: int) -> list[str | Path]:
        path = folder / f"{name}.yaml"
        # JSON is YAML.
        path.write_text(json.dumps({**config, address_key: f"127.0.0.1:{port}"}), encoding="utf-8")
        return [_PERFD, name, "--config", path]

    return Service(command, ready=ready, folder=folder)


def _scraping(aggregator: Service, alerts: Service, interval_s: float) -> str:
    interval = f"{round(interval_s * 1000)}ms"
    return (
        f"global: {{scrape_interval: {interval}, evaluation_interval: {interval}}}\n"
        "scrape_configs:\n"
        "  - job_name: perfd\n"
        "    honor_labels: true\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{aggregator.port}']}}]\n"
        "rule_files: [rules.yaml]\n"
        "alerting:\n"
        f"  alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{alerts.port}']}}]}}]\n"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--interval", type=float, default=0.25)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    missing = [name for name in ("prometheus", "prometheus-alertmanager") if shutil.which(name) is None]
    if missing:
        print(f"not run: install {' and '.join(missing)} (Debian packages of these names)")
        return
    results = [measure(engine, args.trials, args.interval) for engine in ("prometheus", "embedded")]
    if args.json:
        print(json.dumps({"schema": SCHEMA, "paths": results}))
        return
    for result in results:
        print(
            f"rule engine {result['engine']}: value to webhook {result['median_s']:.2f} s (median of "
            f"{result['trials']}), 95% below {result['p95_s']:.2f} s, {result['min_s']:.2f} to "
            f"{result['max_s']:.2f} s, at intervals of {args.interval * 1000:.0f} ms"
        )


if __name__ == "__main__":
    main()
