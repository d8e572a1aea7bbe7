"""Turns the bytes of pods' logs into records: in this process, or in one without rights per namespace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from perfd.clock import Clock
from perfd.errors import SandboxError
from perfd.model import Event, EventKind, LogProgress, Record
from perfd.sandbox import Sandbox
from perfd_collectors.pods.cri_lines import CriLines, first_time_unix_ns
from perfd_collectors.sandboxed_records import decode_records, encode_records
from perfd_collectors.training_log.format_parser import LogContext
from perfd_collectors.training_log.formats.user_patterns import compiled_pattern
from perfd_collectors.training_log.log_parser import LogParser, new_job

log = logging.getLogger(__name__)

_READER = f"{__name__}:reader"
_SETTLED_AFTER_NS = 2 * 10**9
"""Without a further line, a step whose lines come in parts is complete. Chosen."""
_ANSWERS_WITHIN_S = 600.0
"""As for training logs: far above what 8 MiB of dense lines take on a busy core."""
_AGAIN_AFTER_S = 30.0
"""After a process ended, so that a log that ends it each time costs little. Chosen, not measured."""


class LogFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines are steps, as in the collector `training_log`."""

    framework: str | None = None
    patterns: tuple[str, ...] = ()


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a container's log, in order."""

    container: str
    data: bytes
    restarted: bool = False
    """They are the first of a container that was started again."""
    first: bool = False
    """They are the first that a container printed since it was started, for the first time or again."""
    after: list[str] = []
    """In the first bytes of a container: those of the job that had ended before it began."""
    gap: bool = False
    """Bytes before them were lost."""


class JobPieces(msgspec.Struct, frozen=True, kw_only=True):
    """What the containers of a job had since the last time, and which of them are there."""

    job: str
    now_unix_ns: int
    containers: list[str] = []
    pieces: list[LogPiece] = []
    ended: bool = False
    """Nothing more comes of it."""


class PodParsers(Protocol):
    """Parses the logs of all jobs of a node's pods."""

    def ready(self, job: str) -> None:
        """Raises `SandboxError` while the job's logs cannot be parsed: leave them unread."""

    def records(self, new: JobPieces) -> Sequence[Record]:
        """Records of the new bytes, and the progress of each log.

        After a `SandboxError` what was read before is forgotten: read the logs of the namespace anew.
        """

    def forget(self, job: str) -> None:
        """Drop what is known of a job; legal for one that is not."""

    def close(self) -> None:
        """Drop everything."""


class _ContainerParser:
    """Takes apart the lines of one container, stream by stream."""

    def __init__(self) -> None:
        self.lines = CriLines()
        self.parsers: dict[str, LogParser] = {}
        self.last_line_unix_ns: dict[str, int] = {}
        self.again = False
        """Whether it was started again."""
        self.began_unix_ns: int | None = None
        """When its first line came, until it prints a step of the job."""
        self.trained = False
        """Whether it printed a step of the job."""

    def begun(self, job: str, name: str) -> Event:
        """Its process began: steps that follow are its own, even if they repeat earlier ones exactly."""
        again, began_unix_ns = self.again, self.began_unix_ns
        self.began_unix_ns = None
        return Event(
            kind=EventKind.RESTARTED if again else EventKind.JOB_STARTED,
            time_unix_ns=began_unix_ns or 0,
            message=f"{name} was started{' again' if again else ''}.",
            job=job,
            values={"new_process": 1.0},
        )


class ParsersHere:
    """Parses in this process."""

    def __init__(self, form: LogFormat) -> None:
        self._framework = form.framework
        self._patterns = [compiled_pattern(text) for text in form.patterns]
        self._jobs: dict[str, tuple[LogContext, dict[str, _ContainerParser]]] = {}

    def ready(self, job: str) -> None:
        """It always is."""

    def records(self, new: JobPieces) -> Sequence[Record]:
        """As in `PodParsers`; raises nothing."""
        context, containers = self._jobs.setdefault(new.job, (new_job(new.job), {}))
        for gone in containers.keys() - set(new.containers):
            del containers[gone]
        for piece in new.pieces:
            if any(containers[name].trained for name in piece.after if name in containers):
                context.steps.another_process()
            container = containers.setdefault(piece.container, _ContainerParser())
            if piece.first:
                container.began_unix_ns, container.again = first_time_unix_ns(piece.data), piece.restarted
            steps, place = context.steps.counted, context.out.place
            self._parse(piece, container, new, context)
            if context.steps.counted > steps:
                container.trained = True
                if container.began_unix_ns is not None:
                    context.out.insert(place, container.begun(new.job, piece.container))
        for container in containers.values():
            for stream, last_unix_ns in container.last_line_unix_ns.items():
                if new.now_unix_ns - last_unix_ns >= _SETTLED_AFTER_NS:
                    container.parsers[stream].flush()
        records = context.out.take(new.now_unix_ns)
        return [*records, *_progress(new.job, containers)]

    def forget(self, job: str) -> None:
        """As in `PodParsers`."""
        self._jobs.pop(job, None)

    def close(self) -> None:
        """As in `PodParsers`."""
        self._jobs.clear()

    def _parse(
        self, piece: LogPiece, container: _ContainerParser, new: JobPieces, context: LogContext
    ) -> None:
        if piece.gap:
            container.lines.gap()
        if piece.restarted:
            container.lines = CriLines()
        for parser in container.parsers.values():
            if piece.restarted:
                parser.restart()
            elif piece.gap:
                parser.gap()
        for stream, data in container.lines.feed(piece.data).items():
            if stream not in container.parsers:
                container.parsers[stream] = LogParser(
                    context, framework=self._framework, patterns=self._patterns
                )
            container.parsers[stream].feed(data)
            container.last_line_unix_ns[stream] = new.now_unix_ns


def _progress(job: str, containers: dict[str, _ContainerParser]) -> list[LogProgress]:
    return [
        LogProgress(
            job=job,
            stream=f"{name}/{stream}",
            lines=parser.lines,
            read_bytes=parser.read_bytes,
            unrecognized_lines=parser.unrecognized_lines,
            last_line_unix_ns=container.last_line_unix_ns.get(stream),
        )
        for name, container in containers.items()
        for stream, parser in container.parsers.items()
    ]


class SandboxedParsers:
    """Parses in a process without rights per namespace: who takes over one has records of that namespace."""

    def __init__(self, form: LogFormat, clock: Clock) -> None:
        self._form = form
        self._clock = clock
        self._sandboxes: dict[str, Sandbox] = {}
        self._jobs: dict[str, set[str]] = {}
        """By namespace: jobs that its process knows."""
        self._problems: dict[str, tuple[float, SandboxError]] = {}

    def ready(self, job: str) -> None:
        """As in `PodParsers`."""
        again_s, problem = self._problems.get(_namespace(job), (float("-inf"), None))
        if problem is not None and self._clock.monotonic_s() < again_s:
            raise problem

    def records(self, new: JobPieces) -> Sequence[Record]:
        """As in `PodParsers`."""
        namespace = _namespace(new.job)
        if not new.pieces and new.job not in self._jobs.get(namespace, ()):
            return ()
        try:
            sandbox = self._sandboxes.get(namespace) or self._begin(namespace)
            records = decode_records(sandbox.ask(msgspec.msgpack.encode(new)))
        except SandboxError as error:
            self._end(namespace)
            log.warning(str(error), extra={"namespace": namespace})
            self._problems[namespace] = (self._clock.monotonic_s() + _AGAIN_AFTER_S, error)
            raise
        self._jobs.setdefault(namespace, set()).add(new.job)
        return [record for record in records if getattr(record, "job", None) == new.job]

    def forget(self, job: str) -> None:
        """As in `PodParsers`; the process ends with the last job of its namespace."""
        namespace = _namespace(job)
        jobs = self._jobs.get(namespace, set())
        if job not in jobs:
            return
        jobs.discard(job)
        try:
            if jobs:
                self._sandboxes[namespace].ask(
                    msgspec.msgpack.encode(JobPieces(job=job, now_unix_ns=0, ended=True))
                )
        except SandboxError:
            jobs.clear()
        if not jobs:
            self._end(namespace)

    def close(self) -> None:
        """As in `PodParsers`."""
        for namespace in list(self._sandboxes):
            self._end(namespace)

    def _begin(self, namespace: str) -> Sandbox:
        sandbox = Sandbox(_READER, answers_within_s=_ANSWERS_WITHIN_S)
        sandbox.ask(msgspec.msgpack.encode(self._form))
        self._sandboxes[namespace] = sandbox
        self._problems.pop(namespace, None)
        return sandbox

    def _end(self, namespace: str) -> None:
        self._jobs.pop(namespace, None)
        sandbox = self._sandboxes.pop(namespace, None)
        if sandbox is not None:
            sandbox.close()


def _namespace(job: str) -> str:
    """Jobs of pods are `NAMESPACE/NAME`."""
    return job.partition("/")[0]


class _Reader:
    """In the sandbox: the first message has the format of lines, each further one pieces of a job."""

    def __init__(self) -> None:
        self._parsers: ParsersHere | None = None

    def __call__(self, message: bytes) -> bytes:
        if self._parsers is None:
            self._parsers = ParsersHere(msgspec.msgpack.decode(message, type=LogFormat))
            return b""
        new = msgspec.msgpack.decode(message, type=JobPieces)
        if new.ended:
            self._parsers.forget(new.job)
            return b""
        return encode_records(self._parsers.records(new))


def reader() -> Callable[[bytes], bytes]:
    """What runs in the sandbox."""
    return _Reader()
