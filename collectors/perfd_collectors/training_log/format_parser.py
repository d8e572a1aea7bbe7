"""The interface of format parsers: the lines that they get, and what those of one job share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd_collectors.nccl.debug_log import DebugLog
from perfd_collectors.training_log.parser_output import ParserOutput, training_step
from perfd_collectors.training_log.progress_bar_log import BarLog
from perfd_collectors.training_log.step_order import ProgressSource, StepLog

_GARBAGE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]")
_SILENT_NS = 10 * 10**9
_SILENT_INTERVALS = 10
"""A file that had no row for so long, and for so many times what lay between its last two, has ended. Chosen,
not measured: a restart of a job takes longer, and then its first rows wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line without prefixes, as passed to parsers."""

    text: str
    rank: int | None = None
    """The global rank in a launcher's prefix."""
    unix_ns: int | None = None
    """When a container runtime received it: the only printed time with a zone."""
    complete: bool = True
    """Whether its end was read; of an incomplete line only terminated fields count."""
    after_clear: bool = False
    """Whether a progress bar was cleared since it was drawn last, to print something."""

    @property
    def damaged(self) -> bool:
        """Whether it contains control characters or invalid UTF-8: fields may be lost."""
        return _GARBAGE.search(self.text) is not None


@dataclass(slots=True)
class MetricFileSource:
    """Which metric file's steps count, of several that a job writes: the first, until it has ended."""

    stream: str | None = None
    newest_unix_ns: int = 0
    """Of its newest row."""
    _interval_ns: int = 0

    def has_ended(self, other_began_unix_ns: int, now_unix_ns: int) -> bool:
        """Whether another file that began then may go on now, as after a restart."""
        silent_ns = max(_SILENT_NS, _SILENT_INTERVALS * self._interval_ns)
        return other_began_unix_ns > self.newest_unix_ns and (
            self.stream is None or now_unix_ns - self.newest_unix_ns > silent_ns
        )

    def take(self, stream: str, unix_ns: int) -> None:
        """Note a row of the file that counts."""
        self._interval_ns = unix_ns - self.newest_unix_ns if stream == self.stream else 0
        self.stream, self.newest_unix_ns = stream, unix_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """State shared by the parsers of all logs of a job."""

    out: ParserOutput
    steps: StepLog
    bars: BarLog = field(default_factory=BarLog)
    nccl: DebugLog = field(default_factory=DebugLog)
    metric_file: MetricFileSource = field(default_factory=MetricFileSource)


class FormatParser(ABC):
    """Parses one family of lines. It is called with lines that contain one of its keywords, in order."""

    keywords: Sequence[bytes]
    """Lines without any of these are not passed to the parser, unless it is `in_block`."""
    takes_damaged = False
    """Whether complete lines with control characters or invalid UTF-8 are passed to it, too."""
    takes_incomplete = False
    """Whether the last line of a log is, before its end was read."""

    def __init__(self, job: LogContext) -> None:
        self._out = job.out
        self._steps = job.steps

    @property
    def in_block(self) -> bool:
        """Whether the parser is inside a block, so that it needs the next line regardless of keywords."""
        return False

    @abstractmethod
    def parse(self, line: LogLine) -> bool:
        """Parse a line; returns False when it is not of this format."""

    def attach(self) -> None:  # noqa: B027
        """Note that reading starts in the middle of the log: headings above it are unknown."""

    def flush(self) -> None:  # noqa: B027  (most formats have no blocks)
        """Emit an open block, which is complete because no line came for a while."""

    def finish(self) -> None:
        """Emit everything pending: the log has ended."""
        self.flush()

    def _add_step(
        self,
        step: int,
        values: Mapping[str, float | None],
        losses: Mapping[str, float],
        extras: Mapping[str, float] | None = None,
        *,
        printed_ns: int | None = None,
        family: ProgressSource = ProgressSource.TRAINER,
    ) -> None:
        """Add a progress line, with values as `training_step` takes them."""
        self._steps.add(
            training_step(self._out.job, step, values, losses, extras or {}), printed_ns, family=family
        )
