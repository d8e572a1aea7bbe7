"""Starts the configured exporters: shipped ones, and third-party ones by entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from time import monotonic
from typing import Any

from perfd.clock import Clock
from perfd.config import ExportersConfig
from perfd.errors import ConfigError
from perfd.exporters.alertmanager import AlertmanagerExporter
from perfd.exporters.exporter import (
    Exporter,
    ExporterContext,
    ExporterMemory,
    ExporterTally,
    MakeExporter,
    Round,
)
from perfd.exporters.exporter_runner import ExporterRunner, ExporterStatus
from perfd.exporters.jsonl import JsonLinesExporter
from perfd.exporters.mlflow import MlflowExporter
from perfd.exporters.notifications import NotificationExporter, receivers_of
from perfd.exporters.otlp import OtlpExporter
from perfd.exporters.remote_write import RemoteWriteExporter
from perfd.exporters.tensorboard import TensorBoardExporter
from perfd.exporters.wandb import WandbExporter

EXPORTER_GROUP = "perfd.exporters"
SHIPPED = frozenset(
    {"jsonl", "tensorboard", "wandb", "mlflow", "remote_write", "otlp", "alertmanager", "notifications"}
)

Made = tuple[str, Callable[[ExporterContext], Exporter]]


class ExporterRegistry:
    """All configured exporters, running. Raises `ConfigError` if one cannot work."""

    def __init__(
        self,
        config: ExportersConfig,
        clock: Clock,
        memory: Callable[[str], ExporterMemory | None] = lambda _name: None,
    ) -> None:
        """`memory` gives what the exporter of a name remembers over restarts."""
        # All are created before the first thread starts: an error in one leaves nothing behind.
        made = []
        for name, make in _configured(config):
            tally = ExporterTally()
            made.append((name, make(ExporterContext(clock=clock, tally=tally, memory=memory(name))), tally))
        self._runners = [ExporterRunner(name, exporter, tally) for name, exporter, tally in made]

    def __bool__(self) -> bool:
        return bool(self._runners)

    def offer(self, round_: Round) -> None:
        """Pass a round to each; returns at once."""
        for runner in self._runners:
            runner.offer(round_)

    def status(self) -> list[ExporterStatus]:
        """The counters of each."""
        return [runner.status() for runner in self._runners]

    def close(self, timeout_s: float) -> None:
        """End all of them, within this time in total."""
        deadline_s = monotonic() + timeout_s
        for runner in self._runners:
            runner.finish()
        for runner in self._runners:
            runner.close(max(0.0, deadline_s - monotonic()))


def _configured(config: ExportersConfig) -> Iterator[Made]:
    jsonl, tensorboard, wandb = config.jsonl, config.tensorboard, config.wandb
    remote_write, alertmanager = config.remote_write, config.alertmanager
    if jsonl.path is not None:
        yield "jsonl", lambda context: JsonLinesExporter(jsonl, context)
    if tensorboard.directory is not None:
        yield "tensorboard", lambda context: TensorBoardExporter(tensorboard, context)
    if wandb.mode != "disabled":
        yield "wandb", lambda context: WandbExporter(wandb, context)
    if config.mlflow.url is not None:
        yield "mlflow", lambda context: MlflowExporter(config.mlflow, context)
    if remote_write.url is not None:
        yield "remote_write", lambda context: RemoteWriteExporter(remote_write, context)
    if config.otlp.url is not None:
        yield "otlp", lambda context: OtlpExporter(config.otlp, context)
    for place, url in enumerate(alertmanager.urls):
        # One exporter per Alertmanager: one that does not answer must not delay the others.
        name = "alertmanager" if len(alertmanager.urls) == 1 else f"alertmanager-{place}"
        yield name, lambda context, url=url: AlertmanagerExporter(url, alertmanager, context)  # type: ignore[misc]  # defaults bind the loop's values
    notifications = config.notifications
    for receiver in receivers_of(notifications):
        yield (
            f"notifications-{receiver.name}",
            lambda context, receiver=receiver: NotificationExporter(receiver, notifications, context),  # type: ignore[misc]  # as above
        )
    for name, options in config.others.items():
        yield name, partial(_make_other, _entry_point(name), options)


def _entry_point(name: str) -> EntryPoint:
    if name in SHIPPED:
        raise ConfigError(f"exporters.others: {name!r} is an exporter of perfd; configure exporters.{name}.")
    points = {point.name: point for point in entry_points(group=EXPORTER_GROUP)}
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ConfigError(f"exporters.others: no exporter named {name!r}; installed: {known}.")
    return points[name]


def _make_other(point: EntryPoint, options: Mapping[str, Any], context: ExporterContext) -> Exporter:
    try:
        make: MakeExporter = point.load()
        return make(options, context)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"exporters.others.{point.name}: {point.value} raised {type(error).__name__}: {error}"
        ) from error
