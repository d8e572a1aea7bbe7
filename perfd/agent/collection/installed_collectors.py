"""The collectors that an agent runs: the installed ones, as configured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from perfd.agent.collection.collector_task import CollectorTask
from perfd.collector import CollectorSpec, Settings
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.config import AgentConfig, CollectorConfig
from perfd.errors import ConfigError

log = logging.getLogger(__name__)


def create_tasks(
    config: AgentConfig,
    settings: Settings,
    *,
    adapt: Callable[[CollectorSpec], CollectorSpec] = lambda spec: spec,
) -> Sequence[CollectorTask]:
    """A task for each enabled collector, made of `adapt(spec)`.

    One that is disabled by name is not even imported.
    Raises `ConfigError` if a configured collector does not exist or its options are wrong.
    """
    tasks = []
    lacks: dict[str, str] = {}
    for name in sorted({*collector_entry_points(), *config.collectors}):
        collector_config = config.collectors.get(name, CollectorConfig())
        if collector_config.enabled is False:
            continue
        spec = _load(name, named=name in config.collectors)
        if spec is not None and (spec.enabled or collector_config.enabled):
            tasks.append(CollectorTask(adapt(spec), collector_config, settings, lacks))
    return tasks


def _load(name: str, *, named: bool) -> CollectorSpec | None:
    try:
        return load_collector(name)
    except (ConfigError, ImportError, AttributeError) as error:
        if named:
            raise ConfigError(f"collectors.{name}: {error}") from error
        # A broken third-party package must not affect the agent's other sources.
        log.warning("A collector cannot be loaded.", extra={"collector": name, "reason": str(error)})
        return None
