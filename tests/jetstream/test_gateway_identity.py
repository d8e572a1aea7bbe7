"""A gateway with TLS on both sides: agents show certificates or tokens, and NATS sees the gateway's key."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aggregator.test_kubernetes_tokens import ApiServer, review
from jetstream.support import WAIT_S, stored_steps, until
from jetstream.test_gateway import LARGE, GrpcNode

from perfd.aggregator import Aggregator
from perfd.config import (
    AgentIdentityConfig,
    AggregatorConfig,
    GatewayConfig,
    HistoryConfig,
    KubernetesIdentityConfig,
    NatsGatewayConfig,
    NatsListenConfig,
    RulesConfig,
    TlsConfig,
)
from perfd.gateway import Gateway
from perfd.model import JobOrigin
from tests.support.nats_server import NatsServer
from tests.support.pki import Authority

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Site:
    """Servers with TLS that let in one key for aggregators and one for gateways."""

    pki: Authority
    address: str
    history: Path

    def nats(self, user: str) -> dict[str, Any]:
        return {
            "servers": [self.address],
            "nkey_file": str(self.pki.folder / f"{user}.nk"),
            "tls": TlsConfig(ca=str(self.pki.folder / "ca.pem")),
        }

    def gateway(self, **config: Any) -> Gateway:
        return Gateway(
            GatewayConfig(
                listen="127.0.0.1:0",
                http_listen=None,
                nats=NatsGatewayConfig(**self.nats("gateway")),
                **config,
            )
        )

    def agent(self, gateway: Gateway, name: str, node: str, *, token: str | None = None) -> GrpcNode:
        """One that shows the certificate of that name, or a token."""
        port = gateway.grpc_address.rpartition(":")[2]
        options: dict[str, Any] = {"tls": self.pki.tls(name)}
        if token is not None:
            (self.pki.folder / f"{name}.token").write_text(token)
            options = {
                "tls": TlsConfig(ca=str(self.pki.folder / "ca.pem")),
                "token_file": str(self.pki.folder / f"{name}.token"),
            }
        agent = GrpcNode(self.pki.folder / f"spool-{name}-{node}", f"localhost:{port}", node, **options)
        agent.uplink.start()
        return agent


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    import nkeys  # noqa: PLC0415  (only where the tests run that need it)

    pki = Authority(tmp_path)
    pki.sign("server", names="DNS:localhost,IP:127.0.0.1")
    pki.sign("n0", names="DNS:n0")
    users = []
    for name, publish, subscribe in (
        ("aggregator", ">", ">"),
        ("gateway", "perfd.from.default.>", "perfd.to.default.>"),
    ):
        seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
        (tmp_path / f"{name}.nk").write_bytes(seed)
        key = nkeys.from_seed(bytearray(seed)).public_key.decode()
        rights = f'publish: ["{publish}"], subscribe: ["{subscribe}", "_INBOX.>", "_INBOX_perfd_*.>"]'
        users.append(f"{{ nkey: {key}, permissions: {{ {rights} }} }}")
    files = f'cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key"'
    more = f"{LARGE}\ntls {{ {files} }}\nauthorization {{ users = [{', '.join(users)}] }}"
    with NatsServer(tmp_path, more=more) as server:
        yield Site(pki, server.address.replace("nats:", "tls:"), tmp_path / "history.sqlite")


@pytest.fixture
def running(site: Site) -> Iterator[Aggregator]:
    aggregator = Aggregator(
        AggregatorConfig(
            listen="127.0.0.1:0",
            http_listen=None,
            rules=RulesConfig(builtin=False),
            history=HistoryConfig(path=str(site.history)),
            nats=NatsListenConfig(max_bytes=64 << 20, **site.nats("aggregator")),
        ),
        manual=True,
    )
    aggregator.start()
    yield aggregator
    aggregator.stop()


def test_an_agent_with_a_certificate_is_its_node_only(site: Site, running: Aggregator) -> None:
    gateway = site.gateway(tls=site.pki.tls("server"))
    gateway.start()
    try:
        agent = site.agent(gateway, "n0", "n0")
        last = agent.produce(20)
        assert agent.uplink.wait_acknowledged(last, WAIT_S)
        assert until(lambda: stored_steps(site.history, "job-n0") == list(range(1, last + 1)))
        thief = site.agent(gateway, "n0", "n1")
        assert not thief.uplink.wait_acknowledged(thief.produce(1), 3.0)
        assert running.state.counters.batches == last
        thief.close()
        agent.close()
    finally:
        gateway.stop()


def test_an_agent_with_a_token_is_the_node_of_its_pod_and_limited_to_its_namespace(
    site: Site, running: Aggregator
) -> None:
    api = ApiServer(site.pki)
    api.reviews = {"good": review(), "other": review("system:serviceaccount:team-b:trainer", node="n1")}
    (site.pki.folder / "own").write_text("gateways-own")
    gateway = site.gateway(
        tls=TlsConfig(certificate=site.pki.tls("server").certificate, key=site.pki.tls("server").key),
        agent_identity=AgentIdentityConfig(
            kubernetes=KubernetesIdentityConfig(
                api_server=f"https://{api.server.address}",
                ca=str(site.pki.folder / "ca.pem"),
                token_file=str(site.pki.folder / "own"),
            )
        ),
    )
    gateway.start()
    agents = []
    try:
        for name, token, namespace in (("n0", "good", "team-a"), ("n1", "other", "team-b")):
            agents.append(site.agent(gateway, f"pod-{name}", name, token=token))
            last = agents[-1].produce(5, JobOrigin(job=f"job-{name}", namespace=namespace))
            assert agents[-1].uplink.wait_acknowledged(last, WAIT_S)
            assert until(lambda job=f"job-{name}": stored_steps(site.history, job) == [1, 2, 3, 4, 5])
        # A job belongs to a namespace.
        stranger = agents[1]
        stranger.job = "job-n0"
        assert stranger.uplink.wait_acknowledged(stranger.produce(3), WAIT_S)
        assert until(lambda: running.state.audit.counts().get("job_owner"))
        assert stored_steps(site.history, "job-n0") == [1, 2, 3, 4, 5]
        for node, token in (("n9", "good"), ("n0", "unknown")):
            agents.append(site.agent(gateway, f"{node}-{token}", node, token=token))
            assert not agents[-1].uplink.wait_acknowledged(agents[-1].produce(1), 3.0)
    finally:
        for agent in agents:
            agent.close()
        gateway.stop()
        api.server.close()
