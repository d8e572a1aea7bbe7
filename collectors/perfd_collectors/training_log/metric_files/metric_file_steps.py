"""Turns the rows of a metric file into steps of the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from perfd.model import EventKind
from perfd_collectors.training_log.format_parser import LogContext
from perfd_collectors.training_log.metric_files.csv_file import CsvFileReader
from perfd_collectors.training_log.metric_files.event_file import EventFileReader
from perfd_collectors.training_log.metric_files.metric_rows import MetricFileReader, MetricRow
from perfd_collectors.training_log.metric_files.wandb_file import WandbFileReader
from perfd_collectors.training_log.metric_files.wandb_run import better_run, run_of_file
from perfd_collectors.training_log.step_fields import StepFields, add_step, fields_of
from perfd_collectors.training_log.step_order import ProgressSource

_READERS: Mapping[re.Pattern[str], Callable[[], MetricFileReader]] = {
    re.compile(r".*events\.out\.tfevents\..*"): EventFileReader,
    re.compile(r".*\.wandb"): WandbFileReader,
    re.compile(r"metrics\.csv"): CsvFileReader,
}
"""By a file's name."""
_NOT_TRAINING = frozenset({"val", "valid", "validation", "eval", "evaluation", "test"})
"""Folders of writers whose losses are of no training step, as Keras has one."""
_OTHER_AXIS = re.compile(r"epoch_|.* vs ")
"""Names of Keras, which counts epochs, and of Megatron-LM (`lm loss vs samples`): their step is none."""


def is_metric_file(name: str) -> bool:
    """Whether a file, by its name, is one that `metric_file_reader` reads."""
    return any(pattern.fullmatch(PurePath(name).name) for pattern in _READERS)


def metric_file_reader(name: str) -> MetricFileReader | None:
    """The reader of a file by its name; None for a log of lines."""
    path = PurePath(name)
    return next((reader() for pattern, reader in _READERS.items() if pattern.fullmatch(path.name)), None)


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest step of a file."""

    step: int
    unix_ns: int
    tokens: float | None


class MetricFileParser:
    """Parses one metric file of a job; the records are in `job.out`.

    Several loggers of a job write the same steps: one counts at a time (`MetricFileSource`).
    """

    def __init__(self, job: LogContext, stream: str, reader: MetricFileReader) -> None:
        self._job = job
        self._stream = stream
        self._reader = reader
        self._evaluates = bool(_NOT_TRAINING & set(PurePath(stream).parts[:-1]))
        self._started_unix_ns: int | None = None
        self._newest: _Newest | None = None
        self.lines = 0
        """Rows with a step."""
        self.read_bytes = 0
        self.unrecognized_lines = 0
        """Rows with no loss, time or rate of training."""

    def feed(self, data: bytes, written_unix_ns: int) -> None:
        """Parse the next bytes of the file, which were written by a time."""
        self.read_bytes += len(data)
        self._rows(self._reader.feed(data), written_unix_ns)
        if isinstance(self._reader, WandbFileReader) and (run := self._reader.run) is not None:
            self._name_run(run_of_file(self._stream, run.entity, run.project, run.run_id))

    def _name_run(self, found: str | None) -> None:
        out = self._job.out
        if found is not None:
            out.describe(wandb_run=better_run(out.description.wandb_run, found))

    def flush(self, now_unix_ns: int) -> None:
        """Note that nothing came for a while."""
        self._rows(self._reader.flush(), now_unix_ns)

    def restart(self) -> None:
        """Note that the file was replaced or truncated."""
        self._reader.restart()

    def _rows(self, rows: Iterator[MetricRow], written_unix_ns: int) -> None:
        undated: tuple[MetricRow, StepFields] | None = None
        for row in rows:
            self.lines += 1
            found = fields_of(
                (name, value) for name, value in row.values.items() if not _OTHER_AXIS.match(name)
            )
            if self._evaluates or not (found.losses or found.timed):
                if found.evaluates:
                    self._job.out.received(row.unix_ns or written_unix_ns)
                    self._job.out.event(EventKind.EVALUATION, "Evaluation.", step=row.step)
                else:
                    self.unrecognized_lines += 1
            elif row.unix_ns is not None:
                self._add(row, found, row.unix_ns)
            else:
                # Of rows that were written together, the newest one says how far the job was by then.
                undated = row, found
        if undated is not None:
            self._add(*undated, written_unix_ns)

    def _add(self, row: MetricRow, found: StepFields, unix_ns: int) -> None:
        before = self._newest
        if before is not None and (row.step <= before.step or unix_ns <= before.unix_ns):
            return
        self._started_unix_ns = self._started_unix_ns or unix_ns
        tokens = found.values.get("consumed_tokens")
        self._newest = _Newest(row.step, unix_ns, tokens)
        source = self._job.metric_file
        anew = source.stream != self._stream
        if anew and not source.has_ended(self._started_unix_ns, unix_ns):
            return
        source.take(self._stream, unix_ns)
        if before is not None:
            time_s = (unix_ns - before.unix_ns) / 1e9
            found.values.setdefault("step_time_s", time_s / (row.step - before.step))
            if tokens is not None and before.tokens is not None and tokens > before.tokens:
                found.values.setdefault("tokens_per_s", (tokens - before.tokens) / time_s)
        self._job.out.describe_framework("training-loop")
        self._job.out.received(unix_ns)
        add_step(
            self._job.steps,
            self._job.out.job,
            row.step,
            found,
            None,
            family=ProgressSource.METRIC_FILE,
            anew=anew,
        )
