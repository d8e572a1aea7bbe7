"""What is done with each message of an agent, whatever brought it: decode, judge, apply, keep."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from perfd.aggregator.audit import Refusal
from perfd.aggregator.failures import Part
from perfd.aggregator.history import HistoryStore, Statement, agent_row, job_rows, rows, size_of
from perfd.aggregator.ingest.agent_credential import ANYBODY, AgentCredential
from perfd.aggregator.ingest.agent_greeting import MAX_SEQUENCE, greet
from perfd.aggregator.ingest.agent_sessions import AgentEvents, AgentSession
from perfd.aggregator.ingest.ingest_session import IngestSession
from perfd.aggregator.ingest.table_groups import decoders
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import Limits
from perfd.aggregator.partition import Partition
from perfd.aggregator.state import AgentState, AggregatorState, BatchVerdict, Durable
from perfd.clock import Clock
from perfd.errors import BatchError, RefusedError, WireError
from perfd.model import (
    AgentMessage,
    Batch,
    CaptureFilesRemoved,
    CaptureFileUpload,
    CaptureStatus,
    Goodbye,
    Hello,
    JobOrigin,
    Record,
    Welcome,
)

log = logging.getLogger(__name__)
_SLICE_RECORDS = 1_000
"""Records that are applied at once. An agent's usual batch has about ten."""
_BETWEEN_SLICES_S = 0.001
"""For which the state is free between parts of a large batch: rounds and pages get their turn."""


class Ingest:
    """Takes messages into the state, from any thread; the `AgentSessions` of an aggregator."""

    def __init__(
        self,
        state: AggregatorState,
        clock: Clock,
        history: HistoryStore | None,
        events: AgentEvents,
        partition: Partition | None = None,
    ) -> None:
        """With a `partition`, takes only its jobs. Agents publish to several, so sequences have gaps."""
        self._state = state
        self._clock = clock
        self._history = history
        self._partition = partition
        self.events = events
        self.large = ThreadPoolExecutor(1, "perfd-large-messages")
        """Decodes messages that would keep other agents waiting."""

    def hello(
        self, hello: Hello, stream: int, credential: AgentCredential = ANYBODY
    ) -> tuple[AgentState | None, Welcome]:
        """Open a stream for an agent; see `greet`, also for what is raised."""
        return greet(
            hello,
            stream,
            credential,
            state=self._state,
            clock=self._clock,
            history=self._history,
            of_partition=self._partition is not None,
        )

    async def open(
        self, hello: Hello, number: int, credential: AgentCredential, changed: Callable[[], None]
    ) -> tuple[AgentSession | None, Welcome]:
        """See `AgentSessions`."""
        agent, welcome = self.hello(hello, number, credential)
        return (None if agent is None else IngestSession(self, agent, number, changed)), welcome

    def take_together(self, messages: Sequence[tuple[AgentSession, bytes]]) -> list[bool | RefusedError]:
        """See `AgentSessions`."""
        own = [(cast("IngestSession", session), data) for session, data in messages]
        decode = decoders([(session.tables, data) for session, data in own])
        outcomes: list[bool | RefusedError] = []
        for (session, _), decode_one in zip(own, decode, strict=True):
            try:
                outcomes.append(session.take_decoded(decode_one))
            except RefusedError as error:
                outcomes.append(error)
        return outcomes

    def close(self) -> None:
        """See `AgentSessions`."""
        self.large.shutdown(wait=False, cancel_futures=True)

    def take(
        self,
        agent: AgentState,
        decode: Callable[[], AgentMessage | None],
        stored: Callable[[], None],
        *,
        again: bool = False,
    ) -> int | None:
        """Take what `decode` returns; returns the sequence if it is a batch, also one that is left out.

        What cannot be taken is left out and counted. `stored` and `again` are as for `batch`; for the
        status of a capture, `stored` is called once what came of it is stored. Raises `RefusedError` if the
        batch cannot be the next.
        """
        sequence: int | None = None
        try:
            message = decode()
            if isinstance(message, Batch):
                sequence = message.sequence
                # Before the batch is acknowledged: history writes in order.
                for record in message.records:
                    if isinstance(record, CaptureFilesRemoved):
                        self.events.capture_files_removed(agent.node, record)
                    elif isinstance(record, CaptureFileUpload):
                        self.events.capture_file_upload(agent.node, record)
                self.batch(agent, message, stored, again=again)
            elif isinstance(message, CaptureStatus):
                self.events.capture_status(agent.node, message)
                if self._history is None:
                    stored()
                else:
                    self._history.submit((), stored)
            elif isinstance(message, Goodbye):
                log.info("An agent left.", extra={"node": agent.node, "reason": message.reason})
                self.leave(agent, message.sent_unix_ns)
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, the agent would send it again for ever)
            sequence = error.sequence if isinstance(error, BatchError) else None
            if sequence is None:
                # Nothing of it will be stored.
                stored()
            self._left_out(agent, error, sequence, stored)
        return sequence

    def batch(
        self, agent: AgentState, batch: Batch, stored: Callable[[], None], *, again: bool = False
    ) -> None:
        """Take a batch. `stored` is called from another thread when it is; without history it is at once.

        When history has no room for it, it is not called: the agent keeps the batch, and sends it again.
        With `again`, a number that was passed does not make it a repeat: it may be one that was lost.
        Raises `WireError` when the batch cannot be one, `RefusedError` when its number cannot be the next.
        """
        if not 0 < batch.sequence <= MAX_SEQUENCE:
            raise WireError(f"The sequence {batch.sequence} of a batch is out of range.")
        state = self._state
        started_s = self._clock.monotonic_s()
        unix_ns = self._clock.unix_ns()
        with state.lock:
            verdict, lost = self._judge(agent, batch.sequence)
            state.counters.lost_batches += lost
            agent.received_s = started_s
            state.counters.resent_batches += again
            if verdict is BatchVerdict.REPEAT:
                state.counters.repeated_batches += 1
                if not again or self._history is None:
                    return
                verdict = BatchVerdict.AGAIN
            state.counters.batches += verdict is not BatchVerdict.AGAIN
            state.counters.late_batches += verdict is BatchVerdict.LATE
            agent.batches += 1
            agent.dropped_records = max(agent.dropped_records, batch.dropped_records)
            agent.unknown_records += batch.unknown_records
            for bound, count in batch.cut.items():
                state.counters.rejected[bound] += count
            agent.saw_clock(batch.sent_unix_ns, unix_ns)
            source = RecordSource(
                agent_id=agent.agent_id,
                node=agent.node,
                sent_unix_s=batch.sent_unix_ns / 1e9,
                now_s=started_s,
                late=verdict is BatchVerdict.LATE,
                namespace=agent.namespace,
            )
            records = batch.records if self._partition is None else self._partition.own(batch.records)
            statements = self._apply(agent, records[:_SLICE_RECORDS], source, verdict, unix_ns)
        for first in range(_SLICE_RECORDS, len(records), _SLICE_RECORDS):
            # Rounds and other agents have their turn: a lock alone would be taken again at once.
            time.sleep(_BETWEEN_SLICES_S)
            with state.lock:
                some = records[first : first + _SLICE_RECORDS]
                statements += self._apply(agent, some, source, verdict, unix_ns)
        self._keep(agent, batch.sequence, statements, stored, unix_ns)

    def _apply(
        self,
        agent: AgentState,
        records: Sequence[Record],
        source: RecordSource,
        verdict: BatchVerdict,
        unix_ns: int,
    ) -> list[Statement]:
        """Take records of a batch into the state; returns what history has to keep."""
        started_s = self._clock.monotonic_s()
        fleet = self._state.fleet
        take = fleet.again if verdict is BatchVerdict.AGAIN else fleet.apply
        durable = take(records, source)
        self._state.counters.ingest_s += self._clock.monotonic_s() - started_s
        return self._statements(agent, durable, unix_ns / 1e9)

    def next_sequence(self, hello: Hello, waiting_before: int) -> int:
        """From which number on batches of an agent may come; of a stranger, so many before its first one."""
        with self._state.lock:
            known = self._state.agents.get(hello.agent_id)
        first = max(1, hello.first_sequence - waiting_before) if known is None else known.kept_sequence + 1
        return min(first, hello.first_sequence)

    def may_overtake(self, agent: AgentState, batch: Batch) -> bool:
        """Whether a batch may be taken before others that are missing: it begins no job without its origin.

        Of a job's labels, which name its alerts, the first batches say the most.
        """
        with self._state.lock:
            if batch.sequence <= agent.last_sequence + 1:
                return True
            records = batch.records if self._partition is None else self._partition.own(batch.records)
            known = {record.job for record in records if isinstance(record, JobOrigin)}
            named = {job for record in records if (job := getattr(record, "job", None))}
            return all(job in self._state.fleet.jobs for job in named - known)

    def delivered(self, agent: AgentState, sequence: int) -> None:
        """Note that a stream, which keeps what is not stored, delivers a batch."""
        with self._state.lock:
            if agent.restored:
                agent.restored = False
                agent.begin_at(sequence)

    def unkept(self, agent: AgentState) -> bool:
        """Whether the agent has to send again what history had no room for, and there is room now."""
        return agent.refused and self._history is not None and self._history.has_room

    @property
    def has_history(self) -> bool:
        """Whether batches are stored later than they are applied."""
        return self._history is not None

    def _keep(
        self,
        agent: AgentState,
        sequence: int,
        statements: Sequence[Statement],
        stored: Callable[[], None],
        unix_ns: int,
    ) -> None:
        def done() -> None:
            agent.stored_sequence = max(agent.stored_sequence, sequence)
            stored()

        if agent.refused and sequence > agent.kept_sequence:
            # It comes after a batch that history had no room for, and waits for that one.
            return
        if self._history is None:
            agent.stored_sequence = max(agent.stored_sequence, sequence)
        elif not self._history.submit([*statements, agent_row(agent, sequence, unix_ns / 1e9)], done):
            agent.refuse(sequence)

    def has_left(self, agent_id: str) -> bool:
        """Whether an agent said goodbye, and has not come back since."""
        with self._state.lock:
            known = self._state.agents.get(agent_id)
            return known is not None and known.left

    def leave(self, agent: AgentState, sent_unix_ns: int) -> None:
        """Note that an agent left, or that a late batch of one that left does not mean that it is back."""
        with self._state.lock:
            agent.left = True
            now_s = self._clock.monotonic_s()
            self._state.fleet.leave(agent.agent_id, agent.node, sent_unix_ns / 1e9, now_s)
        if self._history is not None:
            # It is not missed after a restart. What it sent may still come, and is recognized.
            now_unix_s = self._clock.unix_ns() / 1e9
            self._history.submit([agent_row(agent, agent.stored_sequence, now_unix_s)])

    def left(self, agent: AgentState, stream: int) -> None:
        """Close a stream."""
        with self._state.lock:
            self._state.agents.left(agent, stream)

    @property
    def limits(self) -> Limits:
        return self._state.fleet.limits

    def rejected(self, bound: str) -> None:
        with self._state.lock:
            self._state.counters.rejected[bound] += 1

    def malformed(self) -> None:
        with self._state.lock:
            self._state.counters.malformed_messages += 1

    def _left_out(
        self, agent: AgentState, error: Exception, sequence: int | None, stored: Callable[[], None]
    ) -> None:
        """Count a message of a stream that goes on without it; its batch is acknowledged in its turn.

        `sequence` is that of the batch, where it can be read. A batch is counted as lost, where it
        cannot by the gap that the next one shows.
        """
        state = self._state
        with state.lock:
            state.counters.malformed_messages += 1
            agent.malformed_messages += 1
            first = agent.malformed_messages == 1
            verdict = BatchVerdict.REPEAT
            if sequence is not None and 0 < sequence <= MAX_SEQUENCE:
                verdict, lost = self._judge(agent, sequence)
                state.counters.lost_batches += lost + (verdict is BatchVerdict.NEW)
        if first:
            log.warning(
                "A message of an agent cannot be decoded: it is left out, counted, and its stream goes on. "
                "Further ones of this agent are only counted.",
                extra={"node": agent.node, "sequence": sequence, "reason": str(error)},
            )
        if not isinstance(error, WireError):
            state.failures.note(Part.RECORD, error, node=agent.node)
        if sequence is not None and verdict is not BatchVerdict.REPEAT:
            self._keep(agent, sequence, [], stored, self._clock.unix_ns())

    def refuse(self, sentence: str, *, actor: str) -> RefusedError:
        return self._state.audit.refusal(Refusal.AGENT_CREDENTIAL, sentence, actor=actor)

    def _judge(self, agent: AgentState, sequence: int) -> tuple[BatchVerdict, int]:
        """What to do with a batch, and how many before it are lost; raises `RefusedError` for a jump."""
        limits = self._state.fleet.limits
        if agent.jumps(sequence, limits):
            sentence = (
                f"Batch {sequence} cannot follow {agent.last_sequence}: connect again and say what is lost."
            )
            raise self._state.audit.refusal(Refusal.SEQUENCE_JUMP, sentence, actor=agent.node)
        verdict, lost = agent.take(sequence, limits)
        return verdict, lost if self._partition is None else 0

    def _statements(self, agent: AgentState, durable: list[Durable], now_unix_s: float) -> list[Statement]:
        if self._history is None:
            return []
        jobs = self._state.fleet.jobs
        statements: list[Statement] = []
        for name, attempt in {(item.job, item.attempt): None for item in durable if item.job}:
            job = jobs.get(name)
            statements += job_rows(name, attempt, job.attempts.started_unix_s if job else None, now_unix_s)
        for item in durable:
            with self._state.failures.contained(Part.HISTORY, node=item.node):
                statements += rows(item, now_unix_s)
        size_bytes = sum(map(size_of, statements))
        if agent.history.take(size_bytes, self._clock.monotonic_s(), self._state.fleet.limits):
            return statements
        self._state.counters.rejected["history_bytes_per_agent_and_day"] += len(statements)
        return []
