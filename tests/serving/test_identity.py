"""What a server is: from its own pages over agent and wire to the aggregator, and from a recording."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfd_collectors.serving import SGLANG, VLLM
from perfd_collectors.serving.collector import ServingOptions
from serving.pages import gauge

from perfd.agent.agent import Agent
from perfd.agent.collection.collector_task import CollectorTask
from perfd.aggregator.aggregator import Aggregator
from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.config import AgentConfig, AggregatorConfig, CollectorConfig, RulesConfig, UplinkConfig
from perfd.net.http import HttpServer, Response
from perfd.recording.recording_writer import RecordingWriter
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.session_config import SessionConfig


def engine(pages: Mapping[str, bytes]) -> HttpServer:
    """A stand-in for a server; `pages` may change while it serves."""
    paths = ("/metrics", "/server_info", "/version", "/v1/")
    return HttpServer(
        "127.0.0.1:0",
        dict.fromkeys(
            paths,
            lambda request: (
                Response(body=pages[request.path])
                if request.path in pages
                else Response(status=404, body=b"")
            ),
        ),
    )


def sglang_pages(model: str, version: str) -> dict[str, bytes]:
    labels = {"model_name": model, "engine_type": "decode", "tp_rank": "0"}
    said = {"model_path": model, "version": version, "tp_size": 8}
    return {
        "/metrics": gauge("sglang:num_running_reqs", (labels, 3)).encode(),
        "/server_info": json.dumps(said).encode(),
    }


def vllm_pages(model: str, version: str) -> dict[str, bytes]:
    return {
        "/metrics": gauge("vllm:num_requests_running", ({"model_name": model, "engine": "0"}, 2)).encode(),
        "/version": json.dumps({"version": version}).encode(),
    }


def identities(servers: list[Mapping[str, Any]]) -> Mapping[str, tuple[Any, ...]]:
    names = ("engine", "version", "model", "role")
    return {server["server"]: tuple(server[name] for name in names) for server in servers}


def answers(address: str | None) -> list[Mapping[str, Any]]:
    with urllib.request.urlopen(f"http://{address}/api/v1/servers", timeout=20) as answer:
        servers: list[Mapping[str, Any]] = json.load(answer)["servers"]
    return servers


def test_the_aggregator_distinguishes_sglang_from_vllm_and_notices_another_model(tmp_path: Path) -> None:
    clock = VirtualClock()
    quiet = AggregatorConfig(
        listen="127.0.0.1:0", http_listen="127.0.0.1:0", rules=RulesConfig(builtin=False)
    )
    pages = sglang_pages("Qwen/Qwen3-32B", "0.5.9")
    one, two = engine(pages), engine(vllm_pages("meta-llama/Llama-3.1-8B", "0.11.0"))
    aggregator = Aggregator(quiet, clock, manual=True)
    aggregator.start()
    settings = Settings(node="n1", job="", clock=clock, proc=tmp_path)
    tasks = [
        CollectorTask(
            spec,
            CollectorConfig(options={"urls": [f"http://{server.address}"], "discover": False}),
            settings,
        )
        for spec, server in ((SGLANG, one), (VLLM, two))
    ]
    agent = Agent(
        AgentConfig(listen=None, uplink=UplinkConfig(address=aggregator.grpc_address)),
        node="n1",
        spool_directory=tmp_path / "spool",
        tasks=tasks,
        clock=clock,
        manual=True,
    )
    agent.start()

    def look() -> Mapping[str, tuple[Any, ...]]:
        clock.advance(30.0)
        sequence = agent.step()
        assert sequence is not None
        assert agent.wait_acknowledged(sequence, 30.0)
        return identities(answers(aggregator.http_address))

    try:
        first = look()
        pages["/metrics"] = b""
        look()
        pages |= sglang_pages("Qwen/Qwen3-8B", "0.5.10")
        changed = look()
    finally:
        agent.stop()
        aggregator.stop()
        one.close()
        two.close()

    assert first == {
        one.address: ("sglang", "0.5.9", "Qwen/Qwen3-32B", "decode"),
        two.address: ("vllm", "0.11.0", "meta-llama/Llama-3.1-8B", None),
    }
    assert changed[one.address] == ("sglang", "0.5.10", "Qwen/Qwen3-8B", "decode")


def test_a_recording_keeps_what_a_server_is(tmp_path: Path) -> None:
    server = engine(sglang_pages("Qwen/Qwen3-32B", "0.5.9"))
    clock = VirtualClock(1_700_000_000_000_000_000)
    options = ServingOptions(urls=(f"http://{server.address}",), discover=False)
    collector = SGLANG.create(options, Settings(node="n1", job="", clock=clock, proc=tmp_path))
    writer = RecordingWriter(tmp_path / "recording", name="fleet", start_unix_ns=clock.unix_ns())
    for _ in range(20):
        clock.advance(1.0)
        writer.add_records("n1", collector.collect(), clock.unix_ns())
    writer.close()
    server.close()

    seen: list[Mapping[str, Any]] = []
    replay(
        ReplayOptions(
            recording=tmp_path / "recording",
            config=SessionConfig(aggregator=AggregatorConfig(rules=RulesConfig(builtin=False))),
        ),
        on_end=lambda _, aggregator: seen.extend(aggregator.servers()),
    )
    assert identities(seen) == {server.address: ("sglang", "0.5.9", "Qwen/Qwen3-32B", "decode")}
