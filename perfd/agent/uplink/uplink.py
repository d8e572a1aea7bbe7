"""The agent's end of the stream: keeps it open, sends the spool, deletes what is acknowledged."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import grpc

from perfd import __version__
from perfd.agent.spool import Spool
from perfd.agent.uplink import reconnect
from perfd.agent.uplink.grpc_channel import ChannelFactory, StreamCall, connect
from perfd.agent.uplink.outgoing import OutgoingMessages, Statuses, Timeouts, put_status
from perfd.agent.uplink.reconnect import ReconnectPolicy
from perfd.clock import Clock, SystemClock
from perfd.config import UplinkConfig
from perfd.errors import ConfigError, WireError
from perfd.model import (
    Ack,
    AggregatorMessage,
    CaptureCancel,
    CaptureRequest,
    CaptureStatus,
    CaptureTool,
    Goodbye,
    Hello,
    Welcome,
)
from perfd.wire import convert

log = logging.getLogger(__name__)

OnRequest: TypeAlias = Callable[[CaptureRequest | CaptureCancel], None]
"""Called in the thread of the uplink: returns at once and raises nothing."""

_KEPT_STATUSES = 64
_CLOSE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkState:
    """The state of the stream; replaced at each change, so any thread may read it."""

    connected: bool = False
    sent_sequence: int = 0
    acknowledged_sequence: int = 0
    batches_sent: int = 0
    connections: int = 0
    unknown_messages: int = 0


class Uplink:
    """Streams the batches of a spool to the aggregator, from its own thread.

    `clock` labels messages; waiting is always done in real time, because the
    network is real in a replay too. Raises `ConfigError` if `config` cannot work.
    """

    def __init__(
        self,
        config: UplinkConfig,
        *,
        node: str,
        spool: Spool,
        clock: Clock,
        on_request: OnRequest,
        capture_tools: Sequence[CaptureTool] = (),
        timeouts: Timeouts | None = None,
    ) -> None:
        self._config = config
        self._node = node
        self._spool = spool
        self._clock = clock
        self._real_clock = SystemClock()
        self._on_request = on_request
        self._capture_tools = tuple(capture_tools)
        self._timeouts = timeouts or Timeouts()
        self._dialler = ChannelFactory(config)
        self._policy = ReconnectPolicy(
            initial_s=config.backoff_initial_s, max_s=config.backoff_max_s, random=random.random
        )
        self._changed = threading.Condition()
        self._state = UplinkState()
        self._statuses: Statuses = {}
        self._outgoing: OutgoingMessages | None = None
        self._call: StreamCall | None = None
        self._in_backoff = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="perfd-uplink", daemon=True)

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

    def send_status(self, status: CaptureStatus) -> None:
        """Send the state of a capture to the aggregator: now, and again after each reconnection."""
        with self._changed:
            put_status(self._statuses, status)
            while len(self._statuses) > _KEPT_STATUSES:
                self._statuses.pop(next(iter(self._statuses)))
            if self._outgoing is not None:
                self._outgoing.add_status(status)

    def wait_acknowledged(self, sequence: int, timeout_s: float) -> bool:
        """True if the aggregator has everything up to `sequence` within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state.acknowledged_sequence >= sequence, timeout_s)

    def stop(self, flush_timeout_s: float, reason: str = "") -> None:
        """End the stream with a goodbye once all is acknowledged, or after `flush_timeout_s`.

        Does not wait for an aggregator that cannot be reached.
        """
        if not self._thread.is_alive():
            return
        with self._changed:
            self._changed.wait_for(self._flushed_or_hopeless, flush_timeout_s)
            self._stopping = True
            if self._outgoing is not None:
                self._outgoing.finish(Goodbye(reason=reason, sent_unix_ns=self._clock.unix_ns()))
            self._changed.notify_all()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._cancel_call()
            self._thread.join()

    def _flushed_or_hopeless(self) -> bool:
        if self._in_backoff:
            return True
        outgoing = self._outgoing
        return (
            self._state.connected
            and self._state.acknowledged_sequence >= self._spool.last_sequence
            and (outgoing is None or not outgoing.statuses_pending)
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
                    event = self._connect()
                case reconnect.Wait(seconds):
                    event = self._wait(seconds)
                case reconnect.ReportOutage(reason):
                    if not self._stopping:
                        log.warning(
                            "The aggregator is unreachable: batches wait in the spool.",
                            extra={"address": self._config.address, "reason": reason},
                        )
                case reconnect.ReportRecovery(outage_s):
                    log.info(
                        "The aggregator is connected again.",
                        extra={"address": self._config.address, "outage_s": round(outage_s, 1)},
                    )
        return event

    def _wait(self, seconds: float) -> reconnect.Event:
        with self._changed:
            self._in_backoff = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping, seconds)
            self._in_backoff = False
            return reconnect.Stopped() if self._stopping else reconnect.WaitOver()

    def _connect(self) -> reconnect.Event:
        if self._stopping:
            return reconnect.Stopped()
        try:
            channel, metadata = self._dialler.dial(), self._dialler.metadata()
        except ConfigError as error:
            return reconnect.Lost(str(error))
        with channel:
            outgoing = self._open_outgoing()
            call = self._call = connect(channel, outgoing, metadata)
            try:
                reason = self._receive_all(call, outgoing)
            except grpc.RpcError as error:
                reason = _reason(error)
            except WireError as error:
                reason = str(error)
            finally:
                with self._changed:
                    outgoing.close()
                    self._outgoing = None
                    self._state = replace(self._state, connected=False)
                call.cancel()
        return reconnect.Lost(reason)

    def _open_outgoing(self) -> OutgoingMessages:
        spool_epoch, previous_epoch = self._spool.epochs
        hello = Hello(
            agent_id=self._spool.agent_id,
            node=self._node,
            perfd_version=__version__,
            sent_unix_ns=self._clock.unix_ns(),
            first_sequence=self._spool.first_sequence,
            capture_tools=self._capture_tools,
            spool_epoch=spool_epoch,
            previous_epoch=previous_epoch,
        )
        with self._changed:
            self._outgoing = OutgoingMessages(
                hello=hello,
                spool=self._spool,
                window=self._config.max_unacknowledged,
                statuses=self._statuses.values(),
                changed=self._changed,
                on_stall=self._cancel_call,
                on_sent=self._count_sent,
                monotonic_s=self._real_clock.monotonic_s,
                timeouts=self._timeouts,
            )
            return self._outgoing

    def _receive_all(self, call: StreamCall, outgoing: OutgoingMessages) -> str:
        """Handle messages until the stream ends; returns why it ended."""
        for data in call:
            message = convert.decode_aggregator_message(data)
            if isinstance(message, Welcome) and message.renew_identity:
                self._spool.renew(convert.with_sequence, all_batches=True)
                log.warning(
                    "Another spool has this agent's identity, as on a copied disk: "
                    "the agent takes a new one.",
                    extra={"node": self._node},
                )
                return "the agent took a new identity"
            if isinstance(message, Welcome) and self._must_renew(message):
                self._spool.renew(convert.with_sequence)
                log.warning(
                    "The spool lost its newest sequence numbers, as after a power failure: "
                    "the agent takes a new identity.",
                    extra={"agent_id": self._spool.agent_id},
                )
                return "the agent took a new identity"
            self._handle(message, outgoing)
        return "the aggregator closed the stream"

    def _must_renew(self, welcome: Welcome) -> bool:
        # Nothing of this life was sent before the first welcome, so the aggregator cannot have more
        # than the spool had when it was opened, unless the spool lost something.
        known = max(welcome.last_sequence, welcome.received_sequence)
        return self._state.connections == 0 and known > self._spool.opened_after

    def _handle(self, message: AggregatorMessage | None, outgoing: OutgoingMessages) -> None:
        match message:
            case Welcome():
                self._execute(self._policy.handle(reconnect.Welcomed(), self._real_clock.monotonic_s()))
                self._spool.welcomed()
                self._acknowledge(message.last_sequence, message.received_sequence, outgoing, welcome=True)
            case Ack():
                self._acknowledge(message.sequence, message.received_sequence, outgoing, welcome=False)
            case CaptureRequest() | CaptureCancel():
                self._on_request(message)
            case None:
                self._state = replace(self._state, unknown_messages=self._state.unknown_messages + 1)

    def _acknowledge(self, stored: int, received: int, outgoing: OutgoingMessages, *, welcome: bool) -> None:
        with self._changed:
            # An aggregator that claims more than it was sent must not make the agent delete unsent batches.
            most = self._spool.last_sequence if welcome else outgoing.sent_sequence
            known, received = min(stored, most), min(max(stored, received), most)
            self._spool.acknowledge(known)
            if welcome:
                self._state = replace(self._state, connected=True, connections=self._state.connections + 1)
                outgoing.welcomed(received)
            else:
                outgoing.acknowledged(received)
            self._state = replace(
                self._state, acknowledged_sequence=max(known, self._state.acknowledged_sequence)
            )
            self._changed.notify_all()

    def _count_sent(self, sequence: int) -> None:
        self._state = replace(self._state, sent_sequence=sequence, batches_sent=self._state.batches_sent + 1)

    def _cancel_call(self) -> None:
        if self._call is not None:
            self._call.cancel()


def _reason(error: grpc.RpcError) -> str:
    # gRPC raises the call itself, which has its status.
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
