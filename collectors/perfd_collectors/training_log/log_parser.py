"""Turns the bytes of a log into records: finds relevant lines and passes them to the format parsers."""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Sequence

import msgspec

from perfd.errors import ConfigError
from perfd_collectors.training_log.format_parser import FormatParser, LogContext, LogLine
from perfd_collectors.training_log.formats import COMPANIONS, FORMATS
from perfd_collectors.training_log.formats.failures import FailureParser
from perfd_collectors.training_log.formats.json_lines import says_a_step
from perfd_collectors.training_log.formats.nccl_lines import NcclLineParser
from perfd_collectors.training_log.formats.user_patterns import OwnPatternParser
from perfd_collectors.training_log.keyword_routes import Routes
from perfd_collectors.training_log.metric_files import WandbRunParser
from perfd_collectors.training_log.parser_output import ParserOutput
from perfd_collectors.training_log.step_order import StepLog
from perfd_collectors.training_log.timestamps import TimeZoneGuess, zoned_ns

MAX_LINE_BYTES = 64 * 1024
"""Longer lines are dropped: no trainer prints them."""
_SLICE_BYTES = 1 << 20
"""Processed at a time, which bounds memory."""

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) (?:(?:stdout|stderr) [FP] )?", re.ASCII
)
_TORCHRUN = re.compile(r"\s*\[[A-Za-z][\w.-]{0,64}?:?(\d{1,9})\]: ?", re.ASCII)
_SRUN = re.compile(r"\s*\d{1,9}: ", re.ASCII)
_RAY = re.compile(r"\([\w.:-]+ pid=\d+(?:, ip=[\w.:]+)?\) ", re.ASCII)
_GLOBAL_RANK = re.compile(r"\s*\[rank:?(\d{1,9})\]:", re.ASCII)
_MAY_BE_PREFIXED = re.compile(r"\s*[\[({\d]", re.ASCII)
_MAX_PREFIXES = 6
"""Prefixes removed from a line: launchers may be nested (container runtime, srun, torchrun)."""
log = logging.getLogger(__name__)
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


class LineBuffer:
    """Splits a stream of bytes into blocks of complete lines; buffers the unfinished line.

    A carriage return also ends a line, because progress bars print nothing else.
    Lines longer than `MAX_LINE_BYTES` are dropped.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._skipping = False
        self.dropped_lines = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Blocks of complete lines; each block ends with a newline."""
        view = memoryview(data)
        starts = range(0, len(data), _SLICE_BYTES)
        blocks = (self._feed_slice(bytes(view[start : start + _SLICE_BYTES])) for start in starts)
        return [block for block in blocks if block]

    def gap(self) -> None:
        """Drop the unfinished line and everything up to the next newline: bytes were lost."""
        self._hold(b"")
        self._skipping = True

    def restart(self) -> None:
        """Drop the unfinished line: the stream restarts at the start of a line."""
        self._hold(b"")
        self._skipping = False

    def rest(self) -> bytes:
        """Return and clear the unfinished line."""
        rest = b"".join(self._pieces)
        self.restart()
        return rest

    def _feed_slice(self, data: bytes) -> bytes:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if not end:
            self._grow(data)
            return b""
        first = data.find(b"\n") + 1
        whole = data[:end] if not self._skipping else data[first:end]
        if self._pieces:
            whole = b"".join([*self._pieces, whole])
        self._skipping = False
        self._hold(data[end:])
        return whole

    def _grow(self, data: bytes) -> None:
        if self._skipping:
            return
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_LINE_BYTES:
            self.dropped_lines += 1
            self.gap()

    def _hold(self, data: bytes) -> None:
        self._pieces = [data] if data else []
        self._held_bytes = len(data)


def read_line(raw: bytes, *, complete: bool = True, after_clear: bool = False) -> LogLine:
    """The line without colors and without the prefixes of srun, torchrun, Ray and container runtimes."""
    text = raw.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    rank: int | None = None
    unix_ns: int | None = None
    for _ in range(_MAX_PREFIXES):
        if not _MAY_BE_PREFIXED.match(text):
            break
        if text.startswith('{"'):
            wrapped = _unwrap_json(text)
            if wrapped is None:
                break
            text, unix_ns = wrapped[0], wrapped[1] or unix_ns
            continue
        if match := _RFC3339.match(text):
            unix_ns = zoned_ns(text)
        elif match := _TORCHRUN.match(text):
            named = _GLOBAL_RANK.match(text)
            rank = int(named[1]) if named else rank
        else:
            match = _SRUN.match(text) or _RAY.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return LogLine(text=text, rank=rank, unix_ns=unix_ns, complete=complete, after_clear=after_clear)


def _unwrap_json(text: str) -> tuple[str, int | None] | None:
    """Text (`log`, `message` or `msg`) and time of a container runtime's JSON line; None if it is not one."""
    try:
        wrapper = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(wrapper, dict) or says_a_step(wrapper):
        return None
    if isinstance(record := wrapper.get("record"), dict):
        # Loguru's own JSON has the message there.
        wrapper = record
    inner = next(
        (wrapper[key] for key in ("log", "message", "msg") if isinstance(wrapper.get(key), str)), None
    )
    if inner is None:
        return None
    moment = next((wrapper[key] for key in ("time", "timestamp") if isinstance(wrapper.get(key), str)), "")
    return inner.rstrip("\r\n"), zoned_ns(moment)


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
        chosen = [*COMPANIONS.get(framework, ()), framework] if framework is not None else list(FORMATS)
        self._job = job
        self._formats: list[FormatParser] = [OwnPatternParser(job, patterns)] if patterns else []
        self._formats += [FORMATS[name](job) for name in chosen]
        self._formats += [FailureParser(job), NcclLineParser(job), WandbRunParser(job)]
        self._routes = Routes(self._formats)
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
            keywords, in_block = self._routes.keywords_in(rest), self._routes.in_block
            self._line(rest, keywords, in_block=in_block, complete=False)
        for parser in self._formats:
            parser.finish()

    def _block(self, block: bytes) -> None:
        # Relevant lines contain a keyword, and almost no line does: searching a whole block for each keyword
        # is many times faster than checking each line.
        hits = [(at, word) for word in self._routes.keywords if (at := block.find(word)) >= 0]
        heapq.heapify(hits)
        position = 0
        while position < len(block):
            start, in_block = position, self._routes.in_block
            if not in_block:
                if not hits:
                    break
                start = block.rfind(b"\n", position, hits[0][0]) + 1 or position
                self._skip(block, position, start)
            end = block.index(b"\n", start)
            self._line(block[start:end], _pass_hits(hits, block, end), in_block=in_block)
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

    def _line(self, raw: bytes, keywords: frozenset[bytes], *, in_block: bool, complete: bool = True) -> None:
        """Pass a line to the parsers of its keywords, and to those inside a block."""
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
            recognized = self._part(raw[: bar.end()], keywords, in_block=in_block)
            raw, in_block = raw[bar.end() :], self._routes.in_block
        if self._part(raw, keywords, in_block=in_block, complete=complete) or recognized:
            self._recognized_lines += 1

    def _part(self, raw: bytes, keywords: frozenset[bytes], *, in_block: bool, complete: bool = True) -> bool:
        """Pass a line, or what is on it before or after a bar; returns whether a parser recognized it."""
        line = read_line(raw, complete=complete, after_clear=self._cleared)
        self._cleared &= _BAR not in raw
        self._job.out.received(line.unix_ns)
        damaged = line.damaged
        recognized = False
        try:
            for parser in self._routes.parsers(raw, keywords, in_block=in_block):
                if (
                    (line.complete or parser.takes_incomplete)
                    and (parser.takes_damaged or not damaged)
                    and parser.parse(line)
                ):
                    recognized = True
                    break
        except Exception:
            # Whatever is wrong with one line, those after it are read.
            log.debug("A line of the training log failed to parse.", exc_info=True)
        if not recognized and keywords and len(self.examples) < MAX_EXAMPLES:
            example = line.text.strip()[:_MAX_EXAMPLE_CHARS]
            if example.isprintable() and _LIKE_PROGRESS.search(example):
                self.examples.append(example)
        return recognized


def _pass_hits(hits: list[tuple[int, bytes]], block: bytes, end: int) -> frozenset[bytes]:
    """Advance each keyword's next hit, in a heap by offset, to at least `end`; returns those passed."""
    passed = []
    while hits and hits[0][0] < end:
        keyword = hits[0][1]
        passed.append(keyword)
        at = block.find(keyword, end)
        if at >= 0:
            heapq.heapreplace(hits, (at, keyword))
        else:
            heapq.heappop(hits)
    return frozenset(passed)
