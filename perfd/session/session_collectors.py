"""Options and events that a session adds to an agent's collectors."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import msgspec

from perfd.collector import CollectorSpec, Options
from perfd.config import AgentConfig, CollectorConfig
from perfd.model import Event, Record


def with_options(
    config: AgentConfig,
    name: str,
    options: Mapping[str, object],
    *,
    interval_s: float | None = None,
    override: bool = False,
) -> AgentConfig:
    """The configuration with `options` for a collector, unless it sets them; with `override` in any case."""
    collector = config.collectors.get(name, CollectorConfig())
    merged = CollectorConfig(
        enabled=True if collector.enabled is None else collector.enabled,
        interval_s=collector.interval_s or interval_s,
        on_unavailable=collector.on_unavailable,
        options={**collector.options, **options} if override else {**options, **collector.options},
    )
    return msgspec.structs.replace(config, collectors={**config.collectors, name: merged})


class SessionEvents:
    """A collector of the session's own events; `report` may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Event] = []

    def report(self, event: Event) -> None:
        """Let the next `collect` return an event."""
        with self._changed:
            self._waiting.append(event)

    def wait_taken(self, timeout_s: float) -> bool:
        """True if `collect` returns every event within `timeout_s`."""
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
