"""Collectors that do what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from perfd.agent.collection.collector_task import CollectorTask
from perfd.clock import Clock, VirtualClock
from perfd.collector import CollectorSpec, OnUnavailable, Options, Settings
from perfd.config import CollectorConfig
from perfd.model import Record, SampleTable, Scope, TrainingStep


class Scripted:
    """A collector that calls a function for its records."""

    def __init__(self, collect: Callable[[], Sequence[Record]]) -> None:
        self._collect = collect
        self.closed = threading.Event()

    def collect(self) -> Sequence[Record]:
        return self._collect()

    def close(self) -> None:
        self.closed.set()


class ScriptedOptions(Options, frozen=True):
    """Options of the scripted collector."""

    depth: int = 1


def task(
    collect: Callable[[], Sequence[Record]],
    *,
    name: str = "scripted",
    clock: Clock | None = None,
    create: Callable[[Any, Settings], Any] | None = None,
    on_unavailable: OnUnavailable = OnUnavailable.RETRY,
    lacks: dict[str, str] | None = None,
    **config: Any,
) -> CollectorTask:
    spec = CollectorSpec(
        name=name,
        options=ScriptedOptions,
        create=create or (lambda _options, _settings: Scripted(collect)),
        on_unavailable=on_unavailable,
    )
    settings = Settings(node="n1", job="j1", clock=clock or VirtualClock())
    return CollectorTask(spec, CollectorConfig(**config), settings, lacks)


def steps(count: int, *, first: int = 1) -> list[Record]:
    return [TrainingStep(job="j1", step=step) for step in range(first, first + count)]


def gpu_table(*powers_w: float, unix_ns: int = 0) -> SampleTable:
    return SampleTable(
        scope=Scope.GPU,
        times_unix_ns=[unix_ns] * len(powers_w),
        entities=[str(index) for index in range(len(powers_w))],
        columns={"power_w": list(powers_w)},
    )
