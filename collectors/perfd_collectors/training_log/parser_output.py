"""Collects the parsers' output: records in order, and the job's description."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perfd.model import (
    Event,
    EventKind,
    JobDescription,
    JobOutcome,
    MemoryReport,
    Record,
    StepPhases,
    TrainingStep,
)
from perfd_collectors.training_log.timestamps import TimeZoneGuess

_MAX_EVENTS_PER_KIND = 200
"""Further events of the kinds below are dropped: thousands of ranks can fail at once."""
_BOUNDED = frozenset({EventKind.LOG_ERROR, EventKind.NCCL_WARNING, EventKind.RESTARTED})
_MAX_MESSAGE_CHARS = 500
"""Longer messages are cut."""

_SECOND_NS = 10**9
_PROMPT_NS = 3 * _SECOND_NS // 2
"""From the printed second to the arrival of a line that was not held back."""


class _Draft(NamedTuple):
    """A record without its time, and what is known of that."""

    printed_ns: int | None
    received_ns: int | None
    """When the container runtime received the line."""
    written_ns: int | None
    """When the newest of the bytes that were read together was written."""
    build: Callable[[int], Record]

    def unix_ns(self, zone: TimeZoneGuess) -> int | None:
        """The printed time if its zone is known, else when the line came."""
        came_ns = self.received_ns if self.received_ns is not None else self.written_ns
        printed_ns = None if self.printed_ns is None else zone.unix_ns(self.printed_ns)
        if printed_ns is None:
            return came_ns
        if came_ns is not None and printed_ns % _SECOND_NS == 0 and 0 <= came_ns - printed_ns <= _PROMPT_NS:
            # Printed without a fraction: when it came says more.
            return min(came_ns, printed_ns + _SECOND_NS)
        return printed_ns


class ParserOutput:
    """The records of one job's logs.

    Parsers know the printed time of a line, without a time zone; `take` knows when it was
    read. Records get their time in `take`.
    """

    def __init__(self, job: str, zone: TimeZoneGuess | None = None) -> None:
        self.description = JobDescription(job=job, framework="")
        self._job = job
        self._zone = zone or TimeZoneGuess()
        self._drafts: list[_Draft] = []
        self._received_ns: int | None = None
        self._written_ns: int | None = None
        self._described = self.description
        self._events: Counter[EventKind] = Counter()

    @property
    def job(self) -> str:
        """Name of the logs' job."""
        return self._job

    def received(self, unix_ns: int | None) -> None:
        """Note when a container runtime received the line that is parsed next; None if none did."""
        self._received_ns = unix_ns

    def written(self, unix_ns: int | None) -> None:
        """Note when the newest of the bytes that are parsed next was written; None if that is not known."""
        self._written_ns = unix_ns

    def describe(self, **fields: Any) -> None:  # noqa: ANN401  (checked by `replace`)
        """Add fields of the job's description; None is ignored."""
        current = self.description
        news = {
            name: value for name, value in fields.items() if value not in (None, getattr(current, name, None))
        }
        # Most lines say what the one before said, and a copy of all fields would cost more than they do.
        if news:
            self.description = replace(current, **news)

    def describe_framework(self, name: str) -> None:
        """Set the framework unless it is known, of lines that trainers on top of it print, too."""
        if not self.description.framework:
            self.describe(framework=name)

    def describe_layout(self, **sizes: int | None) -> None:
        """Add sizes of the parallel layout; None is ignored."""
        known: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
        self.describe(parallel=replace(self.description.parallel, **known))

    def add_arguments(self, arguments: Mapping[str, str]) -> None:
        """Add the job's options under their own names."""
        self.describe(arguments={**self.description.arguments, **arguments})

    def step(
        self, step: TrainingStep, printed_ns: int | None, *, steps_covered: int = 1, warmup: bool = False
    ) -> None:
        """Add a progress line that covers so many steps; its time is set in `take`."""

        def build(unix_ns: int) -> TrainingStep:
            return replace(step, time_unix_ns=unix_ns, steps_covered=steps_covered, warmup=warmup)

        self._add(printed_ns, build)

    def add(self, record: StepPhases | MemoryReport) -> None:
        """Add a record without a time."""
        self._add(None, lambda _: record)

    def memory(self, step: int, rank: int | None, **sizes_bytes: float | None) -> None:
        """Add a report of memory, if any of its sizes is known."""
        if any(size is not None for size in sizes_bytes.values()):
            self.add(MemoryReport(job=self._job, step=step, rank=rank, **sizes_bytes))

    def event(
        self,
        kind: EventKind,
        message: str,
        *,
        printed_ns: int | None = None,
        step: int | None = None,
        rank: int | None = None,
        duration_s: float | None = None,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Add an event; dropped beyond a bound for kinds that every rank may report."""
        self._events[kind] += 1
        if self._events[kind] > _MAX_EVENTS_PER_KIND and kind in _BOUNDED:
            return
        short = message[:_MAX_MESSAGE_CHARS]

        def build(unix_ns: int) -> Event:
            return Event(
                kind=kind,
                time_unix_ns=unix_ns,
                message=short,
                job=self._job,
                step=step,
                rank=rank,
                duration_s=duration_s,
                values=values or {},
                # A trainer that says that it ended is done with its work.
                outcome=JobOutcome.COMPLETED if kind is EventKind.JOB_ENDED else None,
            )

        self._add(printed_ns, build)

    @property
    def place(self) -> int:
        """Where the next record goes, for `insert`."""
        return len(self._drafts)

    def insert(self, place: int, event: Event) -> None:
        """Add an event before the records that were added since `place` was the next one."""
        self._drafts.insert(place, _Draft(None, event.time_unix_ns, None, lambda _: event))

    def take(self, read_unix_ns: int, newest_unix_ns: int | None = None) -> Sequence[Record]:
        """All records since the last call. `newest_unix_ns` is when the newest was printed, if known."""
        printed = (draft.printed_ns for draft in reversed(self._drafts))
        newest = next((at for at in printed if at is not None), None)
        if newest is not None and newest_unix_ns is not None:
            self._zone.learn(newest, newest_unix_ns)
        records: list[Record] = []
        if self.description != self._described and self.description.framework:
            self._described = self.description
            records.append(self.description)
        for draft in self._drafts:
            if draft.printed_ns is not None and draft.received_ns is not None:
                self._zone.learn(draft.printed_ns, draft.received_ns)
            unix_ns = draft.unix_ns(self._zone)
            records.append(draft.build(read_unix_ns if unix_ns is None else unix_ns))
        self._drafts.clear()
        return records

    def _add(self, printed_ns: int | None, build: Callable[[int], Record]) -> None:
        self._drafts.append(_Draft(printed_ns, self._received_ns, self._written_ns, build))


def training_step(
    job: str,
    step: int,
    values: Mapping[str, float | None],
    losses: Mapping[str, float],
    extras: Mapping[str, float],
) -> TrainingStep:
    """A `TrainingStep` from numbers by the names of its fields; other names are ignored.

    A time or a rate that is not above 0 was not measured: it is unknown.
    """
    return TrainingStep(
        job=job,
        step=step,
        step_time_s=_measured(values.get("step_time_s")),
        flops_per_s_per_gpu=_measured(values.get("flops_per_s_per_gpu")),
        tokens_per_s=_measured(values.get("tokens_per_s")),
        samples_per_s=_measured(values.get("samples_per_s")),
        global_batch_size=_count(values.get("global_batch_size")),
        consumed_samples=_count(values.get("consumed_samples")),
        consumed_tokens=_count(values.get("consumed_tokens")),
        learning_rate=values.get("learning_rate"),
        losses=losses,
        grad_norm=values.get("grad_norm"),
        loss_scale=values.get("loss_scale"),
        skipped_steps=_count(values.get("skipped_steps")),
        nan_steps=_count(values.get("nan_steps")),
        energy_per_gpu_j=values.get("energy_per_gpu_j"),
        power_per_gpu_w=values.get("power_per_gpu_w"),
        mfu_ratio=values.get("mfu_ratio"),
        extras=extras,
    )


def _measured(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _count(value: float | None) -> int | None:
    if value is None or not math.isfinite(value) or value < 0 or value != int(value):
        return None
    return int(value)
