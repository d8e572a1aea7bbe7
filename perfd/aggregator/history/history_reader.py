"""Reads the history: what a start takes over, and what the API answers with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from perfd.aggregator.history.database import (
    HistoryDamagedError,
    HistoryDatabase,
    HistoryUnavailableError,
    Query,
)
from perfd.aggregator.history.ended_jobs import EndedJob, EndedJobs, ended_job
from perfd.aggregator.history.history_rows import STEP_COLUMNS, epoch_of, phases_of, step_of
from perfd.analysis.diagnosis import JobPast
from perfd.errors import PerfdError
from perfd.model import (
    Alert,
    Event,
    GpuInfo,
    JobDescription,
    JobOrigin,
    RankPlacement,
    ServerInfo,
    StepPhases,
    TrainingStep,
)
from perfd.nodes import Drain, Incident, NodeRecord
from perfd.rules.rule_model import EngineState

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class _StoredPast(msgspec.Struct, frozen=True, kw_only=True):
    """What of a stored summary only it has."""

    past: JobPast = JobPast()


# All are made at import: msgspec 0.22 crashes if two threads decode a type that none has decoded before, and
# the partitions of a group read their histories concurrently.
_DESCRIPTIONS, _EVENTS = msgspec.json.Decoder(JobDescription), msgspec.json.Decoder(Event)
_PASTS, _ORIGINS = msgspec.json.Decoder(_StoredPast), msgspec.json.Decoder(JobOrigin)
_ALERTS, _ENGINE_STATES = msgspec.msgpack.Decoder(Alert), msgspec.msgpack.Decoder(EngineState)
_NODE_RECORDS, _INCIDENTS = msgspec.json.Decoder(NodeRecord), msgspec.json.Decoder(Incident)
_DRAINS = msgspec.json.Decoder(Drain)
_FACTS: Mapping[str, Callable[[bytes], GpuInfo | RankPlacement | ServerInfo]] = {
    "gpu": msgspec.json.Decoder(GpuInfo).decode,
    "rank": msgspec.json.Decoder(RankPlacement).decode,
    "server": msgspec.json.Decoder(ServerInfo).decode,
}
_SUMMARY = "SELECT summary FROM jobs WHERE job = ? AND summary IS NOT NULL ORDER BY attempt DESC LIMIT 1"
"""The newest summary of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """What history knows of the newest attempt of a job."""

    job: str
    attempt: int
    started_unix_s: float | None
    received_unix_s: float
    description: JobDescription | None
    steps: Sequence[TrainingStep]
    phases: Sequence[StepPhases]
    events: Sequence[tuple[str, Event]]
    """With the node that each came from."""
    past: JobPast
    """As of its newest stored summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAgent:
    """What history knows of an agent."""

    agent_id: str
    node: str
    last_sequence: int
    """The highest one that is stored."""
    received_unix_s: float
    epoch: str
    """Its hash."""
    left: bool
    """It said goodbye, and sent nothing since."""


class HistoryReader:
    """Asks the database anew for each question. A row that cannot be read is left out, counted, logged once.

    What a start asks for is empty when a database that may be missing cannot be read; what the API asks
    for raises `PerfdError`. The SQL is what SQLite and PostgreSQL have in common.
    """

    def __init__(self, database: HistoryDatabase) -> None:
        self._database = database
        self.damaged_rows = 0
        """Rows that were left out because they cannot be read."""
        self._start_lacks_rows = False

    @property
    def lost_rows(self) -> int:
        """Rows that repairs of a damaged database could not save."""
        return self._database.lost_rows

    @property
    def unreadable_pages(self) -> int:
        """Pages of a damaged database that repairs could not read at all."""
        return self._database.unreadable_pages

    def repair(self) -> bool:
        """Have a damaged database repaired; returns whether there is a sound one now."""
        return False

    def agents(self) -> list[StoredAgent]:
        """Every agent, those that left too."""

        def agent(row: tuple[Any, ...]) -> StoredAgent:
            agent_id, node, sequence, received_unix_s, stored = msgspec.convert(
                row, tuple[str, str, int, float, str]
            )
            epoch, left = epoch_of(stored)
            return StoredAgent(
                agent_id=agent_id,
                node=node,
                last_sequence=sequence,
                received_unix_s=received_unix_s,
                epoch=epoch,
                left=left,
            )

        query = "SELECT agent_id, node, last_sequence, received_unix_s, epoch FROM agents"
        return self._rows(query, (), agent)

    def node_facts(self) -> list[tuple[str, GpuInfo | RankPlacement | ServerInfo]]:
        """What is known of nodes, with each node's name."""
        query = "SELECT node, kind, body FROM node_facts WHERE kind != 'origin' ORDER BY received_unix_s"
        return self._rows(query, (), lambda row: (row[0], _FACTS[row[1]](row[2])))

    def origins(self) -> list[tuple[str, str, JobOrigin]]:
        """Whose each job is: a node that reported it, its name here, and the origin with the node's name."""
        query = "SELECT node, key, body FROM node_facts WHERE kind = 'origin'"
        return self._rows(query, (), lambda row: (*row[:2], _ORIGINS.decode(row[2])))

    def jobs_since(self, unix_s: float, *, steps: int, phases: int) -> list[StoredJob]:
        """The jobs that sent since a time: the newest attempt, with at most that many of its newest rows."""
        query = (
            "SELECT job, attempt, started_unix_s, received_unix_s, description FROM ("
            "SELECT *, row_number() OVER (PARTITION BY job ORDER BY attempt DESC) AS newest FROM jobs "
            "WHERE received_unix_s >= ?) AS attempts WHERE newest = 1"
        )

        def jobs(reader: Query) -> list[StoredJob]:
            found = list(reader(query, (unix_s,)))
            return self._sound(found, lambda row: self._stored(reader, row, steps, phases))

        return self._at_start(jobs)

    def alerts(self, *, limit: int) -> list[Alert]:
        """The newest alerts that fired, oldest first."""
        query = (
            "SELECT body, first_step FROM alerts WHERE body IS NOT NULL ORDER BY started_unix_s DESC LIMIT ?"
        )

        def alert(row: tuple[Any, ...]) -> Alert:
            return replace(_ALERTS.decode(row[0]), first_step=row[1])

        return self._rows(query, (limit,), alert)[::-1]

    def engine_state(self) -> EngineState | None:
        """Where the rule engine was, or None."""
        query = "SELECT body FROM engine"
        found = self._rows(query, (), lambda row: _ENGINE_STATES.decode(row[0]))
        return found[0] if found else None

    def exporter_state(self, exporter: str) -> bytes | None:
        """What an exporter stored last, or None."""
        query = "SELECT body FROM exporters WHERE exporter = ?"
        found = self._rows(query, (exporter,), lambda row: bytes(row[0]))
        return found[0] if found else None

    def captures(self, decode: Callable[[bytes], _T], *, limit: int) -> list[_T]:
        """The newest captures, as `decode` makes them of their JSON, oldest first."""
        query = "SELECT body FROM captures ORDER BY requested_unix_s DESC LIMIT ?"
        return self._rows(query, (limit,), lambda row: decode(row[0]))[::-1]

    def node_ledger(self) -> tuple[list[NodeRecord], list[Incident]]:
        """What is remembered of nodes."""
        return self._node_memory("node", _NODE_RECORDS), self._node_memory("incident", _INCIDENTS)

    def node_drains(self) -> list[Drain]:
        """The nodes that were taken out of scheduling, oldest first."""
        return self._node_memory("drain", _DRAINS)

    def _node_memory(self, kind: str, decoder: msgspec.json.Decoder[_T]) -> list[_T]:
        query = "SELECT body FROM node_memory WHERE kind = ? ORDER BY unix_s"
        return self._rows(query, (kind,), lambda row: decoder.decode(row[0]))

    def steps(self, job: str, *, first_step: int, limit: int) -> list[dict[str, Any]]:
        """Stored progress lines of the newest attempt that has the step, as the columns of the table."""
        names = [*STEP_COLUMNS.split(", "), "attempt"]

        def line(row: tuple[Any, ...]) -> dict[str, Any]:
            columns = dict(zip(names, row, strict=True))
            columns["losses"] = msgspec.json.decode(columns["losses"])
            columns["warmup"] = bool(columns["warmup"])
            return columns

        query = self._database.newest_steps_query
        return self._answer(lambda reader: self._sound(reader(query, (job, first_step, limit)), line))

    def summary(self, job: str) -> Any | None:  # noqa: ANN401  (JSON of a documented schema)
        """The newest stored summary of a job that may be long over, or None."""
        found = self._answer(
            lambda reader: self._sound(reader(_SUMMARY, (job,)), lambda row: msgspec.json.decode(row[0]))
        )
        return found[0] if found else None

    def ended_jobs(
        self, words: Collection[str], known: Collection[str], *, offset: int, limit: int
    ) -> tuple[list[EndedJob], int]:
        """A page of the jobs that `known` does not name, the newest first, and how many there are in all.

        Their names contain all `words`, in any case.
        """

        def page(reader: Query) -> tuple[list[EndedJob], int]:
            jobs = EndedJobs(reader, words, known)
            return self._sound(jobs.page(offset, limit), ended_job), jobs.count()

        return self._answer(page)

    def received_unix_s(self, job: str) -> float | None:
        """When the last record of a job's newest stored attempt was received; None without one."""
        query = "SELECT received_unix_s FROM jobs WHERE job = ? ORDER BY attempt DESC LIMIT 1"
        found = self._answer(
            lambda reader: self._sound(reader(query, (job,)), lambda row: msgspec.convert(row[0], float))
        )
        return found[0] if found else None

    def _stored(self, reader: Query, row: tuple[Any, ...], steps: int, phases: int) -> StoredJob:
        job, attempt, started, received, description = row
        newest = "WHERE job = ? AND attempt = ? ORDER BY step DESC LIMIT ?"
        step_rows = reader(
            f"SELECT {STEP_COLUMNS} FROM steps {newest}",  # noqa: S608  (constants)
            (job, attempt, steps),
        )
        phase_rows = reader(
            f"SELECT step, phases FROM phases {newest}",  # noqa: S608  (a constant)
            (job, attempt, phases),
        )
        event_rows = reader("SELECT node, body FROM events WHERE job = ? ORDER BY time_unix_s", (job,))
        summary_rows = reader(_SUMMARY, (job,))
        pasts = self._sound(summary_rows, lambda one: _PASTS.decode(one[0]).past)
        described = [(description,)] if description else []
        descriptions = self._sound(described, lambda one: _DESCRIPTIONS.decode(one[0]))
        return StoredJob(
            job=msgspec.convert(job, str),
            attempt=msgspec.convert(attempt, int),
            started_unix_s=msgspec.convert(started, float | None),
            received_unix_s=msgspec.convert(received, float),
            description=descriptions[0] if descriptions else None,
            steps=self._sound(step_rows, lambda one: step_of(job, one))[::-1],
            phases=self._sound(phase_rows, lambda one: phases_of(job, *one))[::-1],
            events=self._sound(event_rows, lambda one: (one[0], _EVENTS.decode(one[1]))),
            past=pasts[0] if pasts else JobPast(),
        )

    def _sound(self, rows: Iterable[tuple[Any, ...]], decode: Callable[[tuple[Any, ...]], _T]) -> list[_T]:
        """What can be decoded."""
        decoded = []
        for row in rows:
            try:
                decoded.append(decode(row))
            except (msgspec.MsgspecError, ValueError, TypeError, LookupError, ArithmeticError) as error:
                self.damaged_rows += 1
                if self.damaged_rows == 1:
                    log.warning(
                        "A row of the history cannot be read and is left out; further ones are counted.",
                        extra={"history": self._database.place, "error": str(error)},
                    )
        return decoded

    def _rows(self, query: str, values: Sequence[Any], decode: Callable[[tuple[Any, ...]], _T]) -> list[_T]:
        """What a start reads of a query."""
        return self._at_start(lambda reader: self._sound(reader(query, values), decode))

    def _at_start(self, read: Callable[[Query], list[_T]]) -> list[_T]:
        try:
            return self._read(read)
        except (HistoryDamagedError, HistoryUnavailableError) as error:
            if self._database.required_at_start:
                raise PerfdError(f"The history at {self._database.place} cannot be read: {error}") from error
            if self._start_lacks_rows:
                # It asks for many things, and one disk fails them all.
                return []
            self._start_lacks_rows = True
            log.error(  # noqa: TRY400  (where it was raised says nothing that the error does not)
                "The history cannot be read: the start goes on without it.",
                extra={"history": self._database.place, "error": str(error)},
            )
            return []

    def _answer(self, read: Callable[[Query], _T]) -> _T:
        try:
            return self._read(read)
        except (HistoryDamagedError, HistoryUnavailableError) as error:
            raise PerfdError(f"The history at {self._database.place} cannot be read: {error}.") from error

    def _read(self, read: Callable[[Query], _T]) -> _T:
        try:
            with self._database.reading() as reader:
                return read(reader)
        except HistoryDamagedError:
            if not self.repair():
                raise
        with self._database.reading() as reader:
            return read(reader)
