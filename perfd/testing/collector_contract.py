"""Checks that a collector keeps the contract of `perfd.collector`; for authors of collectors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args

from perfd.clock import VirtualClock
from perfd.collector import Collector, CollectorSpec, ColumnKind, Options, RecordedStream, Settings
from perfd.collector_loading import column_problems
from perfd.errors import Unavailable
from perfd.model import Record, SampleTable, Scope

_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_WRONG_UNITS = {
    "percent", "pct", "ms", "us", "msec", "sec", "kb", "mb", "gb", "kib", "mib", "gib", "khz", "mhz", "ghz",
    "mw", "kw", "mj", "c",
}  # fmt: skip
_ENTITIES = {
    Scope.GPU: re.compile(r"\d+(/\d+)?"),
    Scope.NODE: re.compile(r""),
    Scope.NIC: re.compile(r"[^/]+(/\d+)?"),
    Scope.DISK: re.compile(r"[^/]+"),
    Scope.RANK: re.compile(r".+/\d+"),
    Scope.SERVER: re.compile(r"\S+"),
}
_RECORDS = get_args(Record)


def check_spec(spec: CollectorSpec) -> None:
    """Raise `AssertionError` when what a specification says of itself does not hold."""
    _require(_SNAKE_CASE.fullmatch(spec.name), f"{spec.name!r} is not a name in snake case.")
    _require(issubclass(spec.options, Options), "`options` must derive from perfd.collector.Options.")
    spec.options()  # Every option needs a default: a collector must run without configuration.
    _require(spec.interval_s > 0, "`interval_s` must be positive.")
    names = [(column.scope, column.name) for column in spec.columns]
    _require(len(names) == len(set(names)), "A column is listed twice.")
    for column in spec.columns:
        words = column.name.split("_")
        _require(_SNAKE_CASE.fullmatch(column.name), f"{column.name!r} is not a name in snake case.")
        _require(words[-1] not in _WRONG_UNITS, f"{column.name!r} must be in an SI base unit.")
        _require(words[-1] != "total", f"{column.name!r}: `_total` is added when a counter is exported.")
        for text in (column.help, column.absent):
            _require(text.endswith("."), f"{column.name!r}: its texts must be sentences, not {text!r}.")
        _require(column.source, f"{column.name!r} must name its source.")
    for problem in column_problems(spec):
        raise AssertionError(problem)


def check_collector(
    spec: CollectorSpec,
    settings: Settings,
    *,
    options: Options | None = None,
    collects: int = 3,
    between: Callable[[], None] | None = None,
) -> Sequence[Record]:
    """Run a collector as the agent does, and raise `AssertionError` where it breaks the contract.

    Returns all records. `settings` must hold a `VirtualClock`; it moves on by
    the collector's interval, and `between` is called, after each collect.
    """
    check_spec(spec)
    clock = _virtual(settings)
    collector = _create(spec, options or spec.options(), settings)
    records: list[Record] = []
    try:
        for _ in range(collects):
            before_s = clock.monotonic_s()
            records += _collect(collector)
            _require(clock.monotonic_s() == before_s, "`collect` must not sleep: the runner paces it.")
            clock.advance(spec.interval_s)
            if between is not None:
                between()
    finally:
        collector.close()
        collector.close()
    check_records(spec, records)
    return records


def check_unavailable(spec: CollectorSpec, settings: Settings, *, options: Options | None = None) -> str:
    """Raise `AssertionError` unless `create` refuses with a sentence that teaches; returns the sentence."""
    try:
        _create(spec, options or spec.options(), settings).close()
    except Unavailable as error:
        sentence = str(error)
        _require(sentence.endswith("."), f"Unavailable must say a sentence, not {sentence!r}.")
        _require(len(sentence.split()) > 5, f"Unavailable must say what to do, not just {sentence!r}.")
        return sentence
    raise AssertionError("The collector was created, although its source is not there.")


def check_replay(
    spec: CollectorSpec, kind: str, path: Path, settings: Settings, *, step_s: float = 1.0
) -> Sequence[Record]:
    """Play a recorded stream to its end, and raise `AssertionError` where it breaks the contract.

    Returns all records. The clock must be a `VirtualClock` that is not past the stream's start.
    """
    clock = _virtual(settings)
    stream: RecordedStream = spec.replay[kind](path, settings)
    span = stream.span_unix_ns()
    records = list(_collect(stream))
    if span is not None:
        first, last = span
        _require(first <= last, "The span ends before it starts.")
        clock.advance_to_unix_ns(first)
        while clock.unix_ns() <= last + step_s * 1e9:
            due = _collect(stream)
            for record in due:
                if isinstance(record, SampleTable):
                    _require(max(record.times_unix_ns) <= clock.unix_ns(), "A row came before its time.")
            records += due
            clock.advance(step_s)
    _require(not _collect(stream), "Records were left after the end of the span.")
    stream.close()
    stream.close()
    check_records(spec, records)
    return records


def check_records(spec: CollectorSpec, records: Iterable[Record]) -> None:
    """Raise `AssertionError` when records could not come from this collector."""
    kinds = {(column.scope, column.name): column.kind for column in spec.columns}
    last: dict[tuple[Scope, str, str], float] = {}
    for record in records:
        _require(isinstance(record, _RECORDS), f"{record!r} is not a record of perfd.model.")
        if isinstance(record, SampleTable):
            _check_table(record, kinds)
            _check_counters(record, kinds, last)


def _require(condition: object, message: str) -> None:
    """`assert` would vanish under `python -O`, and with it the check."""
    if not condition:
        raise AssertionError(message)


def _virtual(settings: Settings) -> VirtualClock:
    if not isinstance(settings.clock, VirtualClock):
        raise AssertionError("The check moves the clock on, so `settings` must hold a VirtualClock.")  # noqa: TRY004
    return settings.clock


def _create(spec: CollectorSpec, options: Options, settings: Settings) -> Collector:
    return spec.create(options, settings)


def _collect(collector: Collector) -> Sequence[Record]:
    records = collector.collect()
    _require(isinstance(records, Sequence), "`collect` must return a sequence, empty when nothing is new.")
    return records


def _check_table(table: SampleTable, kinds: dict[tuple[Scope, str], ColumnKind]) -> None:
    rows = len(table.times_unix_ns)
    _require(rows, "A table without rows says nothing: leave it out.")
    _require(len(table.entities) == rows, "There must be one entity for each row.")
    for time in table.times_unix_ns:
        _require(isinstance(time, int), f"{time!r} is not a time in nanoseconds.")
    for entity in table.entities:
        _require(_ENTITIES[table.scope].fullmatch(entity), f"{entity!r} is not an entity of {table.scope}.")
    pairs = list(zip(table.times_unix_ns, table.entities, strict=True))
    _require(len(pairs) == len(set(pairs)), "Two rows are about the same entity at the same instant.")
    for name, values in table.columns.items():
        _require((table.scope, name) in kinds, f"Column {name!r} of {table.scope} is not in `spec.columns`.")
        _require(len(values) == rows, f"Column {name!r} must have one value for each row.")
        for value in values:
            _require(isinstance(value, float | int), f"Column {name!r} holds {value!r}.")
            _require(not math.isinf(value), f"Column {name!r} holds an infinity; NaN is absent.")
            if name.endswith("_ratio"):
                _require(not value < 0, f"Column {name!r} holds {value}, and a ratio starts at 0.")


def _check_counters(
    table: SampleTable,
    kinds: dict[tuple[Scope, str], ColumnKind],
    last: dict[tuple[Scope, str, str], float],
) -> None:
    for name, values in table.columns.items():
        if kinds[table.scope, name] is ColumnKind.COUNTER:
            for entity, value in zip(table.entities, values, strict=True):
                key = (table.scope, name, entity)
                _require(not value < last.get(key, -math.inf), f"Counter {name!r} of {entity!r} went back.")
                if not math.isnan(value):
                    last[key] = value
