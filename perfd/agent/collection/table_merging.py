"""Fewer, longer tables: what one collector read at several instants becomes one table."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from perfd.model import Record, SampleTable


def merge_tables(records: Iterable[Record]) -> list[Record]:
    """The same records, with tables of one scope and the same columns joined row by row.

    A joined table stands where the first of its parts stood; rows keep their order.
    """
    merged: list[Record] = []
    parts: dict[tuple[object, ...], list[SampleTable]] = {}
    places: dict[tuple[object, ...], int] = {}
    for record in records:
        if not isinstance(record, SampleTable):
            merged.append(record)
            continue
        key: tuple[object, ...] = (record.scope, *record.columns)
        if key not in parts:
            parts[key] = []
            places[key] = len(merged)
            merged.append(record)
        parts[key].append(record)
    for key, tables in parts.items():
        if len(tables) > 1:
            merged[places[key]] = _join(tables)
    return merged


def _join(tables: Sequence[SampleTable]) -> SampleTable:
    columns: dict[str, array[float]] = {name: array("d") for name in tables[0].columns}
    times = array("q")
    entities: list[str] = []
    for table in tables:
        times.extend(array("q", table.times_unix_ns))
        entities.extend(table.entities)
        for name, values in table.columns.items():
            columns[name].extend(array("d", values))
    return SampleTable(scope=tables[0].scope, times_unix_ns=times, entities=entities, columns=columns)
