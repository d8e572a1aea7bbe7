"""From agents to history through a real NATS server."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from jetstream.support import WAIT_S, Node, aggregator, node, stored_steps, until

from perfd.aggregator.captures import CaptureService
from perfd.clock import SystemClock
from perfd.model import (
    BatchInterval,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    Goodbye,
    Hello,
    TrainingStep,
)
from perfd.wire import convert, encoded_messages, subjects
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.system
OUTAGE = "The aggregator is unreachable: batches wait in the spool."


def messages(server: NatsServer, stream: str = "perfd") -> int:
    return int(server.ask(lambda js: js.stream_info(stream)).state.messages)


def readers(server: NatsServer) -> int:
    """How many consumers the stream has; 0 without a stream."""

    async def count(js: Any) -> int:
        return sum(one.state.consumer_count for one in await js.streams_info() if one.config.name == "perfd")

    return server.ask(count)


def reasons(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.reason for record in caplog.records if record.message == text]  # type: ignore[attr-defined]


def create_stream(server: NatsServer, history: Path, **nats: Any) -> None:
    """Have an aggregator create the stream and leave."""
    with aggregator(history, server.address, **nats):
        assert until(lambda: readers(server))


def test_what_is_sent_is_stored_and_leaves_spool_and_stream(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with (
        NatsServer(tmp_path) as server,
        aggregator(history, server.address) as running,
        node(tmp_path / "spool", server.address) as agent,
    ):
        last = agent.produce(200)
        assert agent.uplink.wait_acknowledged(last, WAIT_S)
        assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
        assert until(lambda: agent.spool.stats().batches == 0)
        assert until(lambda: messages(server) == 0)
        counters = running.state.counters
        assert (counters.batches, counters.repeated_batches, counters.lost_batches) == (last, 0, 0)
        assert running.state.agents.connected() == 1
        agent.close()
        assert until(lambda: running.state.agents.connected() == 0)
        assert next(iter(running.state.agents)).left


def test_batches_wait_in_the_stream_while_no_aggregator_runs(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server:
        create_stream(server, history)
        with node(tmp_path / "spool", server.address) as agent:
            last = agent.produce(100)
            assert agent.uplink.wait_acknowledged(last, WAIT_S)
        server.kill()
        server.start()
        with aggregator(history, server.address) as running:
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
            assert running.state.counters.lost_batches == 0


@pytest.mark.parametrize("restarts", [False, True], ids=["the stream", "the aggregator"])
def test_what_is_sent_twice_counts_once(tmp_path: Path, restarts: bool) -> None:
    history, spool, copy = tmp_path / "history.sqlite", tmp_path / "spool", tmp_path / "copy"
    with NatsServer(tmp_path) as server:

        async def create(js: Any) -> None:
            await js.add_stream(
                name="perfd",
                subjects=["perfd.from.>"],
                retention="workqueue",
                discard="new",
                duplicate_window=120.0,
            )

        server.ask(create)
        with aggregator(history, server.address) as running:
            agent = Node(spool, server.address)
            last = agent.produce(50)
            agent.spool.close()
            # The agent is killed before it notes any acknowledgment.
            shutil.copytree(spool, copy)
            for _ in range(2):
                shutil.rmtree(spool)
                shutil.copytree(copy, spool)
                with node(spool, server.address) as again:
                    assert again.uplink.wait_acknowledged(last, WAIT_S)
                    assert until(lambda: running.state.counters.batches == last)
                assert until(lambda: messages(server) == 0)
                if restarts:
                    # After a start, a server knows only the messages that it stores.
                    server.stop()
                    server.start()
            assert stored_steps(history, again.job) == list(range(1, last + 1))
            assert running.state.counters.repeated_batches == (last if restarts else 0)


def test_a_raised_number_of_a_damaged_history_loses_no_batch(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server, node(tmp_path / "spool", server.address) as agent:
        with aggregator(history, server.address):
            assert agent.uplink.wait_acknowledged(agent.produce(50), WAIT_S)
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, 51)))
        # The stream has these, and the spool keeps them.
        assert agent.uplink.wait_acknowledged(agent.produce(20), WAIT_S)
        assert agent.spool.stats().batches >= 20
        identity = agent.spool.agent_id
        with contextlib.closing(sqlite3.connect(history)) as database, database:
            database.execute("UPDATE agents SET last_sequence = last_sequence + 1024")
        with aggregator(history, server.address) as running:
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, 71)))
            assert until(lambda: agent.spool.agent_id != identity)
            for step in range(71, 91):
                agent.batcher.add([TrainingStep(job=agent.job, step=step)])
                agent.batcher.flush(time.time_ns())
            agent.uplink.notify()
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, 91)))
            assert running.state.counters.lost_batches == 0
            with running.state.lock:
                assert set(range(71, 91)) <= set(running.state.fleet.jobs[agent.job].steps.table().step)


def test_without_a_stream_batches_stay_in_the_spool_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server:
        create_stream(server, history)
        with node(tmp_path / "spool", server.address) as agent:
            assert agent.uplink.wait_acknowledged(agent.produce(10), WAIT_S)
            with aggregator(history, server.address):
                assert until(lambda: stored_steps(history, agent.job) == list(range(1, 11)))
            server.ask(lambda js: js.delete_stream("perfd"))
            caplog.clear()
            last = agent.produce(10)
            assert not agent.uplink.wait_acknowledged(last, 3.0)
            assert agent.spool.stats().batches >= 10
            # Until servers would have elected a leader of the stream.
            assert until(lambda: reasons(caplog, OUTAGE))
            (reason,) = reasons(caplog, OUTAGE)
            assert reason.startswith("NATS: no stream takes perfd.from.>")
            with aggregator(history, server.address):
                assert agent.uplink.wait_acknowledged(last, WAIT_S)
                assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))


def test_a_stream_that_is_deleted_while_an_aggregator_reads_it_is_created_again(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with (
        NatsServer(tmp_path) as server,
        aggregator(history, server.address),
        node(tmp_path / "spool", server.address) as agent,
    ):
        assert agent.uplink.wait_acknowledged(agent.produce(10), WAIT_S)
        assert until(lambda: stored_steps(history, agent.job) == list(range(1, 11)))
        server.ask(lambda js: js.delete_stream("perfd"))
        last = agent.produce(10)
        assert agent.uplink.wait_acknowledged(last, WAIT_S)
        assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))


def test_a_full_stream_takes_nothing_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server:
        create_stream(server, history, max_bytes=20_000)
        with node(tmp_path / "spool", server.address) as agent:
            last = agent.produce(200)
            assert until(lambda: reasons(caplog, OUTAGE))
            assert "maximum bytes exceeded" in reasons(caplog, OUTAGE)[0]
            assert not agent.uplink.wait_acknowledged(last, 1.0)
            in_stream, in_spool = messages(server), agent.spool.stats().batches
            assert in_stream > 10
            assert in_spool > 100
            with aggregator(history, server.address) as running:
                assert agent.uplink.wait_acknowledged(last, WAIT_S)
                assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
                counters = running.state.counters
                assert counters.lost_batches == counters.late_batches


def test_a_store_without_room_for_the_stream_is_named_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = tmp_path / "history.sqlite"
    store = json.dumps(str(tmp_path / "small"))
    limited = f"jetstream {{ store_dir: {store}, max_file_store: 300000000 }}"
    with NatsServer(tmp_path, more=limited) as server:
        server.ask(lambda js: js.add_stream(name="other", subjects=["other"], max_bytes=299_900_000))
        with (
            node(tmp_path / "spool", server.address) as agent,
            aggregator(history, server.address, max_bytes=200_000),
        ):
            last = agent.produce(20)
            said = "Batches are not read from NATS now; they wait there."
            assert until(lambda: any("insufficient storage" in one for one in reasons(caplog, said)))
            assert agent.spool.stats().batches == last
            server.ask(lambda js: js.delete_stream("other"))
            assert agent.uplink.wait_acknowledged(last, WAIT_S)
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))


def test_an_agent_cannot_publish_as_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import nkeys  # noqa: PLC0415  (only where the tests run that need it)

    seeds = {
        name: nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER) for name in ("n0", "all")
    }
    for name, seed in seeds.items():
        (tmp_path / name).write_bytes(seed)
    keys = {name: nkeys.from_seed(bytearray(seed)).public_key.decode() for name, seed in seeds.items()}
    users = f"""authorization {{ users = [
        {{ nkey: {keys["all"]} }}
        {{ nkey: {keys["n0"]}, permissions: {{
            publish: ["perfd.from.default.*.n0"], subscribe: ["perfd.to.default.n0.>"] }} }}
    ] }}"""
    history, own = tmp_path / "history.sqlite", {"nkey_file": str(tmp_path / "n0")}
    with (
        NatsServer(tmp_path, more=users) as server,
        aggregator(history, server.address, nkey_file=str(tmp_path / "all")) as running,
    ):
        with node(tmp_path / "spool", server.address, node="n0", **own) as agent:
            assert agent.uplink.wait_acknowledged(agent.produce(5), WAIT_S)
            assert until(lambda: stored_steps(history, agent.job) == [1, 2, 3, 4, 5])
        caplog.clear()
        with node(tmp_path / "other", server.address, node="n1", **own) as thief:
            assert not thief.uplink.wait_acknowledged(thief.produce(1), 3.0)
            assert "permissions violation" in reasons(caplog, OUTAGE)[0].lower()
        caplog.clear()
        with node(tmp_path / "none", server.address, node="n0") as stranger:
            assert not stranger.uplink.wait_acknowledged(stranger.produce(1), 3.0)
            assert "authorization" in reasons(caplog, OUTAGE)[0].lower()
        assert running.state.counters.batches == 5


def test_a_message_of_another_node_or_a_newer_version_is_kept_apart_with_the_reason(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    clock = SystemClock()

    def message(named: str, *, revision: int = 1) -> bytes:
        hello = Hello(
            agent_id="forged",
            node=named,
            perfd_version="",
            sent_unix_ns=0,
            first_sequence=1,
            revision=revision,
        )
        goodbye = Goodbye(reason="", sent_unix_ns=clock.unix_ns())
        return convert.encode_message(goodbye) + encoded_messages.encode_sender(hello, "0" * 32)

    cases = {"n1": message("n0"), "n2": message("n2", revision=2), "n3": b"\xff\xff"}
    with (
        NatsServer(tmp_path) as server,
        aggregator(history, server.address) as running,
        node(tmp_path / "spool", server.address) as agent,
    ):
        assert agent.uplink.wait_acknowledged(agent.produce(1), WAIT_S)

        async def publish(js: Any) -> None:
            for name, data in cases.items():
                await js.publish(subjects.from_agent("default", None, name), data)

        server.ask(publish)
        last = agent.produce(5)
        assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
        assert until(lambda: messages(server) == 0)

        async def refused(js: Any) -> dict[str, tuple[bytes, str]]:
            found = [await js.get_msg("perfd-refused", number) for number in (1, 2, 3)]
            return {one.subject: (one.data, one.headers["Perfd-Reason"]) for one in found}

        kept = server.ask(refused)
        assert {subject.rpartition(".")[2]: data for subject, (data, _) in kept.items()} == cases
        assert [reason.split(":")[0][:40] for _, reason in kept.values()] == [
            "A message on the subject of node n1 name",
            "The agent speaks revision 2 of the proto",
            "2 bytes are not a perfd.wire.v1.AgentMes",
        ]
        assert running.state.agents.get("forged") is None


def test_one_aggregator_reads_and_the_next_one_takes_over(tmp_path: Path) -> None:
    first, second = tmp_path / "first.sqlite", tmp_path / "second.sqlite"
    with NatsServer(tmp_path) as server, node(tmp_path / "spool", server.address) as agent:
        with aggregator(first, server.address):
            assert agent.uplink.wait_acknowledged(agent.produce(10), WAIT_S)
            assert until(lambda: stored_steps(first, agent.job) == list(range(1, 11)))
            standby = aggregator(second, server.address)
            waiting = standby.__enter__()
            try:
                assert agent.uplink.wait_acknowledged(agent.produce(10), WAIT_S)
                assert until(lambda: stored_steps(first, agent.job) == list(range(1, 21)))
                assert until(lambda: messages(server) == 0)
                assert waiting.state.counters.batches == 0
            except BaseException:
                standby.__exit__(None, None, None)
                raise
        try:
            assert agent.uplink.wait_acknowledged(agent.produce(10), WAIT_S)
            until(lambda: stored_steps(second, agent.job) == list(range(21, 31)))
            assert stored_steps(second, agent.job) == list(range(21, 31))
            assert waiting.state.counters.lost_batches == 0
        finally:
            standby.__exit__(None, None, None)
        assert stored_steps(first, agent.job) == list(range(1, 21))


def test_capture_requests_reach_the_agent_and_its_answers_the_aggregator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[tuple[str, str]] = []
    monkeypatch.setattr(
        CaptureService,
        "capture_status",
        lambda _self, node, status: arrived.append((node, status.capture_id)),
    )
    request = CaptureRequest(capture_id="c1", job="j", tool=CaptureTool.NSYS, max_duration_s=1.0)
    with (
        NatsServer(tmp_path) as server,
        aggregator(None, server.address) as running,
        node(tmp_path / "spool", server.address) as agent,
    ):
        assert agent.uplink.wait_acknowledged(agent.produce(1), WAIT_S)
        assert until(lambda: running.state.agents.connected() == 1)
        running.send("n0", request)
        assert until(lambda: agent.requests == [request])
        agent.uplink.send_status(
            CaptureStatus(capture_id="c1", state=CaptureState.REFUSED, time_unix_ns=1, reason="test")
        )
        assert until(lambda: arrived == [("n0", "c1")])


def test_an_interval_that_is_asked_for_holds_until_another_aggregator_reads(tmp_path: Path) -> None:
    asked, taken_back = BatchInterval(quiet_s=2.0), BatchInterval(quiet_s=0.0)
    with NatsServer(tmp_path) as server, node(tmp_path / "spool", server.address) as agent:
        for expected in ([asked], [asked, taken_back, asked]):
            with aggregator(None, server.address) as running:
                assert agent.uplink.wait_acknowledged(agent.produce(1), WAIT_S)
                assert until(lambda running=running: running.state.agents.connected() == 1)
                running.send("n0", asked)
                assert until(lambda expected=expected: agent.requests == expected)


def test_a_server_that_was_killed_has_what_it_acknowledged(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with (
        NatsServer(tmp_path) as server,
        aggregator(history, server.address) as running,
        node(tmp_path / "spool", server.address) as agent,
    ):
        assert agent.uplink.wait_acknowledged(agent.produce(10), WAIT_S)
        server.kill()
        last = agent.produce(10)
        assert until(lambda: not agent.uplink.state.connected)
        assert agent.spool.stats().batches >= 10
        server.start()
        assert agent.uplink.wait_acknowledged(last, WAIT_S)
        assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
        assert running.state.counters.lost_batches == 0
