"""Values that the chart's schema takes do not end perfd at its start, again and again, in a pod."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfd.agent.agent import Agent
from perfd.agent.collection import create_tasks
from perfd.aggregator import Aggregator
from perfd.collector import Settings
from perfd.config import AgentConfig, AggregatorConfig, GatewayConfig, parse
from perfd.gateway import Gateway

SCHEMA = json.loads((Path(__file__).parents[2] / "deploy/kubernetes/perfd/values.schema.json").read_text())
DEFINITIONS = SCHEMA["$defs"]
OF_FILES = {
    "certificate",
    "key",
    "ca",
    "token_file",
    "path",
    "directory",
    "gpu_peaks_file",
    "files",
    "kubernetes",
}
"""Keys about files, which only a pod has; with `kubernetes`, those of its service account."""
ODD: dict[str, list[object]] = {
    "integer": [-1, 0, 10**15],
    "number": [-1.0, 0.0, 1e15],
    "string": ["", "x y"],
    "array": [[""]],
}

Place = tuple[str, ...]


@functools.cache
def _validator() -> Any:
    import jsonschema  # noqa: PLC0415  (3 s, which whoever only collects tests need not wait)

    return jsonschema.Draft202012Validator(SCHEMA)


def is_valid(values: dict[str, Any]) -> bool:
    return bool(_validator().is_valid(values))


def leaves(name: str, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Each key below a type, with the types that it may have."""
    for key, found in DEFINITIONS[name].get("properties", {}).items():
        for option in found.get("anyOf", [found]):
            inner = option.get("$ref", "").rpartition("/")[2]
            if "properties" in DEFINITIONS.get(inner, {}):
                yield from leaves(inner, (*place, key))
            elif option.get("type") in ODD and not {key, *place} & OF_FILES and not key.endswith("_file"):
                yield (*place, key), option["type"]


def nested(place: Place, value: object) -> dict[str, Any]:
    """A document with one value."""
    for key in reversed(place):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def accepted(
    role: str, name: str, place: Place = (), *, required: dict[str, dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Odd configurations that the schema takes; `required` are keys without which it takes none."""
    documents = [
        nested((*place, *leaf), value) for leaf, kind in leaves(name, place=()) for value in ODD[kind]
    ]
    for document in documents:
        for key, values in (required or {}).items():
            document[key] = values | document.get(key, {})
    return [document for document in documents if is_valid({role: {"config": document}})]


@pytest.mark.slow
def test_an_aggregator_starts_with_whatever_the_schema_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    documents = accepted("aggregator", "AggregatorConfig")
    assert len(documents) > 40
    for document in documents:
        Aggregator(parse(json.dumps({"http_listen": None, **document}), AggregatorConfig))


@pytest.mark.slow
def test_an_agent_starts_with_whatever_the_schema_takes(tmp_path: Path) -> None:
    documents = accepted("agent", "AgentConfig") + accepted(
        "agent", "CollectorConfig", ("collectors", "nvml")
    )
    assert len(documents) > 30
    for number, document in enumerate(documents):
        config = parse(json.dumps(document), AgentConfig)
        tasks = create_tasks(config, Settings(node="n", job="default"))
        Agent(config, node="n", spool_directory=tmp_path / str(number), tasks=tasks, manual=True).stop()


def test_a_gateway_starts_with_whatever_the_schema_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = {"nats": {"servers": ["tls://127.0.0.1:4222"]}}
    documents = accepted("gateway", "GatewayConfig", required=servers)
    assert len(documents) > 5
    for document in documents:
        Gateway(parse(json.dumps({"http_listen": None, **document}), GatewayConfig))


@pytest.mark.parametrize("config", [{"nats": {"partitions": 0}}, {"agent_identity": {"any_job": ["a"]}}])
def test_a_value_that_a_gateway_does_not_take_is_refused(config: dict[str, Any]) -> None:
    assert not is_valid({"gateway": {"config": config}})


@pytest.mark.parametrize(
    "config",
    [
        {"collectors": {"nvml": {"options": {"intervall": 1}}}},
        {"collectors": {"pods": {"options": {"namespaces": "research"}}}},
        {"collectors": {"nccl": {"interval_s": 0.001}}},
        {"capture": {"retention_days": 0}},
    ],
)
def test_an_option_that_a_collector_does_not_take_is_refused(config: dict[str, Any]) -> None:
    assert not is_valid({"agent": {"config": config}})


@pytest.mark.parametrize(
    "config",
    [
        {"round_interval_s": 0},
        {"analysis": {"flops_convention": "mine"}},
        {"nodes": {"half_life_days": 0}},
        {"exporters": {"remote_write": {"url": "prometheus:9090"}}},
        {"exporters": {"alertmanager": {"urls": [""]}}},
    ],
)
def test_a_value_that_the_aggregator_does_not_take_is_refused(config: dict[str, Any]) -> None:
    assert not is_valid({"aggregator": {"config": config}})


def test_what_a_collector_of_others_takes_is_not_judged() -> None:
    config = {"collectors": {"mine": {"options": {"anything": [1]}}}}
    assert is_valid({"agent": {"config": config}})
