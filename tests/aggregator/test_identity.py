"""Who an agent is: its certificate, its spool, and the numbers of its batches."""

import json
import shutil
import ssl
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from aggregator.support import aggregator, step, values

from perfd.agent.spool.spool import Spool
from perfd.agent.uplink.grpc_uplink import GrpcUplink
from perfd.aggregator.ingest.agent_credential import ANYBODY, credential_of_certificate
from perfd.aggregator.limits import Limits
from perfd.clock import SystemClock
from perfd.config import AgentIdentityConfig, HistoryConfig, UplinkConfig
from perfd.errors import ConfigError
from perfd.model import Batch
from perfd.net import split_address
from perfd.wire.convert import encode_message
from tests.support.fake_agent import FakeAgent
from tests.support.pki import Authority


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.sign("server", names="DNS:localhost,IP:127.0.0.1")
    authority.sign("renewed", names="DNS:localhost,IP:127.0.0.1")
    authority.sign("n0", names="DNS:n0.cluster.example")
    authority.sign("n1", names="URI:spiffe://cluster.example/perfd/node/n1")
    authority.sign("shared", names="DNS:perfd-agent")
    authority.sign("nameless", common_name="")
    return authority


def steps(running, job="llm"):
    return running.state.fleet.jobs[job].steps.table().step.tolist()


def refused(running, reason):
    running.tick()
    return values(running.page()).get(f'perfd_refused_total{{reason="{reason}"}}', 0)


@pytest.mark.parametrize(
    ("own", "node", "welcome"),
    [
        ("n0", "n0", True),
        ("n0", "n0.cluster.example", True),
        ("n1", "n1", True),
        ("shared", "whatever", True),
        ("n0", "n1", False),
        ("n1", "n0", False),
        ("nameless", "n0", False),
    ],
)
def test_an_agent_is_the_node_of_its_certificate(pki, own, node, welcome):
    identity = AgentIdentityConfig(any_node=["perfd-agent"])
    with (
        aggregator(tls=pki.tls("server"), listen="localhost:0", agent_identity=identity) as running,
        FakeAgent(running.grpc_address, node=node, credentials=pki.client(own)) as agent,
    ):
        if welcome:
            agent.hello()
            assert agent.send(step(1)) == 1
        else:
            with pytest.raises(grpc.RpcError):
                agent.hello()
            assert agent.end() is grpc.StatusCode.PERMISSION_DENIED
            assert refused(running, "agent_credential") == 1


def test_a_certificate_of_another_node_does_not_take_over_an_agent(pki):
    with aggregator(tls=pki.tls("server"), listen="localhost:0") as running:
        victim = FakeAgent(running.grpc_address, node="n0", agent_id="A", credentials=pki.client("n0"))
        thief = FakeAgent(running.grpc_address, node="n1", agent_id="A", credentials=pki.client("n1"))
        with victim, thief:
            victim.hello()
            assert thief.hello().renew_identity
            thief.end()
            assert victim.send(step(1)) == 1


def test_who_knows_the_id_of_an_agent_but_not_its_spool_takes_nothing_over(caplog):
    with aggregator() as running:
        victim = FakeAgent(running.grpc_address, node="n0", agent_id="A", epochs=("e1", ""))
        with victim:
            victim.hello()
            victim.send(step(1))
            for epochs in (("", ""), ("e2", ""), ("e2", "e0")):
                with FakeAgent(running.grpc_address, node="n9", agent_id="A", epochs=epochs) as thief:
                    welcome = thief.hello()
                    assert welcome.renew_identity
                    assert welcome.last_sequence == 0
                    thief.end()
            assert victim.send(step(2)) == 2
            assert steps(running) == [1, 2]
            assert refused(running, "agent_identity") == 3
    assert sum("one spool identity" in record.message for record in caplog.records) == 1


def test_the_next_life_of_a_spool_goes_on_and_a_copy_of_the_old_one_does_not():
    with aggregator() as running:
        with FakeAgent(running.grpc_address, agent_id="A", epochs=("e1", "")) as first:
            first.hello()
            first.send(step(1))
        with FakeAgent(running.grpc_address, agent_id="A", epochs=("e2", "e1")) as second:
            assert second.hello().last_sequence == 1
            with FakeAgent(running.grpc_address, node="n1", agent_id="A", epochs=("e3", "e1")) as copy:
                assert copy.hello().renew_identity
            assert second.send(step(2), sequence=2) == 2


def test_an_agents_spool_is_known_after_a_restart_of_the_aggregator(tmp_path):
    history = HistoryConfig(path=str(tmp_path / "h.sqlite"))
    with aggregator(history=history) as running:
        with FakeAgent(running.grpc_address, agent_id="A", epochs=("e1", "")) as agent:
            agent.hello()
            agent.send(step(1))
        with FakeAgent(running.grpc_address, agent_id="A", epochs=("e2", "e1")) as agent:
            agent.hello()
    with aggregator(history=history) as running:
        for epochs in (("", ""), ("e3", ""), ("e3", "e1")):
            with FakeAgent(running.grpc_address, node="n9", agent_id="A", epochs=epochs) as thief:
                assert thief.hello().renew_identity
        assert refused(running, "agent_identity") == 3
        with FakeAgent(running.grpc_address, agent_id="A", epochs=("e2", "e2")) as agent:
            assert agent.hello().last_sequence == 1


def test_two_machines_that_start_from_one_disk_image_both_keep_their_data(tmp_path):
    image = Spool(tmp_path / "image", max_bytes=1 << 20, machine="image")
    image.close()
    with aggregator() as running, ExitStack() as stack:
        for node in ("n0", "n1"):
            shutil.copytree(tmp_path / "image", tmp_path / node)
            spool = Spool(tmp_path / node, max_bytes=1 << 20, machine="image")
            config = UplinkConfig(address=running.grpc_address, backoff_initial_s=0.01)
            uplink = GrpcUplink(config, node=node, spool=spool, clock=SystemClock(), on_request=print)
            stack.callback(spool.close)
            stack.callback(uplink.stop, 0.1)
            for number in range(1, 6):
                line = step(number, job=node)
                spool.append(lambda n, line=line: encode_message(batch(n, line)), records=1)
            uplink.start()
            # A copy takes another identity first, in which its batches count from 1.
            assert uplink.wait_acknowledged(5, 20.0)
        assert steps(running, "n0") == steps(running, "n1") == [1, 2, 3, 4, 5]


def test_two_copies_of_a_spool_that_nobody_knew_yet_both_keep_their_data(tmp_path):
    Spool(tmp_path / "image", max_bytes=1 << 20, machine="image").close()
    with aggregator() as running, ExitStack() as stack:
        uplinks = []
        for node in ("n0", "n1"):
            shutil.copytree(tmp_path / "image", tmp_path / node)
            spool = Spool(tmp_path / node, max_bytes=1 << 20, machine="image")
            config = UplinkConfig(address=running.grpc_address, backoff_initial_s=0.01)
            uplink = GrpcUplink(config, node=node, spool=spool, clock=SystemClock(), on_request=print)
            stack.callback(spool.close)
            stack.callback(uplink.stop, 0.1)
            uplink.start()
            uplinks.append((node, spool, uplink))
        # Both are connected and send in turn.
        for number in range(1, 31):
            for node, spool, uplink in uplinks:
                line = step(number, job=node)
                spool.append(lambda n, line=line: encode_message(batch(n, line)), records=1)
                uplink.notify()
        for node, spool, uplink in uplinks:
            assert uplink.wait_acknowledged(spool.last_sequence, 30.0)
            assert steps(running, node) == list(range(1, 31))


def batch(sequence, record):
    return Batch(sequence=sequence, sent_unix_ns=0, records=(record,))


@pytest.mark.parametrize(("jump", "fits"), [(4_097, True), (4_098, False), (1 << 62, False)])
def test_a_batch_far_ahead_of_the_newest_one_is_refused_and_loses_nothing(jump, fits):
    with aggregator() as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            if fits:
                assert agent.send(step(1), sequence=jump) == jump
                return
            with pytest.raises(grpc.RpcError, match="cannot follow"):
                agent.send(step(1), sequence=jump)
        with FakeAgent(running.grpc_address) as agent:
            assert agent.hello().last_sequence == 0
            assert agent.send(step(1)) == 1
        assert refused(running, "sequence_jump") == 1


def test_an_agent_that_gave_up_more_says_so_when_it_connects_again():
    with aggregator(limits=Limits(hello_jump=10_000)) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(step(1))
        with FakeAgent(running.grpc_address) as agent:
            assert agent.hello(first_sequence=10_001).last_sequence == 10_000
        with FakeAgent(running.grpc_address) as agent:
            with pytest.raises(grpc.RpcError):
                agent.hello(first_sequence=20_001)
            assert agent.end() is grpc.StatusCode.PERMISSION_DENIED


def test_a_stream_without_a_hello_is_ended_after_a_while():
    with (
        aggregator(limits=Limits(hello_within_s=0.05)) as running,
        FakeAgent(running.grpc_address) as silent,
    ):
        assert silent.end() is grpc.StatusCode.DEADLINE_EXCEEDED
        # The client gives up with the same code.
        assert silent.reason == "No Hello within the time limit."


def test_a_renewed_certificate_of_the_aggregator_is_served_without_a_restart(pki, tmp_path):
    for end in ("pem", "key"):
        shutil.copy(pki.folder / f"server.{end}", tmp_path / f"live.{end}")
    tls = {
        "certificate": str(tmp_path / "live.pem"),
        "key": str(tmp_path / "live.key"),
        "ca": pki.tls("n0").ca,
    }
    with aggregator(tls=type(pki.tls("n0"))(**tls), listen="127.0.0.1:0") as running:
        address = split_address(running.grpc_address)
        assert ssl.get_server_certificate(address) == served(pki, "server")
        (tmp_path / "live.pem").write_text("no certificate")
        assert ssl.get_server_certificate(address) == served(pki, "server")
        for end in ("pem", "key"):
            shutil.copy(pki.folder / f"renewed.{end}", tmp_path / f"live.{end}")
        assert ssl.get_server_certificate(address) == served(pki, "renewed")
        with FakeAgent(running.grpc_address, node="n0", credentials=pki.client("n0")) as agent:
            agent.hello()


def served(pki, name):
    return (pki.folder / f"{name}.pem").read_text()


def test_the_id_that_an_agent_introduces_itself_with_is_not_shown():
    with aggregator() as running, FakeAgent(running.grpc_address, agent_id="secret-id") as agent:
        agent.hello()
        assert "secret-id" not in str(running.agents())


def test_refusals_are_in_the_audit_file_once_a_minute_and_only_the_owner_reads_it(tmp_path):
    path = tmp_path / "audit.jsonl"
    with aggregator(audit_file=str(path)) as running:
        with FakeAgent(running.grpc_address, agent_id="A", epochs=("e1", "")) as victim:
            victim.hello()
            for _ in range(3):
                with FakeAgent(running.grpc_address, node="n9", agent_id="A") as thief:
                    thief.hello()
        assert path.stat().st_mode & 0o777 == 0o600
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["action"], line["reason"], line["actor"]) == ("refused", "agent_identity", "n9")


def test_an_audit_file_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(ConfigError, match="audit_file: cannot write"),
        aggregator(audit_file=str(tmp_path / "link")),
    ):
        pass
    assert not Path(tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("properties", "node", "may"),
    [
        ({"peer_dns": [b"n1.x.example", b"n2"]}, "n2", True),
        ({"peer_dns": [b"n1.x.example"], "x509_common_name": [b"n3"]}, "n3", False),
        ({"x509_common_name": [b"n3"]}, "n3", True),
        ({"peer_uri": [b"spiffe://x/ns/perfd/sa/agent"]}, "agent", False),
        ({"peer_uri": [b"spiffe://x/a/node/n1/extra"]}, "extra", False),
        ({"peer_uri": [b"spiffe://[bad"], "peer_dns": [b"\xff"]}, "n1", False),
        ({"peer_dns": [b"*.x.example"]}, "n1", False),
    ],
)
def test_the_names_of_a_certificate_say_which_nodes_it_may_be(properties, node, may):
    assert credential_of_certificate(properties).may_be(node) is may


def test_who_shows_nothing_may_be_any_node_where_that_is_allowed():
    assert ANYBODY.may_be("n1")
    assert credential_of_certificate({}) is None
