"""What every uplink does: keeps a connection open in its own thread, and knows what was acknowledged."""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from perfd import __version__
from perfd.agent.spool import Spool
from perfd.agent.uplink import reconnect
from perfd.agent.uplink.outgoing import Statuses, Timeouts, put_status
from perfd.agent.uplink.reconnect import ReconnectPolicy
from perfd.clock import Clock, SystemClock
from perfd.config import UplinkConfig
from perfd.model import BatchInterval, CaptureStatus, CaptureTool, Goodbye, Hello, NodeMessage, Welcome
from perfd.wire.encoded_messages import with_sequence

log = logging.getLogger(__name__)

OnRequest: TypeAlias = Callable[[NodeMessage], None]
"""Called in the thread of the uplink: returns at once and raises nothing."""

_KEPT_STATUSES = 64
"""Newest states of captures that wait for a connection; older ones are superseded by then."""
_CLOSE_TIMEOUT_S = 1.0
"""For the end of the thread once its connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkState:
    """The state of the stream; replaced at each change, so any thread may read it."""

    connected: bool = False
    sent_sequence: int = 0
    acknowledged_sequence: int = 0
    batches_sent: int = 0
    batches_sent_again: int = 0
    """Those that this process had sent before."""
    connections: int = 0
    unknown_messages: int = 0


class Uplink(ABC):
    """Sends the batches of a spool, from its own thread.

    `clock` labels messages; waiting is always done in real time, because the
    network is real in a replay too. `job` is the agent's own one, if it is configured.
    Raises `ConfigError` if `config` cannot work.
    """

    def __init__(
        self,
        config: UplinkConfig,
        *,
        node: str,
        spool: Spool,
        clock: Clock,
        on_request: OnRequest,
        job: str | None = None,
        capture_tools: Sequence[CaptureTool] = (),
        timeouts: Timeouts | None = None,
    ) -> None:
        self._config = config
        self._node = node
        self._job = job
        self._spool = spool
        self._clock = clock
        self._real_clock = SystemClock()
        self._on_request = on_request
        self._capture_tools = tuple(capture_tools)
        self._timeouts = timeouts or Timeouts()
        self._policy = ReconnectPolicy(
            initial_s=config.backoff_initial_s, max_s=config.backoff_max_s, random=random.random
        )
        self._changed = threading.Condition()
        self._state = UplinkState()
        self._most_sent = 0
        self._is_asked = False
        """Whether the other end wants batches at another interval while nothing changes."""
        self._statuses: Statuses = {}
        self._in_backoff = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="perfd-uplink", daemon=True)
        self._peer = self._prepare(config)

    @property
    def state(self) -> UplinkState:
        """The state of the stream."""
        return self._state

    def start(self) -> None:
        """Connect, and reconnect whenever the stream ends."""
        self._thread.start()

    def notify(self) -> None:
        """Report that the spool has new batches."""
        with self._changed:
            self._changed.notify_all()
            self._wake()

    def send_status(self, status: CaptureStatus) -> None:
        """Send the state of a capture to the aggregator: now, and again after each reconnection."""
        with self._changed:
            put_status(self._statuses, status)
            while len(self._statuses) > _KEPT_STATUSES:
                self._statuses.pop(next(iter(self._statuses)))
            self._send_status(status)

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """True if everything up to `sequence` is acknowledged within `timeout_s`."""
        with self._changed:
            self._hurry()
            return self._changed.wait_for(lambda: self._state.acknowledged_sequence >= sequence, timeout_s)

    def stop(self, flush_timeout_s: float, reason: str = "") -> None:
        """End the stream with a goodbye once all is acknowledged, or after `flush_timeout_s`.

        Does not wait for a peer that cannot be reached.
        """
        if not self._thread.is_alive():
            return
        with self._changed:
            self._hurry()
            self._changed.wait_for(self._flushed_or_hopeless, flush_timeout_s)
            self._stopping = True
            self._finish(Goodbye(reason=reason, sent_unix_ns=self._clock.unix_ns()))
            self._changed.notify_all()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._cancel()
            self._thread.join()

    @abstractmethod
    def _prepare(self, config: UplinkConfig) -> str:
        """Check what is configured; returns the name of the other end for logs. Raises `ConfigError`."""

    @abstractmethod
    def _converse(self) -> str:
        """Connect, send and receive until the connection ends; returns why it did."""

    @abstractmethod
    def _hurry(self) -> None:
        """Have batches acknowledged as soon as possible from here on; called with `_changed` held."""

    @abstractmethod
    def _finish(self, goodbye: Goodbye) -> None:
        """End the connection after a goodbye; called with `_changed` held."""

    @abstractmethod
    def _cancel(self) -> None:
        """End the connection now, from any thread."""

    @abstractmethod
    def _send_status(self, status: CaptureStatus) -> None:
        """Send a status over the open connection; called with `_changed` held."""

    @abstractmethod
    def _statuses_pending(self) -> bool:
        """Whether statuses wait to be sent; called with `_changed` held."""

    @abstractmethod
    def _wake(self) -> None:
        """Look for new batches; called with `_changed` held, which is notified too."""

    def _flushed_or_hopeless(self) -> bool:
        if self._in_backoff:
            return True
        return (
            self._state.connected
            and self._state.acknowledged_sequence >= self._spool.last_sequence
            and not self._statuses_pending()
        )

    def _run(self) -> None:
        event: reconnect.Event | None = reconnect.Started()
        while event is not None:
            actions = self._policy.handle(event, self._real_clock.monotonic_s())
            event = self._execute(actions)

    def _execute(self, actions: Sequence[reconnect.Action]) -> reconnect.Event | None:
        """Carry out `actions`; returns the event that the last of them led to."""
        event: reconnect.Event | None = None
        for action in actions:
            match action:
                case reconnect.Connect():
                    event = reconnect.Stopped() if self._stopping else reconnect.Lost(self._converse())
                    # What the other end asked for holds as long as the connection.
                    self._end_request()
                case reconnect.Wait(seconds):
                    event = self._wait(seconds)
                case reconnect.ReportConnection():
                    log.info("The aggregator is connected.", extra={"address": self._peer})
                case reconnect.ReportOutage(reason):
                    if not self._stopping:
                        log.warning(
                            "The aggregator is unreachable: batches wait in the spool.",
                            extra={"address": self._peer, "reason": reason},
                        )
                case reconnect.ReportRecovery(outage_s):
                    log.info(
                        "The aggregator is connected again.",
                        extra={"address": self._peer, "outage_s": round(outage_s, 1)},
                    )
        return event

    def _wait(self, seconds: float) -> reconnect.Event:
        with self._changed:
            self._in_backoff = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping, seconds)
            self._in_backoff = False
            return reconnect.Stopped() if self._stopping else reconnect.WaitOver()

    def _hello(self, first_sequence: int) -> Hello:
        spool_epoch, previous_epoch = self._spool.epochs
        return Hello(
            agent_id=self._spool.agent_id,
            node=self._node,
            perfd_version=__version__,
            sent_unix_ns=self._clock.unix_ns(),
            first_sequence=first_sequence,
            capture_tools=self._capture_tools,
            spool_epoch=spool_epoch,
            previous_epoch=previous_epoch,
        )

    def _pass_on(self, message: NodeMessage) -> None:
        if isinstance(message, BatchInterval):
            self._is_asked = message.quiet_s > 0
        self._on_request(message)

    def _end_request(self) -> None:
        """Take back the interval of batches that was requested, if one was."""
        if self._is_asked:
            self._pass_on(BatchInterval(quiet_s=0.0))

    def _welcomed(self) -> None:
        """Note that the other end takes batches; the state is the caller's."""
        self._execute(self._policy.handle(reconnect.Welcomed(), self._real_clock.monotonic_s()))

    def _renewed(self, welcome: Welcome, most_sent: int) -> bool:
        """Take a new identity if a welcome requires it.

        An aggregator cannot have more than the spool had when it was opened, or than was sent since: up to
        `most_sent`. If it claims more, the spool lost something, or its history is damaged; then it would
        take new batches for repeats.
        """
        if welcome.renew_identity:
            self._renew(all_batches=True)
            log.warning(
                "Another spool has this agent's identity, as on a copied disk: the agent takes a new one.",
                extra={"node": self._node},
            )
            return True
        known = max(welcome.last_sequence, welcome.received_sequence, welcome.known_sequence)
        if known > max(self._spool.opened_after, most_sent):
            # What was sent is not known to be stored; what is stored is there once, whoever sends it again.
            self._renew(all_batches=most_sent > 0)
            log.warning(
                "The aggregator has newer sequence numbers than the spool, as after a power failure or with "
                "a damaged history: the agent takes a new identity.",
                extra={"agent_id": self._spool.agent_id},
            )
            return True
        return False

    def _renew(self, *, all_batches: bool) -> None:
        with self._changed:
            self._spool.renew(with_sequence, all_batches=all_batches)
            self._most_sent = 0
            self._state = replace(self._state, acknowledged_sequence=0, sent_sequence=0)

    def _know_acknowledged(self, sequence: int) -> None:
        """Delete what is acknowledged from the spool; called with `_changed` held."""
        self._spool.acknowledge(sequence)
        self._state = replace(
            self._state, acknowledged_sequence=max(sequence, self._state.acknowledged_sequence)
        )
        self._changed.notify_all()

    def _count_again(self) -> None:
        again = self._state.batches_sent_again + 1
        self._state = replace(self._state, batches_sent_again=again)

    def _count_sent(self, sequence: int) -> None:
        if sequence <= self._most_sent:
            self._count_again()
        self._most_sent = max(self._most_sent, sequence)
        self._state = replace(self._state, sent_sequence=sequence, batches_sent=self._state.batches_sent + 1)

    def _count_unknown_message(self) -> None:
        self._state = replace(self._state, unknown_messages=self._state.unknown_messages + 1)
