"""What the next holder of a partition makes of messages that came before it, without a server."""

from __future__ import annotations

from pathlib import Path

from jetstream.support import stored_steps
from jetstream.test_sessions import Events

from perfd.aggregator.audit import AuditLog
from perfd.aggregator.history import HistoryStore, restore
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.ingest.jetstream.nats_sessions import NatsSessions
from perfd.aggregator.limits import Limits
from perfd.aggregator.partition import Partition
from perfd.aggregator.state import AggregatorState
from perfd.clock import VirtualClock
from perfd.model import AgentMessage, Batch, Goodbye, Hello, TrainingStep
from perfd.wire import convert, encoded_messages, subjects

SESSION = "0123456789abcdef" * 2
ELSEWHERE = Goodbye(reason="The node has no job there now.", sent_unix_ns=0)


class Holder:
    """An aggregator that holds the only partition, from now on."""

    def __init__(self, history: Path, epoch: int) -> None:
        clock = VirtualClock(100 * epoch)
        self.state = AggregatorState.empty(Limits(), AuditLog(None, clock), [])
        self.history = HistoryStore(SqliteDatabase(history))
        restore(
            self.state,
            self.history,
            now_unix_s=clock.unix_ns() / 1e9,
            now_s=clock.monotonic_s(),
            forgotten_after_s=3600.0,
        )
        partition = Partition(number=0, count=1, epoch=epoch, held=lambda: True, serves=lambda: True)
        intake = Ingest(self.state, clock, self.history, Events(), partition)
        self._sessions = NatsSessions(intake, "default", clock.monotonic_s)

    def take(self, message: AgentMessage, *, first: int, again: bool = False) -> None:
        sender = Hello(agent_id="a", node="n0", perfd_version="", sent_unix_ns=0, first_sequence=first)
        data = convert.encode_message(message) + encoded_messages.encode_sender(
            sender, SESSION, "", again=again
        )
        assert not self._sessions.take(subjects.to_partition("default", 0, 1, "n0"), data).refused

    def batch(self, number: int, *, again: bool = False) -> None:
        """Take the batch with this step, of this second."""
        line = TrainingStep(job="j", step=number, step_time_s=1.0)
        batch = Batch(sequence=number, sent_unix_ns=number * 10**9, records=[line])
        self.take(batch, first=number, again=again)


def test_what_was_lost_and_comes_again_after_its_agent_left_is_no_other_attempt(tmp_path: Path) -> None:
    """The stream lost one of ten batches; nothing says yet that the others are stored."""
    path = tmp_path / "history.sqlite"
    first = Holder(path, 1)
    for number in (1, 2, 3, 4, 6, 7, 8, 9, 10):
        first.batch(number)
    first.take(ELSEWHERE, first=11)
    first.history.close()
    second = Holder(path, 2)
    for number in range(5, 11):
        second.batch(number, again=True)
    second.batch(11)
    second.history.close()
    assert stored_steps(path, "j") == list(range(1, 12))
    assert second.state.fleet.jobs["j"].attempts.number == 1


def test_batches_that_come_again_after_a_restart_of_their_agent_are_no_news_to_the_next_holder(
    tmp_path: Path,
) -> None:
    """The agent said goodbye, is there again, and publishes from its spool what may not be stored."""
    path = tmp_path / "history.sqlite"
    first = Holder(path, 1)
    for number in (1, 2, 3, 5, 6):
        first.batch(number)
    first.take(Goodbye(reason="", sent_unix_ns=0), first=7)
    first.batch(2, again=True)
    first.history.close()
    second = Holder(path, 2)
    assert next(iter(second.state.agents)).last_sequence == 6
    for number in (3, 4, 5, 6, 7):
        second.batch(number, again=True)
    second.history.close()
    assert stored_steps(path, "j") == list(range(1, 8))


def test_an_agent_that_left_is_not_missed_by_the_next_holder(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    first = Holder(path, 1)
    first.batch(1)
    first.take(ELSEWHERE, first=2)
    first.history.close()
    second = Holder(path, 2)
    (known,) = second.state.agents
    assert known.left
    second.batch(2)
    assert not known.left
    second.history.close()
    third = Holder(path, 3)
    assert [one.left for one in third.state.agents] == [False]
    third.history.close()


def test_a_lost_batch_of_an_agent_that_left_does_not_make_it_look_connected(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    holder = Holder(path, 1)
    for number in (1, 3):
        holder.batch(number)
    holder.take(ELSEWHERE, first=4)
    holder.batch(2, again=True)
    (agent,) = holder.state.agents
    assert (agent.left, agent.stream) == (True, None)
    assert holder.state.fleet.nodes["n0"].left
    holder.history.close()
    assert stored_steps(path, "j") == [1, 2, 3]
    following = Holder(path, 2)
    assert [one.left for one in following.state.agents] == [True]
    # What is not from before it left shows that it is back.
    following.batch(4)
    assert [one.left for one in following.state.agents] == [False]
    following.history.close()
