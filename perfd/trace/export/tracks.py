"""Named slices of time on tracks: what a viewer of traces draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Slice:
    """A span of time with a name, and with texts that a viewer shows on a click."""

    start_ns: int
    end_ns: int
    name: str
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Track:
    """A row of slices below a process; slices may nest, and what overlaps otherwise has a separate row."""

    process: str
    name: str
    slices: Sequence[Slice]


def rows_of(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """The slices in as few rows as needed, so that two in a row are apart or one contains the other.

    In a row they are in order of start, the containing one first.
    """
    rows: list[tuple[list[Slice], list[int]]] = []
    for one in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
        row, open_ends = next((row for row in rows if _has_room(row[1], one)), ([], []))
        if not row:
            rows.append((row, open_ends))
        row.append(one)
        open_ends.append(one.end_ns)
    for row, _ in rows:
        yield row


def _has_room(open_ends: list[int], one: Slice) -> bool:
    """Whether the slice comes after those that have not ended yet, or is within the innermost of them."""
    while open_ends and open_ends[-1] <= one.start_ns:
        open_ends.pop()
    return not open_ends or one.end_ns <= open_ends[-1]
