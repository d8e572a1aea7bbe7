"""A fast, tolerant reader of Prometheus' text format.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4). OpenMetrics
pages are read too: timestamps, exemplars and `# EOF` are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

MAX_PAGE_BYTES = 50 * 1024 * 1024
"""Larger pages are refused. Chosen, not measured: far above any engine's page."""
_MAX_CACHED_SERIES = 100_000
"""Series whose parsed labels are kept between pages; the cache is cleared above that. Bounds memory."""
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_SERIES = re.compile(rf'({_NAME})\s*(?:\{{((?:[^"}}]|"(?:[^"\\]|\\.)*")*)\}})?')
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n"}
_OF_RAY = re.compile(r"^(# (?:TYPE|HELP) )?ray_vllm_", re.MULTILINE)
"""What Ray Serve makes of `vllm:`: its names have no colon. (Source: vLLM's `ray_wrappers.py`.)"""
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created")

Labels = Mapping[str, str]
LabelItems = tuple[tuple[str, str], ...]


class PageState(StrEnum):
    """The outcome of reading a page."""

    COMPLETE = "complete"
    CUT = "cut"
    """It ends within a line: the last family is skipped, since some of its series may be missing."""
    TOO_LARGE = "too large"
    NOT_METRICS = "not metrics"
    """HTML, JSON or anything else."""
    EMPTY = "empty"


class Series(NamedTuple):
    """One series of a page; a tuple, because a page has thousands."""

    labels: Labels
    value: float
    others: LabelItems = ()
    """The labels except `le`: the same object for all buckets of a histogram, on all pages of a reader."""
    bound: float | None = None
    """The value of `le`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The requested families of a page; `types` has the TYPE of all families."""

    state: PageState
    series: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    """By sample name: a histogram has `NAME_bucket`, `NAME_sum` and `NAME_count`."""
    types: Mapping[str, str] = field(default_factory=dict)
    bad_lines: int = 0
    duplicates: int = 0

    def is_histogram(self, name: str) -> bool:
        """Whether the page declares a family as a histogram."""
        return self.types.get(name) == "histogram"


class PageReader:
    """Reads the pages of one server. Caches the parsed labels of its series, which rarely change."""

    def __init__(self, families: Collection[str] | None = None) -> None:
        """`families` are names without sample suffixes; None for all."""
        self._families = None if families is None else frozenset(families)
        self._known: dict[str, _ParsedSeries | None] = {}
        self._label_sets: dict[LabelItems, LabelItems] = {}

    def read(self, body: bytes) -> Page:
        """Parse a page."""
        if len(body) > MAX_PAGE_BYTES:
            return Page(state=PageState.TOO_LARGE)
        text = body.decode("utf-8", "replace")
        if "ray_vllm_" in text:
            text = _OF_RAY.sub(r"\1vllm:", text)
        stripped = text.lstrip("\ufeff \t\r\n")
        if not stripped:
            return Page(state=PageState.EMPTY)
        if stripped[0] in "<{[":
            return Page(state=PageState.NOT_METRICS)
        lines = stripped.split("\n")
        cut = lines.pop()
        reading = _Reading(self._families, self._known, self._label_sets)
        reading.lines(lines)
        if not reading.samples and not reading.types:
            return Page(state=PageState.NOT_METRICS, bad_lines=reading.bad)
        if len(self._known) > _MAX_CACHED_SERIES:
            self._known.clear()
            self._label_sets.clear()
        if cut.strip() and not cut.startswith("# EOF"):
            reading.forget_last_family(cut)
            return reading.page(PageState.CUT)
        return reading.page(PageState.COMPLETE)


class _ParsedSeries(NamedTuple):
    """The parsed text of a series before its value."""

    name: str
    labels: Labels
    others: LabelItems
    bound: float | None


_NEW = _ParsedSeries("", {}, (), None)
"""Marks a series that is not cached yet."""


class _Reading:
    """One pass over the lines of a page."""

    def __init__(
        self,
        families: frozenset[str] | None,
        known: dict[str, _ParsedSeries | None],
        label_sets: dict[LabelItems, LabelItems],
    ) -> None:
        self._families = families
        self._known = known
        self._label_sets = label_sets
        self._seen: set[str] = set()
        self._series: dict[str, list[Series]] = {}
        self._last = ""
        self.types: dict[str, str] = {}
        self.samples = 0
        self.bad = 0
        self.duplicates = 0

    def lines(self, lines: Iterable[str]) -> None:
        """Parse lines in order. Most series are cached from earlier pages; this loop dominates a scrape."""
        known, seen, found = self._known, self._seen, self._series
        for line in lines:
            series, _, number = line.rpartition(" ")
            entry = known.get(series, _NEW)
            if entry is _NEW:
                parsed = self._new_line(line)
                if parsed is None:
                    continue
                series, number = parsed
                entry = known[series]
            self._last = series
            self.samples += 1
            if entry is None:
                continue
            try:
                value = float(number)
            except ValueError:
                self.bad += 1
                continue
            if series in seen:
                self.duplicates += 1
                continue
            seen.add(series)
            name, labels, others, bound = entry
            if name not in found:
                found[name] = []
            found[name].append(Series(labels, value, others, bound))

    def _type(self, line: str) -> None:
        words = line.split()
        if len(words) == 4:
            self.types[words[2]] = words[3]
            self._last = words[2]

    def _new_line(self, line: str) -> tuple[str, str] | None:
        """Cache a new series; returns its text and value, or None for a line without one."""
        line = line.strip()
        if not line or line.startswith("#"):
            if line.startswith("# TYPE "):
                self._type(line)
            return None
        match = _SERIES.match(line)
        parsed = None if match is None else _parsed(match)
        rest = [] if match is None else line[match.end() :].split()
        if match is None or parsed is None or not rest or not _is_number(rest[0]):
            self.bad += 1
            return None
        series = match[0].rstrip()
        self._known[series] = self._entry(*parsed)
        return series, rest[0]

    def _entry(self, name: str, labels: Labels) -> _ParsedSeries | None:
        if self._families is not None and not family_of(name) & self._families:
            return None
        others = tuple(item for item in labels.items() if item[0] != "le")
        others = self._label_sets.setdefault(others, others)
        return _ParsedSeries(name, labels, others, _bound(labels.get("le")))

    def forget_last_family(self, cut: str) -> None:
        """Drop the family of the truncated line, and the one before it if the truncation hides its name."""
        match = _SERIES.match(cut)
        words = cut.split()
        if cut.startswith("#") and len(words) >= 3:
            # A new family has begun, so the previous one is complete, unless the name itself is truncated.
            return
        incomplete = set(family_of(self._last.split("{")[0].strip()))
        if match is not None:
            incomplete |= family_of(match[1])
        for name in [name for name in self._series if family_of(name) & incomplete]:
            del self._series[name]

    def page(self, state: PageState) -> Page:
        return Page(
            state=state,
            series={name: tuple(series) for name, series in self._series.items()},
            types=self.types,
            bad_lines=self.bad,
            duplicates=self.duplicates,
        )


def family_of(name: str) -> frozenset[str]:
    """The names of all families that a sample of this name may belong to."""
    return frozenset([name, *(name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix))])


def _bound(text: str | None) -> float | None:
    return float(text) if text is not None and _is_number(text) else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parsed(match: re.Match[str]) -> tuple[str, Labels] | None:
    inner = match[2]
    labels: dict[str, str] = {}
    position = 0
    while inner and position < len(inner):
        label = _LABEL.match(inner, position)
        if label is None:
            return None if inner[position:].strip(" ,") else (match[1], labels)
        labels[label[1]] = _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), label[2])
        position = label.end()
    return match[1], labels
