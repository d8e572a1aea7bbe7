"""Cuts what one record may hold to the limits, before anything keeps it."""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from perfd.aggregator.limits import Limits
from perfd.model import Record


def bounded(record: Record, limits: Limits, rejected: Counter[str]) -> Record | None:
    """The record with texts and mappings cut to the limits; None when its lists are too long.

    What is left out is counted in `rejected` by the name of the limit.
    """
    return typing.cast("Record | None", _bounded(record, limits, rejected))


def _bounded(record: Any, limits: Limits, rejected: Counter[str]) -> Any | None:  # noqa: ANN401  (any dataclass)
    changed: dict[str, Any] = {}
    kind: Any = type(record)
    for name in _sized_fields(kind):
        value = getattr(record, name)
        if isinstance(value, str):
            if len(value) > limits.text_chars:
                rejected["text_chars"] += 1
                changed[name] = value[: limits.text_chars]
        elif isinstance(value, Mapping):
            kept = _entries(value, limits, rejected)
            if kept is not value:
                changed[name] = kept
        elif isinstance(value, Sequence):
            if len(value) > limits.values_per_record:
                rejected["values_per_record"] += 1
                return None
        elif dataclasses.is_dataclass(value):
            inner = _bounded(value, limits, rejected)
            if inner is None:
                return None
            if inner is not value:
                changed[name] = inner
    return dataclasses.replace(record, **changed) if changed else record


def _entries(values: Mapping[Any, Any], limits: Limits, rejected: Counter[str]) -> Mapping[Any, Any]:
    """The first entries that fit; the mapping itself when all do."""
    if len(values) <= limits.entries_per_record and limits.name_chars >= max(
        _longest_text(values.keys()), _longest_text(values.values())
    ):
        return values
    kept: dict[Any, Any] = {}
    chars = 0
    for key, value in values.items():
        chars += sum(len(one) for one in (key, value) if isinstance(one, str))
        if len(kept) >= limits.entries_per_record or chars > limits.entries_chars:
            rejected["entries_per_record"] += 1
            break
        kept[key] = value
    return kept


def _longest_text(values: Collection[Any]) -> int:
    """The length of the longest text among values; 0 for none. It is asked of each column of a table."""
    kinds = set(map(type, values))
    if str not in kinds:
        return 0
    return max(map(len, values if len(kinds) == 1 else (one for one in values if isinstance(one, str))))


@cache
def _sized_fields(kind: Any) -> tuple[str, ...]:  # noqa: ANN401  (any dataclass)
    """The fields that have their own size."""
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if any(word in str(field.type) for word in ("str", "Mapping", "Sequence", "tuple", "Shape", "Layout"))
    )
