"""Reads the tables of many messages at once, those that differ only in their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from weakref import WeakKeyDictionary

import numpy as np

from perfd.aggregator.state import alike_tables
from perfd.errors import WireError
from perfd.model import AgentMessage, SampleTable
from perfd.wire.agent_messages import AgentEnvelope, decode_agent_message
from perfd.wire.sample_tables import TableForm, TableReader

_FEWEST = 8
"""Of tables that are read at once: fewer cost as much one by one."""


def decoders(
    messages: Sequence[tuple[TableReader, bytes]],
) -> list[Callable[[], AgentMessage | None]]:
    """What decodes each message, and raises as `decode_agent_message` does; call each once."""
    envelopes = [_envelope(data) for _, data in messages]
    of_each = [() if envelope is None else envelope.tables for envelope in envelopes]
    readers = [reader for (reader, _), some in zip(messages, of_each, strict=True) for _ in some]
    read = iter(_read(readers, [*chain.from_iterable(of_each)]))
    return [
        # What is not a message fails again in its turn, where that is counted.
        partial(decode_agent_message, data)
        if envelope is None
        else partial(envelope.decode, partial(_next, reader, iter([*islice(read, len(some))])))
        for (reader, data), envelope, some in zip(messages, envelopes, of_each, strict=True)
    ]


def _envelope(data: bytes) -> AgentEnvelope | None:
    try:
        return AgentEnvelope(data)
    except WireError:
        return None


def _next(reader: TableReader, found: Iterator[SampleTable | None], data: bytes) -> SampleTable:
    return next(found) or reader.decode(data)


def _read(readers: Sequence[TableReader], tables: Sequence[bytes]) -> list[SampleTable | None]:
    """The tables, each with the reader of its stream; None for what has to be decoded alone."""
    read: list[SampleTable | None] = [None] * len(tables)
    alike: dict[TableForm, list[int]] = {}
    for place, (reader, data) in enumerate(zip(readers, tables, strict=True)):
        # A table without columns has no numbers to read at once.
        if (form := reader.form_of_size(len(data))) is not None and form.metrics:
            alike.setdefault(form, []).append(place)
    for form, places in alike.items():
        if len(places) >= _FEWEST:
            found = _read_alike(form, [tables[place] for place in places])
            for place, table in zip(places, found, strict=bool(found)):
                read[place] = table
    return read


def _read_alike(form: TableForm, tables: Sequence[bytes]) -> Sequence[SampleTable]:
    """The tables of a form; none if one of them is of another form."""
    parts = _PARTS.get(form)
    if parts is None:
        parts = _PARTS[form] = _Parts.of(form)
    joined = b"".join(tables)
    if parts.around.of(joined).tobytes() != parts.around_bytes * len(tables):
        return ()
    rows = len(form.entities)
    numbers = parts.numbers.of(joined).view("<i8").reshape(len(tables), -1)
    values = numbers[:, rows:].view("<f8").reshape(len(tables), len(form.metrics), rows)
    return alike_tables(form.scope, form.entities, form.metrics, numbers[:, :rows], values)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces of tables of one size: numpy copies those of all tables in one call."""

    apart: np.dtype[np.void]
    """As they are in a table."""
    joined: np.dtype[np.void]
    """One after the other."""

    @classmethod
    def between(cls, spans: Sequence[tuple[int, int]], size_bytes: int) -> _Pieces:
        names = [f"f{number}" for number in range(len(spans))]
        kinds = [f"V{end - start}" for start, end in spans]
        starts = [start for start, _ in spans]
        apart = np.dtype({"names": names, "formats": kinds, "offsets": starts, "itemsize": size_bytes})
        return cls(apart, np.dtype(list(zip(names, kinds, strict=True))))

    def of(self, tables: bytes) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        """Of each table, its pieces."""
        return np.frombuffer(tables, self.apart).astype(self.joined)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of the tables of a form."""

    numbers: _Pieces
    around: _Pieces
    around_bytes: bytes

    @classmethod
    def of(cls, form: TableForm) -> _Parts:
        ends = [0, *(end for _, end in form.number_spans)]
        starts = [*(start for start, _ in form.number_spans), form.layout.size]
        around = [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]
        return cls(
            numbers=_Pieces.between(form.number_spans, form.layout.size),
            around=_Pieces.between(around, form.layout.size),
            around_bytes=b"".join(form.around),
        )


_PARTS: WeakKeyDictionary[TableForm, _Parts] = WeakKeyDictionary()
