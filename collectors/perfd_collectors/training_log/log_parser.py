"""From the bytes of a log to records: finds the lines that matter and gives them to the formats' parsers."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from perfd.errors import ConfigError
from perfd.model import Record
from perfd_collectors.training_log.format_parser import FormatParser, LogContext
from perfd_collectors.training_log.formats import (
    DeepSpeedParser,
    FailureParser,
    HuggingFaceParser,
    NanotronParser,
    NcclLineParser,
    NemoParser,
    TorchtitanParser,
    VerlParser,
)
from perfd_collectors.training_log.line_buffer import MAX_LINE_BYTES, LineBuffer, read_line
from perfd_collectors.training_log.megatron import MegatronParser
from perfd_collectors.training_log.parser_output import ParserOutput
from perfd_collectors.training_log.step_log import StepLog
from perfd_collectors.training_log.timestamps import TimeZoneGuess

FORMATS: Mapping[str, Callable[[LogContext], FormatParser]] = {
    "nemo": NemoParser,
    "nanotron": NanotronParser,
    "megatron": MegatronParser,
    "torchtitan": TorchtitanParser,
    "verl": VerlParser,
    "hf-trainer": HuggingFaceParser,
    "deepspeed": DeepSpeedParser,
}
"""By the name that an operator may give as a hint. A line goes to the first that knows it."""

MAX_EXAMPLES = 20
_EXAMPLE_CHARACTERS = 300
_LIKE_PROGRESS = re.compile(r"\d+ *(?:/|of) *\d+|\|.*\d|step\W{0,3}\d|loss\W{1,3}\d", re.IGNORECASE)


def new_job(name: str, zone: TimeZoneGuess | None = None) -> LogContext:
    """What the parsers of all logs of one job share; take its records with `job.out.take`."""
    out = ParserOutput(name, zone)
    return LogContext(out=out, steps=StepLog(out))


class LogParser:
    """Reads one log of a job. Feed it bytes as they come; the records are in `job.out`.

    The property that everything here keeps: a log that was cut anywhere gives
    only values that the whole log gives too.
    """

    def __init__(self, job: LogContext, *, framework: str | None = None) -> None:
        if framework is not None and framework not in FORMATS:
            raise ConfigError(
                f"There is no log format called {framework!r}; there are: {', '.join(FORMATS)}."
            )
        chosen = [framework] if framework is not None else list(FORMATS)
        self._job = job
        self._formats: list[FormatParser] = [FORMATS[name](job) for name in chosen]
        self._formats += [FailureParser(job), NcclLineParser(job)]
        self._keywords = _fewest(keyword for parser in self._formats for keyword in parser.keywords)
        self._buffer = LineBuffer()
        self._recognised = 0
        self._filled = 0
        self.lines = 0
        self.read_bytes = 0
        self.examples: list[str] = []
        """The first lines that looked like progress and that no parser knew."""

    @property
    def unrecognised_lines(self) -> int:
        """Lines with text in them that meant nothing to any parser."""
        return self._filled - self._recognised + self._buffer.dropped_lines

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the log."""
        self.read_bytes += len(data)
        for block in self._buffer.feed(data):
            self._block(block)

    def attach(self) -> None:
        """Take in that reading begins in the middle of the log."""
        self._job.steps.attach()

    def gap(self) -> None:
        """Take in that bytes of the log were lost here."""
        self._buffer.gap()

    def restart(self) -> None:
        """Take in that the log begins anew: another file has its name."""
        self._buffer.restart()

    def settle(self) -> None:
        """Take in that nothing came for a while."""
        for parser in self._formats:
            parser.settle()

    def finish(self) -> None:
        """Take in that nothing more comes. Of an unfinished line only fields with a terminator count."""
        rest = self._buffer.rest()
        if rest:
            self._line(rest, matters=any(word in rest for word in self._keywords), complete=False)
        for parser in self._formats:
            parser.finish()

    def _block(self, block: bytes) -> None:
        # All that matters holds one of the keywords, and almost no line does: searching a whole block
        # for each is many times faster than looking at each line.
        hits = [(at, keyword) for keyword in self._keywords if (at := block.find(keyword)) >= 0]
        heapq.heapify(hits)
        position = 0
        while position < len(block):
            _advance(hits, block, position)
            start = position
            if not any(parser.hungry for parser in self._formats):
                if not hits:
                    break
                start = block.rfind(b"\n", position, hits[0][0]) + 1 or position
                self._skip(block, position, start)
            end = block.index(b"\n", start)
            self._line(block[start:end], matters=bool(hits) and hits[0][0] < end)
            position = end + 1
        self._skip(block, position, len(block))

    def _skip(self, block: bytes, start: int, end: int) -> None:
        """Count lines that nobody looks at."""
        if start >= end:
            return
        self.lines += block.count(b"\n", start, end)
        passed = block[start:end].lstrip(b"\n") if block.startswith(b"\n", start) else block[start:end]
        while b"\n\n" in passed:
            passed = passed.replace(b"\n\n", b"\n")
        self._filled += passed.count(b"\n")

    def _line(self, raw: bytes, *, matters: bool, complete: bool = True) -> None:
        """Give a line to the parsers; one without a keyword only to those that are inside a block."""
        self.lines += 1
        if not raw.strip():
            return
        self._filled += 1
        if len(raw) > MAX_LINE_BYTES:
            return
        line = read_line(raw, complete=complete)
        for parser in self._formats:
            if (matters or parser.hungry) and parser.parse(line):
                self._recognised += 1
                return
        if matters and len(self.examples) < MAX_EXAMPLES:
            example = line.text.strip()[:_EXAMPLE_CHARACTERS]
            if example.isprintable() and _LIKE_PROGRESS.search(example):
                self.examples.append(example)


def _fewest(keywords: Iterable[bytes]) -> tuple[bytes, ...]:
    """The keywords without those that hold another one: each costs a search of every byte."""
    known = set(keywords)
    return tuple(
        sorted(word for word in known if not any(other != word and other in word for other in known))
    )


def _advance(hits: list[tuple[int, bytes]], block: bytes, position: int) -> None:
    """Move each keyword's next hit, a heap by offset, to `position` or beyond."""
    while hits and hits[0][0] < position:
        keyword = hits[0][1]
        at = block.find(keyword, position)
        if at >= 0:
            heapq.heapreplace(hits, (at, keyword))
        else:
            heapq.heappop(hits)


def parse_log(data: bytes, *, job: str = "default", framework: str | None = None) -> Sequence[Record]:
    """All records of a whole log. Times are those of its own clock, as if that were in UTC."""
    shared = new_job(job, TimeZoneGuess(0))
    parser = LogParser(shared, framework=framework)
    parser.feed(data)
    parser.finish()
    return shared.out.take(0)
