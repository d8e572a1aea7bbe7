"""The configuration of a gateway."""

from pathlib import Path

import msgspec
import pytest
import yaml

from perfd.config import GatewayConfig, NatsGatewayConfig, load
from perfd.errors import ConfigError
from perfd.gateway import Gateway

SHIPPED = Path(__file__).parents[2] / "deploy" / "gateway.yaml"


def test_the_shipped_configuration_names_every_key_at_its_default() -> None:
    written = yaml.safe_load(SHIPPED.read_text())
    assert set(written) == {field.encode_name for field in msgspec.structs.fields(GatewayConfig)}
    assert set(written["nats"]) == {field.encode_name for field in msgspec.structs.fields(NatsGatewayConfig)}
    servers = written["nats"]["servers"]
    assert load(SHIPPED, GatewayConfig) == GatewayConfig(nats=NatsGatewayConfig(servers=servers))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nats: {servers: ['nats://127.0.0.1:4222'], partitions: 0}", "at least 1"),
        ("nats: {servers: []}", "at least one server"),
        ("nats: {servers: ['nats://10.0.0.1:4222']}", "plain text"),
        (
            "{nats: {servers: ['nats://127.0.0.1:4222']}, agent_identity: {any_job: [n0]}}",
            "configure it on the aggregators",
        ),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        Gateway(load(file, GatewayConfig))
