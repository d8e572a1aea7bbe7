"""The content of a job's logs as the document `perfd.log/2`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from perfd.model import (
    Event,
    JobDescription,
    MemoryReport,
    ParallelLayout,
    PhaseTime,
    Record,
    StepPhases,
    TrainingStep,
)
from perfd_collectors.nccl.debug_log import DebugLog
from perfd_collectors.training_log.formats.user_patterns import compiled_pattern
from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.timestamps import TimeZoneGuess

SCHEMA = "perfd.log/2"
_READ_BYTES = 1 << 20
"""Read at a time, which bounds memory."""


class LogDocument:
    """Collects the records of a job's logs."""

    def __init__(self, *, framework: str | None = None, patterns: Sequence[str] = ()) -> None:
        self._framework = framework
        self._patterns = [compiled_pattern(text) for text in patterns]
        # Only time differences matter here, so any zone works.
        self._job = new_job("", TimeZoneGuess(0))
        self.description: JobDescription | None = None
        self.steps: list[TrainingStep] = []
        self.phases: dict[int, StepPhases] = {}
        """By position in `steps`, because a step can be repeated."""
        self._positions: dict[int, int] = {}
        self.events: list[Event] = []
        self.memory: list[MemoryReport] = []
        self.nccl = self._job.nccl
        """Facts from NCCL's own log lines."""
        self.lines = 0
        self.unrecognized_lines = 0
        self.examples: list[str] = []

    def read(self, log: BinaryIO) -> None:
        """Read a complete log."""
        parser = LogParser(self._job, framework=self._framework, patterns=self._patterns)
        while data := log.read(_READ_BYTES):
            parser.feed(data)
            self._keep(self._job.out.take(0))
        parser.finish()
        self._keep(self._job.out.take(0))
        self.lines += parser.lines
        self.unrecognized_lines += parser.unrecognized_lines
        self.examples += parser.examples

    def document(self) -> dict[str, Any]:
        """The document; unknown values are null."""
        job = self.description
        return {
            "schema": SCHEMA,
            "framework": job.framework if job else None,
            "framework_version": job.framework_version if job else None,
            "model": _model(job),
            "parallel": _parallel(job.parallel if job else None),
            "precision": job.precision if job else None,
            "recompute": job.recompute if job else None,
            "parameters": job.parameters if job else None,
            "train_steps": job.train_steps if job else None,
            "log_interval_steps": job.log_interval_steps if job else None,
            "logged_flops_convention": job.logged_flops_convention if job else None,
            "steps": [self._step(position) for position in range(len(self.steps))],
            "memory": [_without_job(report) for report in self.memory],
            "events": [_event(event) for event in self.events],
            "nccl": _nccl(self.nccl) if self.nccl else None,
            "lines": self.lines,
            "unrecognized_lines": self.unrecognized_lines,
            "unrecognized_examples": self.examples,
        }

    def _keep(self, records: Iterable[Record]) -> None:
        for record in records:
            match record:
                case JobDescription():
                    self.description = record
                case TrainingStep():
                    self._positions[record.step] = len(self.steps)
                    self.steps.append(record)
                case StepPhases():
                    self.phases[self._positions.get(record.step, -1)] = record
                case Event():
                    self.events.append(record)
                case MemoryReport():
                    self.memory.append(record)

    def _step(self, position: int) -> dict[str, Any]:
        block = self.phases.get(position)
        line = _without_job(self.steps[position])
        return {
            **{name: value for name, value in line.items() if name != "time_unix_ns"},
            "phases": {name: _phase(phase) for name, phase in block.phases.items()} if block else {},
        }


def _model(job: JobDescription | None) -> dict[str, Any] | None:
    return asdict(job.model) if job is not None and job.model is not None else None


def _parallel(layout: ParallelLayout | None) -> dict[str, Any]:
    known = layout or ParallelLayout()
    return {**asdict(known), "micro_batches": known.micro_batches}


def _phase(phase: PhaseTime) -> dict[str, Any]:
    by_rank: Mapping[str, float] | None = {str(rank): value for rank, value in phase.by_rank.items()} or None
    return {"min_s": phase.min_s, "max_s": phase.max_s, "by_rank": by_rank}


def _without_job(record: TrainingStep | MemoryReport) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name != "job"}


def _nccl(log: DebugLog) -> dict[str, Any]:
    communicators: dict[str, dict[str, Any]] = {}
    for (identity, _), one in sorted(log.communicators.items()):
        entry = communicators.setdefault(identity, {"id": identity, "ranks": one.ranks, "members": []})
        entry["members"].append({"rank": one.rank, "host": one.host, "pid": one.pid})
    return {
        "versions": sorted(log.versions),
        "networks": sorted(log.networks),
        "connections": dict(sorted(log.transports.items())),
        "communicators": list(communicators.values()),
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "message": event.message,
        "step": event.step,
        "rank": event.rank,
        "duration_s": event.duration_s,
        "values": dict(event.values),
    }
