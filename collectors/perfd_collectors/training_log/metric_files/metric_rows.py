"""What a reader of a metric file yields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

MAX_KEYS = 2000
"""Of a row; further ones are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """The numbers that a job logged for a step."""

    step: int
    values: Mapping[str, float]
    """By the job's own names; finite."""
    unix_ns: int | None = None
    """When it logged them; None where the file does not say."""


class MetricFileReader(Protocol):
    """Reads one growing file, piece by piece; what is not one of its rows is passed over."""

    def feed(self, data: bytes) -> Iterator[MetricRow]:
        """The rows that are complete with these further bytes."""

    def restart(self) -> None:
        """The file begins anew."""

    def flush(self) -> Iterator[MetricRow]:
        """Rows that are complete because nothing came for a while."""
