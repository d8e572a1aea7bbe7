"""From a serving engine's metrics over a real agent and aggregator to the page in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving.pages import LLAMA_70B, busy_70b

from perfd.aggregator.aggregator import Aggregator
from perfd.capture.capture_routes import StartBody
from perfd.config import AggregatorConfig
from perfd.net.http import HttpServer, Request, Response
from tests.support.chromium import Tab

pytestmark = pytest.mark.system
COUNTS = (0, 0, 0, 100, 600, 1600, 1800, 1900, 1950, 1975, 1995, 2000, 2000, 2000)


class Engine:
    """Answers like SGLang that serves a 70B model, some more tokens at each look."""

    def __init__(self) -> None:
        self._looks = 0
        self._server = HttpServer(
            "127.0.0.1:0",
            {
                "/metrics": self._metrics,
                "/server_info": lambda _: Response(body=json.dumps({"tp_size": 8}).encode()),
            },
        )
        self.address = self._server.address

    def close(self) -> None:
        self._server.close()

    def _metrics(self, _: Request) -> Response:
        self._looks += 1
        return Response(body=busy_70b([count * self._looks for count in COUNTS]), content_type="text/plain")


@contextmanager
def agent(running: Aggregator, engine: Engine, folder: Path) -> Iterator[None]:
    """A real agent that looks at one server four times a second."""
    model = folder / "config.json"
    model.write_text(json.dumps(LLAMA_70B))
    options = {
        "urls": [f"http://{engine.address}"],
        "discover": False,
        # On a loaded machine the stand-in may take long to answer.
        "timeout_s": 30.0,
        "tp": 8,
        "gpu": "NVIDIA H100 80GB HBM3",
        "model_config_file": str(model),
    }
    config = folder / "agent.yaml"
    settings = {
        "listen": None,
        "spool": {"directory": str(folder / "spool")},
        "collectors": {"sglang": {"interval_s": 0.25, "options": options}},
    }
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "perfd", "agent", "--config", str(config), "--node", "n1"]
    with subprocess.Popen(
        [*command, "--aggregator", running.grpc_address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def the_server(url: str) -> dict[str, Any] | None:
    with urllib.request.urlopen(f"{url}/api/v1/servers", timeout=20) as answer:
        servers = json.load(answer)["servers"]
    return servers[0] if servers else None


def test_an_engines_latencies_are_on_the_page_beside_theory(tab: Tab, tmp_path: Path) -> None:
    engine = Engine()
    running = Aggregator(AggregatorConfig(listen="127.0.0.1:0", http_listen="127.0.0.1:0"))
    running.start()
    url = f"http://{running.http_address}"
    try:
        with agent(running, engine, tmp_path):
            tab.open(f"{url}/servers", "document.querySelector('article')")
            while (server := the_server(url)) is None or server["tpot_s"]["p50"] is None:
                pass
            # The distribution does not change from look to look, so neither do its quantiles.
            tab.wait("document.querySelector('article').innerText.includes('times the')")
            running.start_capture(StartBody(job=f"n1/{engine.address}", profile="serving", id="mine"))
            tab.wait("document.querySelector('article .captures .refused')")
            shown = tab.text("article")
    finally:
        running.stop()
        engine.close()

    assert (server["node"], server["server"], server["up"]) == ("n1", engine.address, True)
    assert server["theory"] is not None
    assert engine.address in shown
    for name in ("p50", "p90", "p99"):
        assert f"{server['tpot_s'][name] * 1000:.1f} ms" in shown
    assert f"{server['theory']['tpot_theory_s'] * 1000:.1f} ms floor at the current batch" in shown
    assert f"{server['theory']['tpot_floor_s'] * 1000:.1f} ms floor of a single request" in shown
    assert "Running\n200" in shown
    assert "refused mine" in shown
    assert "No server is configured; set capture.sglang." in shown
