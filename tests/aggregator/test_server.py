"""Streams of agents over real gRPC."""

import logging
import subprocess

import grpc
import pytest
from aggregator.support import START_S, aggregator, gpus, step, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfd.aggregator.limits import Limits
from perfd.aggregator.state.node_state import NodeState
from perfd.capture.policy.coordinator import CaptureCoordinator
from perfd.clock import VirtualClock
from perfd.config import HistoryConfig, TlsConfig
from perfd.errors import ConfigError, PerfdError
from perfd.model import (
    Batch,
    CaptureCancel,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    GpuInfo,
    Hello,
)
from perfd.wire.convert import encode_message
from perfd.wire.v1 import telemetry_pb2 as pb
from tests.support.examples import examples
from tests.support.fake_agent import FakeAgent


@pytest.fixture
def running():
    with aggregator() as made:
        yield made


def counted(running, name):
    running.tick()
    return values(running.page())[name]


def steps(running, job="llm"):
    return running.state.fleet.jobs[job].steps.table().step.tolist()


def test_a_batch_is_in_the_state_when_it_is_acknowledged(running):
    with FakeAgent(running.grpc_address) as agent:
        assert agent.hello().last_sequence == 0
        assert agent.send(step(1)) == 1
        assert steps(running) == [1]


def test_a_new_stream_of_a_known_agent_goes_on_where_it_was(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1))
        agent.send(step(2))
    with FakeAgent(running.grpc_address) as agent:
        assert agent.hello().last_sequence == 2


def test_repeats_are_acknowledged_and_change_nothing(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        for sequence in (1, 1, 1):
            assert agent.send(step(1), sequence=sequence) == 1
    assert counted(running, "perfd_repeated_batches_total") == 2
    assert counted(running, "perfd_batches_total") == 1
    assert running.state.counters.records == 1


def test_gaps_are_counted_and_a_late_batch_still_counts(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1), sequence=1)
        agent.send(step(5), sequence=5)
        agent.send(step(3), sequence=3)
        agent.send(step(3), sequence=3)
    assert steps(running) == [1, 3, 5]
    assert running.state.fleet.jobs["llm"].attempts.number == 1
    assert counted(running, "perfd_lost_batches_total") == 3
    assert counted(running, "perfd_late_batches_total") == 1
    assert counted(running, "perfd_repeated_batches_total") == 1


def test_acknowledgements_of_many_batches_may_come_as_one(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        for sequence in range(1, 51):
            agent.say(Batch(sequence=sequence, sent_unix_ns=0, records=[step(sequence)]))
        last = 0
        while last < 50:
            got = agent.receive().sequence
            assert got > last
            last = got
    assert steps(running) == list(range(1, 51))


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff\xff\xff",
        encode_message(Batch(sequence=0, sent_unix_ns=0, records=[])),
        encode_message(Batch(sequence=2**63, sent_unix_ns=0, records=[])),
    ],
    ids=["garbage", "sequence 0", "sequence out of range"],
)
def test_a_malformed_message_is_left_out_and_its_stream_goes_on(running, message, caplog):
    with FakeAgent(running.grpc_address) as agent, caplog.at_level(logging.WARNING):
        agent.hello()
        agent.say(message)
        agent.say(message)
        assert agent.send(step(1)) == 1
        (shown,) = running.agents()
    assert shown["malformed_messages"] == 2
    assert counted(running, "perfd_malformed_messages_total") == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].node == "node0"


def test_a_batch_that_cannot_be_decoded_is_acknowledged_and_counted_as_lost(running):
    poison = pb.AgentMessage(batch=pb.Batch(sequence=3))
    no_such_entity = pb.SampleTable(
        scope=pb.SCOPE_GPU, times_unix_ns=bytes(8), entities=["0"], entity_of_row=[1]
    )
    poison.batch.samples.append(no_such_entity.SerializeToString())
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1))
        for _ in range(2):
            agent.say(poison.SerializeToString())
            assert agent.receive().sequence == 3
        assert agent.send(step(4), sequence=4) == 4
    assert steps(running) == [1, 4]
    assert counted(running, "perfd_malformed_messages_total") == 2
    assert counted(running, "perfd_lost_batches_total") == 2


def test_bytes_that_are_no_batch_are_covered_by_the_acknowledgement_of_the_next_one(running):
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1))
        agent.say(b"\xff" * 100)
        assert agent.send(step(3), sequence=3) == 3
    assert steps(running) == [1, 3]
    assert counted(running, "perfd_lost_batches_total") == 1


def test_a_record_that_cannot_be_applied_is_dropped_and_its_batch_and_stream_go_on(
    running, monkeypatch, caplog
):
    monkeypatch.setattr(NodeState, "gpu_info", lambda *_: 1 / 0)
    poison = GpuInfo(index=0, name="NVIDIA H200")
    with FakeAgent(running.grpc_address) as agent, caplog.at_level(logging.ERROR):
        agent.hello()
        agent.send(step(1), poison, step(2))
        assert agent.send(poison, step(3)) == 2
    assert steps(running) == [1, 2, 3]
    assert counted(running, 'perfd_failures_total{part="record"}') == 2
    (logged,) = (one for one in caplog.records if one.name.startswith("perfd."))
    assert (logged.part, logged.node, logged.record) == ("record", "node0", "GpuInfo")
    assert logged.exc_info[0] is ZeroDivisionError


def test_a_status_that_breaks_the_captures_leaves_the_stream_open(running, monkeypatch):
    monkeypatch.setattr(CaptureCoordinator, "on_status", lambda *_: 1 / 0)
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.say(CaptureStatus(capture_id="c", state=CaptureState.DONE, time_unix_ns=1))
        assert agent.send(step(1)) == 1
    assert counted(running, 'perfd_failures_total{part="capture"}') == 1


@pytest.mark.parametrize(
    "first",
    [
        encode_message(Batch(sequence=1, sent_unix_ns=0, records=[])),
        encode_message(Hello(agent_id="", node="n", perfd_version="", sent_unix_ns=0, first_sequence=1)),
        encode_message(
            Hello(agent_id="a", node="n", perfd_version="", sent_unix_ns=0, first_sequence=1, revision=99)
        ),
        b"",
    ],
    ids=["a batch", "no name", "newer revision", "empty"],
)
def test_a_stream_that_does_not_begin_with_a_fit_hello_is_refused(running, first):
    with FakeAgent(running.grpc_address) as agent:
        agent.say(first)
        assert agent.end() is grpc.StatusCode.INVALID_ARGUMENT


@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_no_bytes_of_an_agent_stop_the_aggregator(running, data):
    with FakeAgent(running.grpc_address, agent_id="fuzz", node="fuzz") as agent:
        welcome = agent.hello()
        agent.say(data)
        assert agent.send(step(1), sequence=welcome.last_sequence + 1) > welcome.last_sequence


def test_the_newest_stream_of_an_agent_represents_it(running):
    with FakeAgent(running.grpc_address) as old, FakeAgent(running.grpc_address) as new:
        old.hello()
        new.hello()
        assert old.end() is grpc.StatusCode.ABORTED
        assert new.send(step(1)) == 1
    assert counted(running, "perfd_agents_connected") in {0, 1}


def test_two_agents_of_one_node_name_are_shown_apart(running, caplog):
    with (
        FakeAgent(running.grpc_address, agent_id="first") as first,
        FakeAgent(running.grpc_address, agent_id="second") as second,
    ):
        for agent in (first, second):
            agent.hello()
            agent.send(gpus(START_S, power_w=100.0))
        running.tick()
        found = values(running.page())
    assert found['perfd_gpu_power_watts{gpu="0",instance="node0",node="node0"}'] == 100.0
    assert found['perfd_gpu_power_watts{gpu="0",instance="node0~second",node="node0~second"}'] == 100.0
    assert sum("same node name" in record.message for record in caplog.records) == 1


def test_too_many_agents_are_turned_away_with_a_sentence():
    with (
        aggregator(limits=Limits(agents=1)) as running,
        FakeAgent(running.grpc_address, agent_id="a") as one,
    ):
        one.hello()
        with FakeAgent(running.grpc_address, agent_id="b") as two:
            two.say(Hello(agent_id="b", node="n", perfd_version="", sent_unix_ns=0, first_sequence=1))
            assert two.end() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "at its limit of agents" in two.reason


def test_the_offset_of_a_nodes_clock_is_shown_and_not_believed():
    clock = VirtualClock(round(START_S * 1e9))
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        day_ahead_ns = clock.unix_ns() + 86_400 * 10**9
        agent.hello(sent_unix_ns=day_ahead_ns)
        agent.send(gpus(START_S + 86_400, power_w=100.0), sent_unix_ns=day_ahead_ns)
        running.tick()
        found = values(running.page())
        assert found['perfd_agent_clock_offset_seconds{node="node0"}'] == 86_400.0
        assert found['perfd_gpu_power_watts{gpu="0",instance="node0",node="node0"}'] == 100.0
        clock.advance(60)
        running.tick()
        assert 'perfd_gpu_power_watts{gpu="0",instance="node0",node="node0"}' not in values(running.page())
        assert values(running.page())['perfd_agent_silent_seconds{node="node0"}'] == 60.0


def test_a_wall_clock_that_steps_back_changes_no_decision():
    class Stepping(VirtualClock):
        step_ns = 0

        def unix_ns(self):
            return super().unix_ns() + self.step_ns

    clock = Stepping(round(START_S * 1e9))
    with aggregator(clock) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1), gpus(START_S, power_w=1.0))
        running.tick()
        clock.step_ns = -7200 * 10**9
        clock.advance(1)
        agent.send(step(2), gpus(START_S, power_w=2.0))
        running.tick()
        found = values(running.page())
    assert found['perfd_step{perfd_job="llm"}'] == 2.0
    assert found['perfd_gpu_power_watts{gpu="0",instance="node0",node="node0",perfd_job="llm"}'] == 2.0


def test_records_of_unknown_kinds_are_counted_and_the_rest_is_taken(running):
    unknown = b"\x12\x0a" + b"\x08\x01" + b"\x22\x00" + b"\x22\x04" + b"\xf2\x7f\x01x"
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.say(unknown)
        assert agent.receive().sequence == 1
    running.tick()
    assert values(running.page())['perfd_agent_unknown_records_total{node="node0"}'] == 2.0


def test_a_message_for_an_agent_goes_to_its_stream_and_to_nobody_when_it_is_away(running):
    cancel = CaptureCancel(capture_id="c", reason="r")
    with FakeAgent(running.grpc_address) as agent:
        agent.hello(tools=[CaptureTool.NSYS])
        running._server.send("elsewhere", cancel)
        running._server.send("node0", cancel)
        assert agent.receive() == cancel


def test_plaintext_beyond_loopback_must_be_asked_for():
    with pytest.raises(ConfigError, match="allow_plaintext"), aggregator(listen="0.0.0.0:0"):
        pass
    with aggregator(listen="0.0.0.0:0", allow_plaintext=True) as running:
        assert running.grpc_address.startswith("0.0.0.0:")


def test_a_port_in_use_is_a_sentence_and_leaves_nothing_behind():
    with (
        aggregator() as first,
        pytest.raises(PerfdError, match=r"Cannot listen on .* for agents"),
        aggregator(listen=first.grpc_address),
    ):
        pass


def test_an_http_port_in_use_is_a_sentence_and_leaves_nothing_behind():
    with (
        aggregator(http_listen="127.0.0.1:0") as first,
        pytest.raises(PerfdError, match="Cannot listen on"),
        aggregator(http_listen=first.http_address),
    ):
        pass


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """A certificate authority, and certificates of an aggregator and an agent that it signed."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder, timeout=30)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    for name in ("aggregator", "agent"):
        openssl(
            "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=DNS:localhost,DNS:node0,IP:127.0.0.1",
            "-addext", "basicConstraints=CA:FALSE",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
        )  # fmt: skip
    return folder


def tls(pki, **changes):
    fields = {"certificate": "aggregator.pem", "key": "aggregator.key", "ca": "ca.pem", **changes}
    return TlsConfig(**{name: value and str(pki / value) for name, value in fields.items()})


def credentials(pki, *, own):
    pair = ((pki / "agent.key").read_bytes(), (pki / "agent.pem").read_bytes()) if own else (None, None)
    return grpc.ssl_channel_credentials((pki / "ca.pem").read_bytes(), *pair)


def test_with_mutual_tls_only_an_agent_with_a_certificate_gets_in(pki):
    with aggregator(tls=tls(pki), listen="localhost:0") as running:
        with FakeAgent(running.grpc_address, credentials=credentials(pki, own=True)) as agent:
            agent.hello()
            assert agent.send(step(1)) == 1
        with FakeAgent(running.grpc_address, credentials=credentials(pki, own=False)) as stranger:
            stranger.say(b"")
            assert stranger.end() is grpc.StatusCode.UNAVAILABLE


def test_with_tls_and_no_ca_agents_need_no_certificate(pki):
    with (
        aggregator(tls=tls(pki, ca=None), listen="localhost:0") as running,
        FakeAgent(running.grpc_address, credentials=credentials(pki, own=False)) as agent,
    ):
        agent.hello()
        assert agent.send(step(1)) == 1


@pytest.mark.parametrize(
    ("changes", "words"), [({"key": None}, "both"), ({"ca": "missing.pem"}, "tls.ca: cannot read")]
)
def test_tls_that_cannot_work_is_a_sentence(pki, changes, words):
    with pytest.raises(ConfigError, match=words), aggregator(tls=tls(pki, **changes)):
        pass


def test_with_history_a_batch_is_on_disk_when_it_is_acknowledged(tmp_path):
    path = tmp_path / "h.sqlite"
    with (
        aggregator(history=HistoryConfig(path=str(path))) as running,
        FakeAgent(running.grpc_address) as agent,
    ):
        agent.hello()
        for number in range(1, 20):
            agent.send(step(number))
            assert running._history.steps("llm", first_step=number, limit=1)
