"""Writes what the chart's schema says of perfd's own configuration, from the types that perfd reads it with.

    python deploy/kubernetes/make_schema.py [--check]

Everything else in values.schema.json is written by hand.
"""

from __future__ import annotations

import json
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from perfd.agent.collection.collector_task import SHORTEST_INTERVAL_S
from perfd.analysis.flops.flops_conventions import FlopsConvention
from perfd.collector import CollectorSpec
from perfd.config import AgentConfig, AggregatorConfig, GatewayConfig
from perfd.model import JOB_LABELS, OWNER_LABELS

SCHEMA = Path(__file__).parent / "perfd" / "values.schema.json"
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
_URL = {"pattern": "^https?://[^ /]+"}
_TAGS = {"items": {"type": "string", "minLength": 1, "maxLength": 64}}
_RECEIVER_NAME = {"pattern": "^[A-Za-z0-9_.-]{1,64}$"}
_EXPERIMENT = {"minLength": 1, "maxLength": 500}
_MATCH = {"minProperties": 1, "propertyNames": {"enum": [*JOB_LABELS, *OWNER_LABELS]}}
_LIMITS: dict[tuple[str, str], dict[str, Any]] = {
    ("AggregatorConfig", "round_interval_s"): {"minimum": 0.05},
    ("AggregatorConfig", "max_jobs"): {"minimum": 1},
    ("AggregatorConfig", "health_listen"): {"pattern": "^[^ ]+:[0-9]+$"},
    ("AnalysisConfig", "flops_convention"): {"enum": [*FlopsConvention]},
    ("HistoryConfig", "url"): {"pattern": "^postgres(ql)?://"},
    ("HistoryConfig", "query_url"): _URL,
    ("NodesConfig", "half_life_days"): {"exclusiveMinimum": 0, "exclusiveMaximum": 3660},
    ("RulesConfig", "files"): {"items": {"type": "string", "minLength": 1}},
    ("WandbConfig", "tags"): _TAGS,
    ("WandbTeam", "tags"): _TAGS,
    ("WandbTeam", "match"): _MATCH,
    ("MlflowConfig", "url"): _URL,
    ("MlflowConfig", "experiment"): _EXPERIMENT,
    ("MlflowTeam", "experiment"): _EXPERIMENT,
    ("MlflowTeam", "match"): _MATCH,
    ("RemoteWriteConfig", "url"): _URL,
    ("OtlpConfig", "url"): _URL,
    ("NotificationsConfig", "external_url"): _URL,
    ("NotificationsConfig", "group_wait_s"): {"minimum": 0},
    ("NotificationsConfig", "group_interval_s"): {"minimum": 0},
    ("NotificationsConfig", "repeat_interval_s"): {"minimum": 1},
    ("NotificationsConfig", "max_alerts"): {"minimum": 1},
    ("WebhookReceiver", "name"): _RECEIVER_NAME,
    ("WebhookReceiver", "url"): _URL,
    ("EmailReceiver", "name"): _RECEIVER_NAME,
    ("EmailReceiver", "host"): {"minLength": 1},
    ("EmailReceiver", "port"): {"minimum": 1, "maximum": 65535},
    ("EmailReceiver", "timeout_s"): {"exclusiveMinimum": 0},
    ("EmailReceiver", "to"): {"minItems": 1},
    ("AlertmanagerConfig", "urls"): {"items": {"type": "string", **_URL}},
    **{
        (owner, "servers"): {"minItems": 1, "items": {"type": "string", "pattern": "^(nats|tls)://[^ /@]+$"}}
        for owner in ("NatsListenConfig", "NatsUplinkConfig", "NatsGatewayConfig")
    },
    ("NatsGatewayConfig", "partitions"): {"minimum": 1},
    **{
        (owner, "url"): {"pattern": "^s3://[a-z0-9][a-z0-9.-]+"}
        for owner in ("ObjectStorageConfig", "ObjectReadingConfig")
    },
    ("ObjectReadingConfig", "link_lifetime_s"): {"minimum": 1, "maximum": 3600},
    ("KubernetesIdentityConfig", "api_server"): {"pattern": "^https://[^ /]+"},
    ("AgentCaptureConfig", "retention_days"): {"minimum": 0.0417},
    ("CollectorConfig", "interval_s"): {"minimum": SHORTEST_INTERVAL_S},
}
"""What perfd refuses at its start beyond the types, which Helm then refuses first: a pod would end at once.

tests/deploy/test_chart_values.py compares both.
"""


def definitions() -> dict[str, Any]:
    """The configuration of all roles and the options of shipped collectors, each type under its own name."""
    specs = _shipped_collectors()
    types = [AgentConfig, AggregatorConfig, GatewayConfig, *(spec.options for spec in specs)]
    _, found = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for (name, key), limit in _LIMITS.items():
        found[name]["properties"][key] |= limit
    # Only a gateway that is enabled needs its servers, which the schema of the values says.
    found["GatewayConfig"]["required"] = []
    # Collectors of others take what they take.
    found["AgentConfig"]["properties"]["collectors"]["properties"] = {
        spec.name: {
            "$ref": "#/$defs/CollectorConfig",
            "properties": {"options": {"$ref": f"#/$defs/{spec.options.__name__}"}},
        }
        for spec in specs
    }
    found["AgentConfig"]["properties"]["collectors"]["additionalProperties"] = {
        "$ref": "#/$defs/CollectorConfig"
    }
    return dict(sorted(found.items()))


def _shipped_collectors() -> list[CollectorSpec]:
    """As the project names them, whatever is installed."""
    points = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"][
        "perfd.collectors"
    ]
    modules = [text.split(":") for _, text in sorted(points.items())]
    return [getattr(import_module(module), name) for module, name in modules]


def main(arguments: list[str]) -> int:
    """Write the file, or say that it would change."""
    before = SCHEMA.read_text(encoding="utf-8")
    after = json.dumps({**json.loads(before), "$defs": definitions()}, indent=2) + "\n"
    if arguments == ["--check"]:
        if before != after:
            print(f"{SCHEMA.name} is stale: run {Path(__file__).name}.")  # noqa: T201  (a script)
        return int(before != after)
    SCHEMA.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
