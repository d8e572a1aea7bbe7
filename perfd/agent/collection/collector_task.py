"""Runs one collector: timing, isolation, health, and the reaction to a missing source."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from perfd.collector import Bookmark, Collector, CollectorSpec, OnUnavailable, Settings
from perfd.config import CollectorConfig, unknown_keys
from perfd.errors import ConfigError, NothingHere, Unavailable, WireError
from perfd.model import CollectorHealth, Record
from perfd.wire import convert

log = logging.getLogger(__name__)

Deliver: TypeAlias = Callable[[Sequence[Record], Mapping[str, str]], WireError | None]
"""Takes a collector's records that can be sent, and its bookmark by its name if it has one.

Returns why the first of the other records cannot be sent.
"""

SHORTEST_INTERVAL_S = 0.1
"""More readings would cost the job more than they show. Chosen."""
HEALTH_INTERVAL_S = 10.0
"""Health is recorded when it changes, and at least this often."""
_RETRY_INITIAL_S = 1.0
"""To the first retry of a source that cannot be opened; it doubles with each failure."""
_RETRY_MAX_S = 60.0
"""A source that appears later, such as a driver that is installed, is found within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The state of a collector; replaced at each run, so any thread may read it."""

    collector: str
    success: bool | None = None
    """None before the end of the first run, and for a collector without a source on this node."""
    message: str = ""
    duration_s: float | None = None
    last_success_unix_ns: int | None = None
    missed_ticks: int = 0
    running_since_s: float | None = None
    """On the monotonic clock; None between runs."""
    finished: bool = False


class CollectorTask:
    """One collector with its configuration. All methods but `state` and `announce_end` belong to one thread.

    `lacks` is shared by the agent: what its node does not have, with the collector that reported it.
    Raises `ConfigError` if the operator's options are wrong.
    """

    def __init__(
        self,
        spec: CollectorSpec,
        config: CollectorConfig,
        settings: Settings,
        lacks: dict[str, str] | None = None,
    ) -> None:
        self.name = spec.name
        self.interval_s = spec.interval_s if config.interval_s is None else config.interval_s
        if not self.interval_s >= SHORTEST_INTERVAL_S:
            raise ConfigError(
                f"collectors.{spec.name}.interval_s is {self.interval_s}; "
                f"the shortest is {SHORTEST_INTERVAL_S}."
            )
        self.on_unavailable = config.on_unavailable or spec.on_unavailable
        self.columns = spec.columns
        self._options = _options(spec, config)
        self._spec = spec
        self.bookmark = Bookmark()
        """The collector's read position."""
        self._settings = dataclasses.replace(settings, bookmark=self.bookmark)
        self._lacks = {} if lacks is None else lacks
        self._collector: Collector | None = None
        self._failed_opens = 0
        self._retry_at_s = float("-inf")
        self._health_at_s = float("-inf")
        self._state = TaskState(collector=spec.name)

    @property
    def state(self) -> TaskState:
        """The collector's state."""
        return self._state

    def open(self) -> None:
        """Raise `Unavailable` if the source is missing and the agent must not start without it."""
        if self.on_unavailable is not OnUnavailable.ERROR or self._collector is not None:
            return
        try:
            self._collector = self._create()
        except Exception as error:
            raise Unavailable(
                f"The collector {self.name!r} cannot run here: {_sentence(error)} "
                f"Fix that, or set collectors.{self.name}.on_unavailable to retry or ignore."
            ) from error

    def run_once(self, now_s: float) -> Sequence[Record]:
        """The collector's records at `now_s`, and its health when that is due; as `deliver_due`."""
        found: list[Record] = []

        def keep(records: Sequence[Record], _bookmarks: Mapping[str, str]) -> WireError | None:
            sendable, refused = convert.encode_records(records)
            found.extend(record for record, _ in sendable)
            return refused

        self.deliver_due(keep, now_s)
        return found

    def deliver_due(self, deliver: Deliver, now_s: float) -> None:
        """Pass the collector's records at `now_s` and its read position after them to `deliver`.

        And its health when that is due. Never raises. Nothing while a missing source is not retried yet.
        """
        if self._state.finished or now_s < self._retry_at_s:
            return
        self._state = dataclasses.replace(self._state, running_since_s=now_s)
        started_s = self._settings.clock.monotonic_s()
        error = self._attempt(deliver, now_s)
        duration_s = self._settings.clock.monotonic_s() - started_s
        if health := self._conclude(error, duration_s, now_s):
            deliver(health, self._bookmarks())

    def announce_end(self) -> None:
        """Announce to the collector that its next call is the last; from any thread."""
        self._settings.ending.set()

    def miss(self, ticks: int) -> None:
        """Count ticks that passed during an earlier run."""
        if ticks:
            self._state = dataclasses.replace(self._state, missed_ticks=self._state.missed_ticks + ticks)

    def close(self) -> None:
        """Release the collector's resources; may be called twice."""
        collector, self._collector = self._collector, None
        if collector is None:
            return
        try:
            collector.close()
        except Exception:
            log.warning("A collector could not be closed.", extra={"collector": self.name}, exc_info=True)

    def _bookmarks(self) -> Mapping[str, str]:
        return {} if self.bookmark.text is None else {self.name: self.bookmark.text}

    def _attempt(self, deliver: Deliver, now_s: float) -> Exception | None:
        try:
            if self._collector is None:
                self._collector = self._create()
            self._failed_opens = 0
            records = list(self._collector.collect())
            return deliver(records, self._bookmarks()) if records else None
        except Exception as error:  # noqa: BLE001  (the boundary that isolates collectors from the agent)
            if isinstance(error, Unavailable) or self._collector is None:
                self._source_gone(error, now_s)
            return error

    def _create(self) -> Collector:
        return self._spec.create(self._options, self._settings)

    def _source_gone(self, error: Exception, now_s: float) -> None:
        self.close()
        if isinstance(error, Unavailable) and self.on_unavailable is OnUnavailable.IGNORE:
            self._state = dataclasses.replace(self._state, finished=True)
            return
        delay_s = min(_RETRY_MAX_S, max(self.interval_s, _RETRY_INITIAL_S) * 2**self._failed_opens)
        self._failed_opens = min(self._failed_opens + 1, 16)
        self._retry_at_s = now_s + delay_s

    def _conclude(
        self, error: Exception | None, duration_s: float, now_s: float
    ) -> Sequence[CollectorHealth]:
        before = self._state
        message = "" if error is None else _sentence(error)
        unix_ns = self._settings.clock.unix_ns()
        # A source that worked or failed before exists, even if it is reported as missing now.
        not_of_this_node = isinstance(error, NothingHere) and before.success is None
        self._state = dataclasses.replace(
            before,
            success=None if before.finished or not_of_this_node else error is None,
            message=message,
            duration_s=duration_s,
            last_success_unix_ns=unix_ns if error is None else before.last_success_unix_ns,
            running_since_s=None,
        )
        if before.finished:
            log.info(
                "A collector is skipped on this node.", extra={"collector": self.name, "reason": message}
            )
            return ()
        if not_of_this_node:
            if message != before.message:
                self._say_lack(message)
            return ()
        changed = before.success is not self._state.success
        if changed:
            self._log_change(error, message, first=before.success is None)
        if not changed and now_s < self._health_at_s:
            return ()
        self._health_at_s = now_s + HEALTH_INTERVAL_S
        return (
            CollectorHealth(
                collector=self.name,
                time_unix_ns=unix_ns,
                duration_s=duration_s,
                success=error is None,
                message=message,
            ),
        )

    def _say_lack(self, reason: str) -> None:
        """One warning for all collectors, and all attempts, that lack the same thing."""
        # Other collectors report it from other threads: `setdefault` lets one of them be the first.
        if self._lacks.setdefault(reason, self.name) == self.name:
            log.warning(
                "A collector has nothing to read on this node.",
                extra={"collector": self.name, "reason": reason},
            )

    def _log_change(self, error: Exception | None, message: str, *, first: bool) -> None:
        facts = {"collector": self.name, "reason": message}
        if error is None:
            if not first:
                log.info("A collector works again.", extra={"collector": self.name})
        elif isinstance(error, Unavailable | WireError):
            log.warning("A collector fails; it is tried again.", extra=facts)
        else:
            # Not an error that a collector raises on purpose: its author needs the traceback.
            log.warning("A collector fails; it is tried again.", extra=facts, exc_info=error)


def _options(spec: CollectorSpec, config: CollectorConfig) -> object:
    try:
        return msgspec.convert(config.options, spec.options)
    except msgspec.ValidationError as error:
        place = f"collectors.{spec.name}.options"
        unknown = "\n".join(f"{place}: {key.sentence}" for key in unknown_keys(config.options, spec.options))
        raise ConfigError(unknown or f"{place}: {error}") from error


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__
