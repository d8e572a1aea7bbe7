"""Numbers with their unit and source, and texts of jobs marked as what they are: data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAME_CHARS = 256
"""Of a name, the longest that an aggregator takes (`name_chars` of its limits)."""
SENTENCE_CHARS = 1000
"""Of evidence, advice and descriptions."""
MAX_LIST = 32
"""Entries of a list inside an entry, such as the culprits of a finding; a count says how many there are."""

_UNITS = (
    ("unix_s", "s since 1970-01-01 UTC"),
    ("bytes_per_s", "bytes/s"),
    ("flops_per_s", "FLOP/s"),
    ("tokens_per_s", "tokens/s"),
    ("samples_per_s", "samples/s"),
    ("gpu_h", "GPU hours"),
    ("ratio", "ratio"),
    ("confidence", "ratio"),
    ("bytes", "bytes"),
    ("seconds", "s"),
    ("s", "s"),
    ("w", "W"),
    ("c", "degrees Celsius"),
    ("hz", "Hz"),
)
"""By the last words of a name, the longest first."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """A column of a table, in which each row has one value."""

    name: str
    source: str
    unit: str | None = None
    """None: as the name says; `text`: untrusted; `state`: one of perfd's own words, true or false."""
    path: str | None = None
    """Where the value is in an entry of the API, with dots; None: under the column's name."""


def unit_of(name: str) -> str:
    """The unit that a name ends with, as perfd names its numbers; `count` for one without."""
    base = name.removesuffix("_per_gpu")
    found = next((unit for end, unit in _UNITS if base == end or base.endswith("_" + end)), "count")
    return found if base == name else f"{found} per GPU"


def quantity(value: object, unit: str, source: object) -> dict[str, Any] | None:
    """`{"value", "unit", "source"}`; None when the number is unknown or not finite."""
    if not is_number(value):
        return None
    return {"value": value, "unit": unit, "source": plain(source or "unknown", NAME_CHARS)}


def is_number(value: object) -> bool:
    """Whether it is a finite number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain(text: object, most_chars: int) -> str:
    """One line without control characters, and without such as turn the direction of writing, cut.

    What is cut ends with how many characters there were.
    """
    found = str(text)
    # A name of megabytes is cut before each of its characters is looked at.
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in found[:most_chars]
    )
    if len(found) <= most_chars and len(shown) <= most_chars:
        return shown
    return f"{shown[:most_chars]}... ({len(found)} characters)"


def untrusted(text: object, most_chars: int = SENTENCE_CHARS) -> dict[str, str] | None:
    """`{"untrusted": TEXT}`: what a job, a log or a node may have written; None for none."""
    return None if text is None else {"untrusted": plain(text, most_chars)}


def table(columns: Sequence[AnswerColumn], entries: Sequence[Json]) -> dict[str, Any]:
    """`{"columns": [{"name", "unit", "source"}], "rows": [[...]]}`; unknown values are null."""
    described = [
        {"name": column.name, "unit": column.unit or unit_of(column.name), "source": column.source}
        for column in columns
    ]
    return {"columns": described, "rows": [[_cell(entry, column) for column in columns] for entry in entries]}


def value_at(document: object, path: str) -> Any:  # noqa: ANN401  (whatever the document holds)
    """What is at a path with dots; None when something on the way is missing."""
    found = document
    for key in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found


def listed(document: Json, key: str) -> list[Any]:
    """The list under a key; an empty one if there is none."""
    found = document.get(key)
    return found if isinstance(found, list) else []


def known(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries without those that are unknown."""
    return {key: value for key, value in entries.items() if value is not None}


def _cell(entry: Json, column: AnswerColumn) -> Any:  # noqa: ANN401  (a JSON value)
    value = value_at(entry, column.path or column.name)
    if column.unit == "text":
        return None if value is None else plain(value, NAME_CHARS)
    if isinstance(value, bool):
        return value
    if column.unit == "state":
        return None if value is None else plain(value, NAME_CHARS)
    return value if is_number(value) else None
