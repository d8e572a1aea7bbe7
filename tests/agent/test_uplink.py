from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.support import steps

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool.spool import Spool
from perfd.agent.uplink.grpc_uplink import GrpcUplink
from perfd.agent.uplink.outgoing import Timeouts
from perfd.clock import VirtualClock
from perfd.config import UplinkConfig
from perfd.model import Ack, CaptureCancel, CaptureRequest, CaptureState, CaptureStatus, CaptureTool, Goodbye
from tests.support.fake_aggregator import FakeAggregator

WAIT_S = 20.0


class Node:
    """A spool, what fills it and an uplink."""

    def __init__(self, directory: Path, address: str, **options: Any) -> None:
        config = {"backoff_initial_s": 0.02, "backoff_max_s": 0.1} | options.pop("config", {})
        self.requests: queue.SimpleQueue[CaptureRequest | CaptureCancel] = queue.SimpleQueue()
        self.spool = Spool(directory, max_bytes=options.pop("max_bytes", 1 << 30))
        self.batcher = Batcher(self.spool)
        self.uplink = GrpcUplink(
            UplinkConfig(address=address, **config),
            node="n1",
            spool=self.spool,
            clock=VirtualClock(start_unix_ns=42),
            on_request=self.requests.put,
            **options,
        )

    def produce(self, count: int = 1) -> int:
        """Make batches of one step each; returns the last sequence."""
        for _ in range(count):
            self.batcher.add(steps(1, first=self.spool.last_sequence + 1))
            self.batcher.flush(1)
        self.uplink.notify()
        return self.spool.last_sequence

    def close(self, flush_timeout_s: float = WAIT_S) -> None:
        self.uplink.stop(flush_timeout_s)
        self.spool.close()


NewNode = Callable[..., Node]


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[NewNode]:
    nodes: list[Node] = []

    def create(address: str, *, start: bool = True, **options: Any) -> Node:
        nodes.append(Node(tmp_path / "spool", address, **options))
        if start:
            nodes[-1].uplink.start()
        return nodes[-1]

    yield create
    for node in nodes:
        node.close(0.0)


@pytest.fixture
def aggregator() -> Iterator[FakeAggregator]:
    with FakeAggregator() as fake:
        yield fake


def test_batches_arrive_in_order_and_are_forgotten_once_acknowledged(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address)
    assert node.uplink.wait_acknowledged(node.produce(50), WAIT_S)
    assert aggregator.sequences() == list(range(1, 51))
    assert [batch.records for batch in aggregator.batches] == [steps(1, first=n) for n in range(1, 51)]
    assert node.spool.stats().batches == 0
    state = node.uplink.state
    assert (state.connected, state.sent_sequence, state.acknowledged_sequence) == (True, 50, 50)
    assert (state.batches_sent, state.connections) == (50, 1)


def test_the_hello_says_who_and_from_where(aggregator: FakeAggregator, new_node: NewNode) -> None:
    node = new_node(aggregator.address, start=False, capture_tools=[CaptureTool.NSYS])
    node.produce(3)
    node.spool.acknowledge(2)
    node.uplink.start()
    assert aggregator.wait_for(lambda: len(aggregator.hellos) == 1)
    hello = aggregator.hellos[0]
    assert (hello.node, hello.agent_id, hello.first_sequence) == ("n1", node.spool.agent_id, 3)
    assert (hello.capture_tools, hello.sent_unix_ns) == ((CaptureTool.NSYS,), 42)


def test_what_was_collected_while_the_aggregator_was_down_arrives_when_it_is_back(new_node: NewNode) -> None:
    with FakeAggregator() as first:
        address = first.address
        node = new_node(address)
        assert node.uplink.wait_acknowledged(node.produce(5), WAIT_S)
    node.produce(20)
    with FakeAggregator(address, after=first) as second:
        assert node.uplink.wait_acknowledged(25, WAIT_S)
        assert second.sequences() == list(range(1, 26))
    assert node.uplink.state.connections == 2


def test_a_broken_stream_is_resumed_after_what_the_aggregator_stored(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    aggregator.hold_acks()
    node = new_node(aggregator.address)
    node.produce(10)
    assert aggregator.wait_for(lambda: len(aggregator.batches) == 10)
    aggregator.drop_streams()
    assert node.uplink.wait_acknowledged(10, WAIT_S)
    assert aggregator.sequences() == list(range(1, 11))
    assert aggregator.repeats == 0


def test_a_restarted_agent_sends_what_the_one_before_left(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address, start=False)
    node.produce(5)
    node.close()
    again = new_node(aggregator.address)
    assert again.uplink.wait_acknowledged(again.produce(1), WAIT_S)
    assert aggregator.sequences() == [1, 2, 3, 4, 5, 6]
    assert {hello.agent_id for hello in aggregator.hellos} == {again.spool.agent_id}


def test_no_more_than_the_window_is_on_its_way(aggregator: FakeAggregator, new_node: NewNode) -> None:
    aggregator.hold_acks()
    node = new_node(aggregator.address, config={"max_unacknowledged": 4})
    node.produce(10)
    assert aggregator.wait_for(lambda: len(aggregator.batches) == 4)
    assert node.uplink.state.batches_sent == 4
    aggregator.release_acks()
    assert node.uplink.wait_acknowledged(10, WAIT_S)
    assert aggregator.sequences() == list(range(1, 11))


def test_what_a_full_spool_dropped_is_a_gap_for_the_aggregator(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address, start=False, max_bytes=300)
    last = node.produce(100)
    dropped = node.spool.stats().dropped_batches
    node.uplink.start()
    assert node.uplink.wait_acknowledged(last, WAIT_S)
    assert aggregator.hellos[0].first_sequence == dropped + 1
    assert aggregator.sequences() == list(range(dropped + 1, last + 1))


def test_an_aggregator_that_refuses_is_asked_again(aggregator: FakeAggregator, new_node: NewNode) -> None:
    aggregator.refuse = True
    node = new_node(aggregator.address)
    node.produce(1)
    assert not node.uplink.wait_acknowledged(1, 0.2)
    aggregator.refuse = False
    assert node.uplink.wait_acknowledged(1, WAIT_S)


def test_an_aggregator_that_never_welcomes_is_left_and_called_again(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    aggregator.silent = True
    node = new_node(aggregator.address, timeouts=Timeouts(welcome_s=0.1))
    node.produce(1)
    assert aggregator.wait_for(lambda: len(aggregator.hellos) >= 2)
    aggregator.silent = False
    assert node.uplink.wait_acknowledged(1, WAIT_S)


def test_an_aggregator_that_stops_acknowledging_is_left_and_called_again(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    aggregator.hold_acks()
    node = new_node(aggregator.address, timeouts=Timeouts(acknowledgement_s=0.1))
    node.produce(3)
    # The welcome of the next stream acknowledges what was stored.
    assert node.uplink.wait_acknowledged(3, WAIT_S)
    assert len(aggregator.hellos) == 2
    assert aggregator.repeats == 0


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", bytes([0x0A, 0x7F])])
def test_a_message_that_is_none_breaks_the_stream_and_nothing_else(
    aggregator: FakeAggregator, new_node: NewNode, garbage: bytes
) -> None:
    node = new_node(aggregator.address)
    assert node.uplink.wait_acknowledged(node.produce(1), WAIT_S)
    aggregator.send_bytes(garbage)
    assert aggregator.wait_for(lambda: len(aggregator.hellos) == 2)
    assert node.uplink.wait_acknowledged(node.produce(1), WAIT_S)
    assert aggregator.sequences() == [1, 2]


def test_a_message_of_a_newer_aggregator_is_counted_and_skipped(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address)
    assert node.uplink.wait_acknowledged(node.produce(1), WAIT_S)
    aggregator.send_bytes(bytes([0xFA, 0x3F, 0x00]))
    assert node.uplink.wait_acknowledged(node.produce(1), WAIT_S)
    assert node.uplink.state.unknown_messages == 1
    assert len(aggregator.hellos) == 1


def test_an_acknowledgement_of_what_was_never_sent_deletes_nothing(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    aggregator.hold_acks()
    node = new_node(aggregator.address, config={"max_unacknowledged": 1})
    node.produce(3)
    assert aggregator.wait_for(lambda: len(aggregator.batches) == 1)
    aggregator.send(Ack(sequence=1000))
    aggregator.release_acks()
    assert node.uplink.wait_acknowledged(3, WAIT_S)
    assert aggregator.sequences() == [1, 2, 3]


def test_a_spool_that_forgot_what_the_aggregator_has_goes_on_under_a_new_identity(
    aggregator: FakeAggregator, new_node: NewNode, caplog: pytest.LogCaptureFixture
) -> None:
    node = new_node(aggregator.address, start=False)
    old_id = node.spool.agent_id
    aggregator.last_sequences[old_id] = 7
    node.produce(9)
    with caplog.at_level(logging.WARNING, logger="perfd"):
        node.uplink.start()
        assert node.uplink.wait_acknowledged(9, WAIT_S)
    assert node.spool.agent_id != old_id
    assert [hello.agent_id for hello in aggregator.hellos] == [old_id, node.spool.agent_id]
    assert [batch.records for batch in aggregator.batches] == [steps(1, first=n) for n in range(1, 10)]
    assert aggregator.repeats == 0
    assert any("new identity" in record.getMessage() for record in caplog.records)


def test_an_aggregator_that_comes_back_with_numbers_that_were_never_sent_gets_all_under_a_new_identity(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    """As when a bit of its history flipped: it would take the next batches for repeats."""
    node = new_node(aggregator.address)
    old_id = node.spool.agent_id
    assert node.uplink.wait_acknowledged(node.produce(3), WAIT_S)
    aggregator.last_sequences[old_id] = 3 + (1 << 20)
    aggregator.drop_streams()
    node.produce(2)
    assert aggregator.wait_for(lambda: len(aggregator.batches) == 5)
    assert node.spool.agent_id != old_id
    assert node.uplink.wait_acknowledged(2, WAIT_S)
    assert [batch.records for batch in aggregator.batches] == [steps(1, first=n) for n in range(1, 6)]
    assert [batch.sequence for batch in aggregator.batches] == [1, 2, 3, 1, 2]


REQUEST = CaptureRequest(capture_id="c1", job="j1", tool=CaptureTool.NSYS, max_duration_s=5.0)


def status(state: CaptureState, capture_id: str = "c1") -> CaptureStatus:
    return CaptureStatus(capture_id=capture_id, state=state, time_unix_ns=1)


def test_capture_requests_and_cancellations_reach_the_node(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address)
    assert node.uplink.wait_acknowledged(node.produce(1), WAIT_S)
    cancel = CaptureCancel(capture_id="c1", reason="enough")
    aggregator.send(REQUEST)
    aggregator.send(cancel)
    assert node.requests.get(timeout=WAIT_S) == REQUEST
    assert node.requests.get(timeout=WAIT_S) == cancel


def test_the_newest_status_of_each_capture_is_said_again_after_a_reconnection(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address)
    node.uplink.send_status(status(CaptureState.ARMED))
    assert aggregator.wait_for(lambda: len(aggregator.statuses) == 1)
    node.uplink.send_status(status(CaptureState.RUNNING))
    node.uplink.send_status(status(CaptureState.DONE, "c0"))
    assert aggregator.wait_for(lambda: len(aggregator.statuses) == 3)
    aggregator.drop_streams()
    assert aggregator.wait_for(lambda: len(aggregator.statuses) == 5)
    again = {one.capture_id: one.state for one in aggregator.statuses[3:]}
    assert again == {"c1": CaptureState.RUNNING, "c0": CaptureState.DONE}


def test_a_stop_sends_what_is_spooled_first(aggregator: FakeAggregator, new_node: NewNode) -> None:
    node = new_node(aggregator.address)
    node.produce(200)
    node.uplink.send_status(status(CaptureState.DONE))
    node.close()
    assert aggregator.sequences() == list(range(1, 201))
    assert len(aggregator.statuses) == 1


def test_only_who_waits_for_batches_has_each_acknowledged_at_once(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address)
    node.produce(3)
    assert aggregator.wait_for(lambda: len(aggregator.batches) == 3)
    assert aggregator.hurries == 0
    for last in (5, 6):
        assert node.uplink.wait_acknowledged(node.produce(last - node.spool.last_sequence), WAIT_S)
    assert aggregator.hurries == 1
    aggregator.drop_streams()
    assert node.uplink.wait_acknowledged(node.produce(1), WAIT_S)
    assert aggregator.hurries == 1
    assert [hello.acknowledge_every for hello in aggregator.hellos] == [16, 0]


def test_a_stop_does_not_wait_for_an_aggregator_that_cannot_be_reached(new_node: NewNode) -> None:
    with FakeAggregator() as gone:
        address = gone.address
    node = new_node(address, config={"backoff_initial_s": 1000.0, "backoff_max_s": 1000.0})
    node.produce(3)
    stopped = threading.Thread(target=node.uplink.stop, args=(3600.0,), daemon=True)
    stopped.start()
    stopped.join(WAIT_S)
    assert not stopped.is_alive()
    assert node.spool.stats().batches == 3


def test_the_first_connection_an_outage_and_its_end_are_logged_once_each(
    new_node: NewNode, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="perfd"):
        with FakeAggregator() as first:
            address = first.address
            node = new_node(address)
            assert node.uplink.wait_acknowledged(node.produce(1), WAIT_S)
        node.produce(1)
        assert not node.uplink.wait_acknowledged(2, 0.5)
        with FakeAggregator(address, after=first):
            assert node.uplink.wait_acknowledged(2, WAIT_S)
            assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


def test_the_last_message_is_a_goodbye_after_everything_else(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    node = new_node(aggregator.address, config={"max_unacknowledged": 1})
    node.produce(20)
    node.uplink.stop(WAIT_S, "enough")
    assert aggregator.wait_for(lambda: bool(aggregator.goodbyes))
    assert aggregator.sequences() == list(range(1, 21))
    assert aggregator.goodbyes == [Goodbye(reason="enough", sent_unix_ns=42)]


def test_an_agent_that_cannot_send_everything_in_time_says_goodbye_all_the_same(
    aggregator: FakeAggregator, new_node: NewNode
) -> None:
    aggregator.hold_acks()
    node = new_node(aggregator.address, config={"max_unacknowledged": 1})
    node.produce(20)
    assert aggregator.wait_for(lambda: bool(aggregator.batches))
    node.uplink.stop(0.1, "enough")
    assert aggregator.wait_for(lambda: bool(aggregator.goodbyes))
    assert aggregator.sequences() == [1]
