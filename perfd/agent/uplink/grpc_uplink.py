"""The agent's end of the gRPC stream: keeps it open, sends the spool, deletes what is acknowledged."""

from __future__ import annotations

from dataclasses import replace

import grpc

from perfd.agent.uplink.grpc_channel import ChannelFactory, StreamCall, connect
from perfd.agent.uplink.outgoing import OutgoingMessages
from perfd.agent.uplink.uplink import Uplink
from perfd.config import UplinkConfig
from perfd.errors import ConfigError, WireError
from perfd.model import (
    Ack,
    AggregatorMessage,
    BatchInterval,
    CaptureCancel,
    CaptureRequest,
    CaptureStatus,
    Goodbye,
    NewFinding,
    Welcome,
)
from perfd.wire import convert

_WINDOW_SHARE = 4
"""Of the batches that may be unacknowledged so large a part waits for one acknowledgment: it is not the one
batch that would fill the window, and a burst has few acknowledgments."""


class GrpcUplink(Uplink):
    """Streams batches to an aggregator."""

    _outgoing: OutgoingMessages | None = None
    _call: StreamCall | None = None
    _hurried = False
    """Whether batches are waited for, so that each is to be acknowledged at once."""

    def _prepare(self, config: UplinkConfig) -> str:
        self._dialler = ChannelFactory(config)
        return config.address

    def _wake(self) -> None:
        """Nothing to do: gRPC's thread waits for `_changed`."""

    def _hurry(self) -> None:
        self._hurried = True
        if self._outgoing is not None:
            self._outgoing.hurry()

    def _finish(self, goodbye: Goodbye) -> None:
        if self._outgoing is not None:
            self._outgoing.finish(goodbye)

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _send_status(self, status: CaptureStatus) -> None:
        if self._outgoing is not None:
            self._outgoing.add_status(status)

    def _statuses_pending(self) -> bool:
        return self._outgoing is not None and self._outgoing.statuses_pending

    def _converse(self) -> str:
        try:
            channel, metadata = self._dialler.dial(), self._dialler.metadata()
        except ConfigError as error:
            return str(error)
        with channel:
            outgoing = self._open_outgoing()
            call = self._call = connect(channel, outgoing, metadata)
            try:
                return self._receive_all(call, outgoing)
            except grpc.RpcError as error:
                return _reason(error)
            except WireError as error:
                return str(error)
            finally:
                with self._changed:
                    outgoing.close()
                    self._outgoing = None
                    self._state = replace(self._state, connected=False)
                call.cancel()

    def _open_outgoing(self) -> OutgoingMessages:
        hello = self._hello(self._spool.first_sequence)
        with self._changed:
            if not self._hurried:
                hello = replace(hello, acknowledge_every=self._config.max_unacknowledged // _WINDOW_SHARE)
            self._outgoing = OutgoingMessages(
                hello=hello,
                spool=self._spool,
                window=self._config.max_unacknowledged,
                statuses=self._statuses.values(),
                changed=self._changed,
                on_stall=self._cancel,
                on_sent=self._count_sent,
                monotonic_s=self._real_clock.monotonic_s,
                timeouts=self._timeouts,
            )
            return self._outgoing

    def _receive_all(self, call: StreamCall, outgoing: OutgoingMessages) -> str:
        """Handle messages until the stream ends; returns why it ended."""
        for data in call:
            message = convert.decode_aggregator_message(data)
            if isinstance(message, Welcome) and self._renewed(message, self._most_sent):
                return "the agent took a new identity"
            self._handle(message, outgoing)
        return "the aggregator closed the stream"

    def _handle(self, message: AggregatorMessage | None, outgoing: OutgoingMessages) -> None:
        match message:
            case Welcome():
                self._welcomed()
                self._spool.welcomed()
                self._acknowledge(message.last_sequence, message.received_sequence, outgoing, welcome=True)
            case Ack():
                self._acknowledge(message.sequence, message.received_sequence, outgoing, welcome=False)
            case CaptureRequest() | CaptureCancel() | NewFinding() | BatchInterval():
                self._pass_on(message)
            case None:
                self._count_unknown_message()

    def _acknowledge(self, stored: int, received: int, outgoing: OutgoingMessages, *, welcome: bool) -> None:
        with self._changed:
            # An aggregator that claims more than it was sent must not make the agent delete unsent batches.
            most = self._spool.last_sequence if welcome else outgoing.sent_sequence
            known, received = min(stored, most), min(max(stored, received), most)
            if welcome:
                self._state = replace(self._state, connected=True, connections=self._state.connections + 1)
                outgoing.welcomed(received)
            else:
                outgoing.acknowledged(received)
            self._know_acknowledged(known)


def _reason(error: grpc.RpcError) -> str:
    # gRPC raises the call itself, which has its status.
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
