"""Copies a collector's records to a second reader: the writer of a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from perfd.collector import Collector, CollectorSpec, Settings
from perfd.model import Record

Sink = Callable[[str, Sequence[Record]], None]
"""Takes the collector's name and its records; raises nothing."""


def tapped(spec: CollectorSpec, sink: Sink) -> CollectorSpec:
    """The same collector, whose records also go to `sink`, in the collector's own thread."""

    def create(options: Any, settings: Settings) -> Collector:  # noqa: ANN401  (as in CollectorSpec)
        return _Tapped(spec.name, spec.create(options, settings), sink)

    return replace(spec, create=create)


class _Tapped:
    def __init__(self, name: str, collector: Collector, sink: Sink) -> None:
        self._name = name
        self._collector = collector
        self._sink = sink

    def collect(self) -> Sequence[Record]:
        records = self._collector.collect()
        if records:
            self._sink(self._name, records)
        return records

    def close(self) -> None:
        self._collector.close()
