"""The base of exporters that push all series over HTTP: at an interval, compressed, kept while they wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from perfd.config.exporter_config import PushConfig
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.exporter import ExporterContext, Round
from perfd.exporters.http_post import Poster
from perfd.exporters.pending_bodies import Body, PendingBodies

_EARLY_S = 1e-3
"""Rounds come about every second; one that is this much early is still sent."""


class SeriesPush(ABC):
    """Sends the bodies of every round that is due; retries with increasing waits, dropping the oldest."""

    def __init__(
        self,
        config: PushConfig,
        context: ExporterContext,
        *,
        key: str,
        receiver: str,
        headers: Mapping[str, str],
    ) -> None:
        """`key` names the exporter in errors of configuration, `receiver` the other side in logs."""
        if config.url is None:
            raise ConfigError(f"{key}.url: required.")
        if not config.interval_s >= 0:
            raise ConfigError(f"{key}.interval_s must not be negative.")
        self._interval_s = config.interval_s
        self._sent_unix_s: float | None = None
        self._pending = PendingBodies(
            receiver,
            Poster(config.url, config.http, key=key),
            headers,
            max_bytes=config.max_pending_bytes,
            backoff=Backoff(initial_s=config.backoff_initial_s, max_s=config.backoff_max_s),
            context=context,
        )

    def export(self, round_: Round) -> None:
        last = self._sent_unix_s
        if last is None or not 0 <= round_.time_unix_s - last < self._interval_s - _EARLY_S:
            self._sent_unix_s = round_.time_unix_s
            for body in self._bodies(round_):
                self._pending.keep(Body(data=self._compress(body.data), samples=body.samples))
        self._pending.send_after(round_.time_unix_s)

    def close(self) -> None:
        self._pending.close()

    @abstractmethod
    def _bodies(self, round_: Round) -> Iterable[Body]:
        """The requests that carry a round, uncompressed."""

    @abstractmethod
    def _compress(self, data: bytes) -> bytes:
        """A request's body as it is sent."""
