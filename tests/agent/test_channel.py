from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import grpc
import pytest
from agent.support import steps

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool.spool import Spool
from perfd.agent.uplink.grpc_channel import ChannelFactory
from perfd.agent.uplink.grpc_uplink import GrpcUplink
from perfd.clock import VirtualClock
from perfd.config import TlsConfig, UplinkConfig
from perfd.errors import ConfigError
from tests.support.fake_aggregator import FakeAggregator


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.8.9.10:1"])
def test_plaintext_on_this_machine_needs_no_permission(address: str) -> None:
    ChannelFactory(UplinkConfig(address=address))


@pytest.mark.parametrize("address", ["10.0.0.1:9461", "aggregator.example:9461", "[2001:db8::1]:9461"])
def test_plaintext_to_another_machine_must_be_asked_for_by_name(address: str) -> None:
    with pytest.raises(ConfigError, match=r"another machine.*configure TLS, or set uplink\.allow_plaintext"):
        ChannelFactory(UplinkConfig(address=address))
    ChannelFactory(UplinkConfig(address=address, allow_plaintext=True))


def test_an_address_without_a_port_is_named() -> None:
    with pytest.raises(ConfigError, match=r"uplink\.address: 'localhost' is not an address"):
        ChannelFactory(UplinkConfig(address="localhost"))


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"uplink\.tls\.ca: .*ca\.pem cannot be read: No such file"):
        ChannelFactory(UplinkConfig(tls=TlsConfig(ca=missing)))


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both certificate and key"):
        ChannelFactory(UplinkConfig(tls=TlsConfig(certificate=str(tmp_path / "agent.pem"))))


def issue(directory: Path, name: str) -> None:
    """A certificate for 127.0.0.1, signed by the authority in `directory` (made if it is not there)."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    if not (directory / "ca.pem").exists():
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2"),
        )
    (directory / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
    )
    openssl(
        *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", f"{name}.pem", "-days", "2", "-extfile", "san"),
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, to make certificates, is missing")
def test_with_mutual_tls_only_an_agent_with_a_certificate_is_accepted(tmp_path: Path) -> None:
    for name in ("aggregator", "agent"):
        issue(tmp_path, name)
    pair = ((tmp_path / "aggregator.key").read_bytes(), (tmp_path / "aggregator.pem").read_bytes())
    credentials = grpc.ssl_server_credentials(
        [pair], root_certificates=(tmp_path / "ca.pem").read_bytes(), require_client_auth=True
    )
    known = TlsConfig(
        ca=str(tmp_path / "ca.pem"), certificate=str(tmp_path / "agent.pem"), key=str(tmp_path / "agent.key")
    )
    unknown = TlsConfig(ca=str(tmp_path / "ca.pem"))
    with FakeAggregator(credentials=credentials) as aggregator:
        got = {}
        for name, tls in (("known", known), ("unknown", unknown), ("plain", None)):
            spool = Spool(tmp_path / name, max_bytes=1 << 20)
            batcher = Batcher(spool)
            batcher.add(steps(1))
            batcher.flush(1)
            config = UplinkConfig(address=aggregator.address, tls=tls, backoff_initial_s=0.02)
            uplink = GrpcUplink(
                config, node=name, spool=spool, clock=VirtualClock(), on_request=lambda _request: None
            )
            uplink.start()
            got[name] = uplink.wait_acknowledged(1, 20.0 if name == "known" else 0.5)
            uplink.stop(0.0)
            spool.close()
    assert got == {"known": True, "unknown": False, "plain": False}
    assert {hello.node for hello in aggregator.hellos} == {"known"}
