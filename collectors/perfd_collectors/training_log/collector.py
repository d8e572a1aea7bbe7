"""The `training_log` collector: turns new log lines into records."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from perfd.collector import CollectorSpec, OnUnavailable, Options, Settings
from perfd.errors import ConfigError, Unavailable
from perfd.model import LogProgress, Record
from perfd_collectors.file_follower import Chunk, FileFollower
from perfd_collectors.ranks.processes import ProcessTable
from perfd_collectors.training_log.formats import FORMATS
from perfd_collectors.training_log.formats.user_patterns import compiled_pattern
from perfd_collectors.training_log.job_metric_files import JobFiles
from perfd_collectors.training_log.job_output import JobOutput, JobProcesses
from perfd_collectors.training_log.log_parser import LogParser, new_job
from perfd_collectors.training_log.log_sources import (
    PRINTED,
    LogSource,
    PrintedSource,
    StdinSource,
    matching_files,
    torchrun_files,
)
from perfd_collectors.training_log.metric_files import MetricFileParser, is_metric_file, metric_file_reader
from perfd_collectors.training_log.replay import RecordedLog
from perfd_collectors.training_log.sandboxed import ParserSettings, SandboxedTrainingLog

NAME = "training_log"
_MAX_READ_BYTES = 8 * 1024 * 1024
"""Read per collect from all logs, which bounds memory and time. Chosen, not measured."""
_LATE_NS = 2 * 10**9
"""A file's time may be so much before the last reading: some file systems count whole seconds."""
_SETTLED_AFTER_NS = 2 * 10**9
"""A block of lines is complete after 2 s without a new line: a program prints it at once."""


class TrainingLogOptions(Options, frozen=True):
    """Where the training log is. Files may appear later."""

    paths: tuple[str, ...] = ()
    """Files, or patterns with `*`, `?` and `**`."""
    log_dir: str | None = None
    """The folder of `torchrun --log-dir`; the newest attempt of the newest run is followed."""
    job_output: str | None = None
    """Number of a SLURM job: also read the files that its processes on this node have as output."""
    job_output_uid: int | None = None
    """The job's user; default: that of the agent."""
    stdin: bool = False
    """Also read standard input."""
    root_pid: int | None = None
    """Also read the metric files (TensorBoard, W&B, CSV) of this process and its descendants."""
    framework: str | None = None
    """Parse only this framework's lines; default: those of all known ones."""
    patterns: tuple[str, ...] = ()
    """Regular expressions for custom lines, with the group `step` (docs/formats/training-logs.md)."""
    from_start: bool = True
    """Also read existing content: model and layout are at a log's start."""
    max_read_bytes: int = _MAX_READ_BYTES
    """Limit per collect."""


class TrainingLogCollector:
    """Reads all logs of one job on this node. Lines printed by several ranks count once."""

    def __init__(
        self,
        sources: Sequence[LogSource],
        settings: Settings,
        *,
        framework: str | None = None,
        patterns: Sequence[str] = (),
        max_read_bytes: int = _MAX_READ_BYTES,
    ) -> None:
        self._sources = sources
        self._clock = settings.clock
        self._ending = settings.ending
        self._framework = framework
        self._patterns = [compiled_pattern(text) for text in patterns]
        self._max_read_bytes = max_read_bytes
        self._job = new_job(settings.job)
        self._parsers: dict[str, LogParser | MetricFileParser] = {}
        self._last_line_unix_ns: dict[str, int] = {}
        self._times_are_exact: dict[str, bool] = {}
        self._collected_unix_ns: int | None = None

    def collect(self) -> Sequence[Record]:
        """Records of the lines since the last call, and the progress of each log."""
        limit = self._max_read_bytes
        now_unix_ns = self._clock.unix_ns()
        newest_unix_ns: int | None = None
        now_s = self._clock.monotonic_s()
        for source in self._sources:
            for chunk in source.poll(limit):
                limit -= len(chunk.data)
                self._job.steps.now_s = None if chunk.backlog else now_s
                self._parse(chunk, now_unix_ns)
                # The file's modification time is the time of lines printed before the agent started.
                written_unix_ns = min(chunk.newest_unix_ns or now_unix_ns, now_unix_ns)
                newest_unix_ns = None if chunk.backlog else written_unix_ns
        for stream, last_unix_ns in self._last_line_unix_ns.items():
            if self._ending.is_set() or now_unix_ns - last_unix_ns >= _SETTLED_AFTER_NS:
                self._flush(self._parsers[stream], now_unix_ns)
        self._collected_unix_ns = now_unix_ns
        records = list(self._job.out.take(now_unix_ns, newest_unix_ns))
        return records + [self._progress(stream, parser) for stream, parser in self._parsers.items()]

    def close(self) -> None:
        """Close the logs."""
        for source in self._sources:
            source.close()

    def _flush(self, parser: LogParser | MetricFileParser, now_unix_ns: int) -> None:
        if isinstance(parser, MetricFileParser):
            parser.flush(now_unix_ns)
        else:
            parser.flush()

    def _written_unix_ns(self, chunk: Chunk, now_unix_ns: int) -> int | None:
        """When the newest of these bytes was written; None unless a file's clock agrees with ours."""
        written_unix_ns = chunk.newest_unix_ns
        if written_unix_ns is None or chunk.backlog or chunk.stream == PRINTED:
            return written_unix_ns
        earliest_ns = 0 if self._collected_unix_ns is None else self._collected_unix_ns - _LATE_NS
        return written_unix_ns if earliest_ns <= written_unix_ns <= now_unix_ns else None

    def _parse(self, chunk: Chunk, now_unix_ns: int) -> None:
        parser = self._parsers.get(chunk.stream)
        if parser is None:
            reader = metric_file_reader(chunk.stream)
            parser = self._parsers[chunk.stream] = (
                LogParser(self._job, framework=self._framework, patterns=self._patterns)
                if reader is None
                else MetricFileParser(self._job, chunk.stream, reader)
            )
        if chunk.begins_anew:
            parser.restart()
        if isinstance(parser, MetricFileParser):
            parser.feed(chunk.data, min(chunk.newest_unix_ns or now_unix_ns, now_unix_ns))
            self._last_line_unix_ns[chunk.stream] = now_unix_ns
        else:
            self._parse_log(parser, chunk, now_unix_ns)

    def _parse_log(self, parser: LogParser, chunk: Chunk, now_unix_ns: int) -> None:
        if chunk.attached:
            parser.attach()
        if chunk.lost:
            parser.gap()
        lines = parser.lines
        written_unix_ns = self._written_unix_ns(chunk, now_unix_ns)
        self._times_are_exact[chunk.stream] = written_unix_ns is not None
        self._job.out.written(written_unix_ns)
        parser.feed(chunk.data)
        if chunk.ended:
            parser.finish()
        if parser.lines > lines:
            self._last_line_unix_ns[chunk.stream] = now_unix_ns

    def _progress(self, stream: str, parser: LogParser | MetricFileParser) -> LogProgress:
        return LogProgress(
            job=self._job.out.job,
            stream=stream,
            lines=parser.lines,
            read_bytes=parser.read_bytes,
            unrecognized_lines=parser.unrecognized_lines,
            last_line_unix_ns=self._last_line_unix_ns.get(stream),
            times_are_exact=self._times_are_exact.get(stream, False),
        )


def create(options: TrainingLogOptions, settings: Settings) -> TrainingLogCollector | SandboxedTrainingLog:
    """A collector for the logs in the options."""
    if options.framework is not None and options.framework not in FORMATS:
        raise ConfigError(
            f"collectors.training_log.options.framework: {options.framework!r} is unknown; "
            f"use one of {', '.join(FORMATS)}."
        )
    for text in options.patterns:
        compiled_pattern(text)
    if not (
        options.paths
        or options.stdin
        or settings.printed is not None
        or {options.log_dir, options.job_output, options.root_pid} != {None}
    ):
        raise Unavailable(
            "No training log is configured: set paths, log_dir, job_output or stdin in "
            "collectors.training_log.options."
        )
    if settings.sandboxed:
        return SandboxedTrainingLog(
            partial(_sources, options, settings),
            ParserSettings(
                node=settings.node, job=settings.job, framework=options.framework, patterns=options.patterns
            ),
            settings.clock,
            options.max_read_bytes,
        )
    return TrainingLogCollector(
        _sources(options, settings),
        settings,
        framework=options.framework,
        patterns=options.patterns,
        max_read_bytes=options.max_read_bytes,
    )


def _sources(options: TrainingLogOptions, settings: Settings) -> list[LogSource]:
    sources: list[LogSource] = []
    finders: list[Callable[[], Mapping[str, Path]]] = []
    if options.paths:
        finders.append(partial(matching_files, options.paths))
    if options.job_output is not None:
        uid = os.geteuid() if options.job_output_uid is None else options.job_output_uid
        processes = JobProcesses(job=options.job_output, uid=uid)
        finders.append(JobOutput(settings.proc, processes, settings.clock))
        finders.append(JobFiles(settings.proc, partial(processes.folders, settings.proc), settings.clock))
    if options.root_pid is not None:
        descendants = partial(_descendants, settings.proc, options.root_pid)
        finders.append(JobFiles(settings.proc, descendants, settings.clock))
    if finders:
        # One follower reads a file once, also when it is found in several ways. What is not made of lines is
        # read from its start, or not at all.
        sources.append(FileFollower(partial(_logs, finders, of_metrics=False), from_start=options.from_start))
        sources.append(FileFollower(partial(_logs, finders, of_metrics=True), from_start=True))
    if options.log_dir is not None:
        tree = partial(torchrun_files, Path(options.log_dir))
        sources.append(FileFollower(tree, from_start=options.from_start))
    if options.stdin:
        sources.append(StdinSource())
    if settings.printed is not None:
        sources.append(PrintedSource(settings.printed))
    return sources


def _logs(finders: Sequence[Callable[[], Mapping[str, Path]]], *, of_metrics: bool) -> Mapping[str, Path]:
    found = {name: path for one in finders for name, path in one().items()}
    return {name: path for name, path in found.items() if is_metric_file(name) is of_metrics}


def _descendants(proc: Path, root_pid: int) -> Sequence[Path]:
    return [proc / str(pid) for pid in ProcessTable(proc).descendants(root_pid)]


SPEC = CollectorSpec(
    name=NAME,
    options=TrainingLogOptions,
    create=create,
    on_unavailable=OnUnavailable.IGNORE,
    replay={"training-log": RecordedLog},
)
