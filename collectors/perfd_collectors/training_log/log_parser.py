"""Turns the bytes of a log into records: finds relevant lines and passes them to the format parsers."""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from perfd.errors import ConfigError
from perfd_collectors.training_log.format_parser import FormatParser, LogContext
from perfd_collectors.training_log.formats import (
    ColumnTableParser,
    ComposerParser,
    DeepSpeedParser,
    EpochLineParser,
    FailureParser,
    HuggingFaceParser,
    JsonLineParser,
    MaxTextParser,
    MetricWriterParser,
    NanotronParser,
    NcclLineParser,
    NemoParser,
    OpenRlhfParser,
    OwnPatternParser,
    ProgressBarParser,
    ResultBlockParser,
    SlimeParser,
    StepBlockParser,
    StepLineParser,
    TorchtitanParser,
    VerlParser,
)
from perfd_collectors.training_log.log_lines import MAX_LINE_BYTES, LineBuffer, read_line
from perfd_collectors.training_log.megatron import MegatronParser
from perfd_collectors.training_log.metric_files import WandbRunParser
from perfd_collectors.training_log.parser_output import ParserOutput
from perfd_collectors.training_log.step_order import StepLog
from perfd_collectors.training_log.timestamps import TimeZoneGuess

log = logging.getLogger(__name__)

FORMATS: Mapping[str, Callable[[LogContext], FormatParser]] = {
    "nemo": NemoParser,
    "openrlhf": OpenRlhfParser,
    "slime": SlimeParser,
    "progress-bar": ProgressBarParser,
    "nanotron": NanotronParser,
    "megatron": MegatronParser,
    "torchtitan": TorchtitanParser,
    "verl": VerlParser,
    "hf-trainer": HuggingFaceParser,
    "deepspeed": DeepSpeedParser,
    "maxtext": MaxTextParser,
    "composer": ComposerParser,
    "metric-writer": MetricWriterParser,
    "result-blocks": ResultBlockParser,
    "column-tables": ColumnTableParser,
    "json-lines": JsonLineParser,
    "step-blocks": StepBlockParser,
    "epoch-lines": EpochLineParser,
    "step-lines": StepLineParser,
}
"""By name, as in the option `framework`. A line goes to the first parser that accepts it."""

_COMPANIONS: Mapping[str, Sequence[str]] = {"hf-trainer": ("progress-bar",)}
"""Formats without which another one is not complete."""

MAX_EXAMPLES = 20
"""Unrecognized lines kept as examples for the user."""
_MAX_EXAMPLE_CHARS = 300
"""Longer examples are cut."""
_CLEARED = b"      \n"
"""How a line ends that clears a progress bar."""
_BAR = b"%|"
_AFTER_BAR = re.compile(rb"%\|[^|]{0,1000}\| {1,40}\d{1,15}/\d{1,15} \[[^\[\]]{0,2000}\](?=[A-Za-z\[])")
"""A bar behind which something was printed: it leaves the cursor at its end."""
_LIKE_PROGRESS = re.compile(
    r"\d {0,20}(?:/|of) {0,20}\d|\|[^|]*\d|step\W{0,3}\d|loss\W{1,3}\d", re.IGNORECASE
)


def new_job(name: str, zone: TimeZoneGuess | None = None) -> LogContext:
    """New shared state for the parsers of a job's logs; read its records with `job.out.take`."""
    out = ParserOutput(name, zone)
    return LogContext(out=out, steps=StepLog(out))


class LogParser:
    """Parses one log of a job. Feed it bytes as they arrive; the records are in `job.out`.

    Invariant: a log truncated anywhere yields only values that the complete log
    yields, too.
    """

    def __init__(
        self, job: LogContext, *, framework: str | None = None, patterns: Sequence[re.Pattern[str]] = ()
    ) -> None:
        if framework is not None and framework not in FORMATS:
            raise ConfigError(f"Unknown log format {framework!r}; known are: {', '.join(FORMATS)}.")
        chosen = [*_COMPANIONS.get(framework, ()), framework] if framework is not None else list(FORMATS)
        self._job = job
        self._formats: list[FormatParser] = [OwnPatternParser(job, patterns)] if patterns else []
        self._formats += [FORMATS[name](job) for name in chosen]
        self._formats += [FailureParser(job), NcclLineParser(job), WandbRunParser(job)]
        self._with_blocks = [one for one in self._formats if type(one).in_block is not FormatParser.in_block]
        self._keywords = _shortest_keywords(
            keyword for parser in self._formats for keyword in parser.keywords
        )
        self._buffer = LineBuffer()
        self._cleared = False
        """Whether a progress bar was cleared, and not drawn again yet."""
        self._recognized_lines = 0
        self._nonblank_lines = 0
        self.lines = 0
        self.read_bytes = 0
        self.examples: list[str] = []
        """The first lines that look like progress but no parser recognized."""

    @property
    def unrecognized_lines(self) -> int:
        """Lines with text that no parser recognized."""
        return self._nonblank_lines - self._recognized_lines + self._buffer.dropped_lines

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the log."""
        self.read_bytes += len(data)
        for block in self._buffer.feed(data):
            self._block(block)

    def attach(self) -> None:
        """Note that reading starts in the middle of the log."""
        self._job.steps.attach()
        for parser in self._formats:
            parser.attach()

    def gap(self) -> None:
        """Note that bytes of the log were lost here."""
        self._buffer.gap()

    def restart(self) -> None:
        """Note that the log's file was replaced or truncated."""
        self._buffer.restart()

    def flush(self) -> None:
        """Note that no line came for a while: open blocks are complete."""
        for parser in self._formats:
            parser.flush()

    def finish(self) -> None:
        """Note the end of the log. Of an unfinished line only terminated fields count."""
        rest = self._buffer.rest()
        if rest:
            self._line(rest, has_keyword=any(word in rest for word in self._keywords), complete=False)
        for parser in self._formats:
            parser.finish()

    def _block(self, block: bytes) -> None:
        # Relevant lines contain a keyword, and almost no line does: searching a whole block for each keyword
        # is many times faster than checking each line.
        hits = [(at, keyword) for keyword in self._keywords if (at := block.find(keyword)) >= 0]
        heapq.heapify(hits)
        position = 0
        while position < len(block):
            _advance(hits, block, position)
            start = position
            if not any(parser.in_block for parser in self._with_blocks):
                if not hits:
                    break
                start = block.rfind(b"\n", position, hits[0][0]) + 1 or position
                self._skip(block, position, start)
            end = block.index(b"\n", start)
            self._line(block[start:end], has_keyword=bool(hits) and hits[0][0] < end)
            position = end + 1
        self._skip(block, position, len(block))

    def _skip(self, block: bytes, start: int, end: int) -> None:
        """Count lines that are not parsed."""
        if start >= end:
            return
        self.lines += block.count(b"\n", start, end)
        self._cleared |= block.find(_CLEARED, start, end) >= 0
        passed = block[start:end].lstrip(b"\n") if block.startswith(b"\n", start) else block[start:end]
        while b"\n\n" in passed:
            passed = passed.replace(b"\n\n", b"\n")
        self._nonblank_lines += passed.count(b"\n")

    def _line(self, raw: bytes, *, has_keyword: bool, complete: bool = True) -> None:
        """Pass a line to the parsers; without a keyword, only to those inside a block."""
        self.lines += 1
        if not raw.strip():
            self._cleared |= raw.endswith(_CLEARED[:-1])
            return
        self._nonblank_lines += 1
        if len(raw) > MAX_LINE_BYTES:
            return
        bar = _AFTER_BAR.search(raw) if _BAR in raw else None
        recognized = False
        if bar is not None:
            recognized = self._part(raw[: bar.end()], has_keyword=has_keyword)
            raw = raw[bar.end() :]
        if self._part(raw, has_keyword=has_keyword, complete=complete) or recognized:
            self._recognized_lines += 1

    def _part(self, raw: bytes, *, has_keyword: bool, complete: bool = True) -> bool:
        """Pass a line, or what is on it before or after a bar; returns whether a parser recognized it."""
        line = read_line(raw, complete=complete, after_clear=self._cleared)
        self._cleared &= _BAR not in raw
        self._job.out.received(line.unix_ns)
        try:
            recognized = any(
                (has_keyword or parser.in_block) and parser.parse(line) for parser in self._formats
            )
        except Exception:
            # Whatever is wrong with one line, those after it are read.
            log.debug("A line of the training log failed to parse.", exc_info=True)
            recognized = False
        if not recognized and has_keyword and len(self.examples) < MAX_EXAMPLES:
            example = line.text.strip()[:_MAX_EXAMPLE_CHARS]
            if example.isprintable() and _LIKE_PROGRESS.search(example):
                self.examples.append(example)
        return recognized


def _shortest_keywords(keywords: Iterable[bytes]) -> tuple[bytes, ...]:
    """The keywords except those that contain another one: each costs a search of all bytes."""
    known = set(keywords)
    return tuple(
        sorted(word for word in known if not any(other != word and other in word for other in known))
    )


def _advance(hits: list[tuple[int, bytes]], block: bytes, position: int) -> None:
    """Advance each keyword's next hit, in a heap by offset, to at least `position`."""
    while hits and hits[0][0] < position:
        keyword = hits[0][1]
        at = block.find(keyword, position)
        if at >= 0:
            heapq.heapreplace(hits, (at, keyword))
        else:
            heapq.heappop(hits)
