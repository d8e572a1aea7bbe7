"""The collectors of a session: those that are installed, with what only a session knows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from perfd.agent.task import CollectorTask
from perfd.collector import CollectorSpec, Options, Settings
from perfd.config import AgentConfig, CollectorConfig
from perfd.errors import ConfigError
from perfd.model import Event, Record
from perfd.plugins import collector_entry_points, load_collector

log = logging.getLogger(__name__)

Adapt = Callable[[CollectorSpec], CollectorSpec]


def session_tasks(config: AgentConfig, settings: Settings, *, adapt: Adapt) -> list[CollectorTask]:
    """A task for each enabled collector, made of `adapt(spec)`.

    Raises `ConfigError` when a configured collector does not exist or its options are wrong.
    """
    tasks = []
    for name in sorted({*collector_entry_points(), *config.collectors}):
        collector = config.collectors.get(name, CollectorConfig())
        if collector.enabled is False:
            continue
        spec = _load(name, named=name in config.collectors)
        if spec is not None and (spec.enabled or collector.enabled):
            tasks.append(CollectorTask(adapt(spec), collector, settings))
    return tasks


def with_options(
    config: AgentConfig, name: str, options: Mapping[str, object], *, interval_s: float | None = None
) -> AgentConfig:
    """The configuration with `options` for a collector, where the operator did not set them."""
    collector = config.collectors.get(name, CollectorConfig())
    merged = CollectorConfig(
        enabled=True if collector.enabled is None else collector.enabled,
        interval_s=collector.interval_s or interval_s,
        on_unavailable=collector.on_unavailable,
        options={**options, **collector.options},
    )
    return msgspec.structs.replace(config, collectors={**config.collectors, name: merged})


class SessionEvents:
    """A collector of what the session itself has to say; `tell` may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Event] = []

    def tell(self, event: Event) -> None:
        """Let the next `collect` return an event."""
        with self._changed:
            self._waiting.append(event)

    def wait_taken(self, timeout_s: float) -> bool:
        """Whether every event was returned by `collect`, after `timeout_s` at the latest."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def spec(self, interval_s: float) -> CollectorSpec:
        """This collector, for an agent."""
        return CollectorSpec(name="session", options=Options, create=lambda *_: self, interval_s=interval_s)

    def collect(self) -> Sequence[Record]:
        with self._changed:
            events, self._waiting = self._waiting, []
            self._changed.notify_all()
        return events

    def close(self) -> None:
        pass


def _load(name: str, *, named: bool) -> CollectorSpec | None:
    try:
        return load_collector(name)
    except (ConfigError, ImportError, AttributeError) as error:
        if named:
            raise ConfigError(f"collectors.{name}: {error}") from error
        # One broken package of a third party must not keep the session from its other sources.
        log.warning("A collector cannot be loaded.", extra={"collector": name, "reason": str(error)})
        return None
