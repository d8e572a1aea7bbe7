"""The gRPC server that agents open their stream to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import grpc.aio

from perfd.aggregator.ingest import waiting_messages
from perfd.aggregator.ingest.address_shares import AddressShares, address_of
from perfd.aggregator.ingest.agent_credential import ANYBODY, AgentCredential, credential_of_certificate
from perfd.aggregator.ingest.agent_sessions import AgentSessions
from perfd.aggregator.ingest.agent_stream import AgentStream, Context, write_all
from perfd.aggregator.ingest.kubernetes_tokens import TokenReviews
from perfd.aggregator.ingest.server_credentials import ServerCertificates
from perfd.aggregator.ingest.waiting_messages import WaitingMessages
from perfd.clock import Schedule
from perfd.config import AgentIdentityConfig, TlsConfig
from perfd.errors import ConfigError, PerfdError, RefusedError, WireError
from perfd.model import AcknowledgeEach, Hello, NodeMessage
from perfd.net import is_loopback, split_address
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.convert import encode_message
from perfd.wire.service import CONNECT_METHOD, SERVER_OPTIONS

log = logging.getLogger(__name__)

_MAX_MESSAGES = 1024
"""That wait for an agent that does not read."""
_MAX_WARNED = 1024
"""Addresses that are remembered as logged."""
_LOOK_EVERY_S = 1.0
"""How often streams are looked at whose batches are not acknowledged."""
_EARLIEST_LOOK, _LATEST_LOOK = 0.8, 1.1
"""Shares of that time: a look waits for the next messages, which usually come each second."""
_ACKNOWLEDGED_WITHIN_LOOKS = 15
"""That many looks. Agents that ask for no more keep so many seconds of batches in their spools."""
_ACKNOWLEDGED_TOGETHER = 32
"""Streams that are acknowledged at the same look: alone each takes 0.3 ms, from cold caches."""
_ACKNOWLEDGE_EACH = encode_message(AcknowledgeEach())
_LAST_WRITE_WITHIN_S = 5.0
"""How long the end of a stream waits for an agent that does not read. Chosen."""
_REVIEWS_AT_A_TIME = 8
"""By the Kubernetes API server. Chosen, not measured: with 10 ms each, 1,000 agents are reviewed in 1.3 s."""


class TelemetryServer:
    """Serves `Telemetry.Connect`. All methods but `send` run in the event loop that serves it."""

    def __init__(
        self,
        sessions: AgentSessions,
        identity: AgentIdentityConfig | None = None,
        rounds: Schedule | None = None,
    ) -> None:
        """`rounds` are those that need what agents sent."""
        self._sessions = sessions
        self._identity = identity or AgentIdentityConfig()
        self._must_show_certificate = False
        tokens = self._identity.kubernetes
        self._reviews = TokenReviews(tokens) if tokens is not None else None
        self._numbers = itertools.count(1)
        self._streams: dict[str, AgentStream] = {}
        """By agent."""
        self._stream_of: dict[str, AgentStream] = {}
        """By node."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._looked_s, self._looks = 0.0, -1
        """When streams were looked at last, by the loop's clock, and how often."""
        self._stored_of: deque[str] = deque()
        """Agents of which something was stored."""
        self._waking = False
        self._waiting = WaitingMessages(sessions, self._messages_taken, rounds)
        self._warned: set[str] = set()
        """Addresses that had their share, logged once."""
        limits = sessions.limits
        self._agents_of = AddressShares(limits.agents)
        self._strangers_of = AddressShares(limits.streams_without_hello)
        self._held_bytes_of = AddressShares(limits.held_message_bytes)
        self._reviews_of = AddressShares(limits.token_reviews)
        self._review_threads = ThreadPoolExecutor(_REVIEWS_AT_A_TIME, "perfd-token-review")

    async def start(self, address: str, tls: TlsConfig | None, *, allow_plaintext: bool) -> str:
        """Listen; returns the real address. Raises `PerfdError` when that is not possible.

        With `tls.ca` an agent is the node that its certificate names; without, it may be any.
        """
        host, _ = split_address(address)
        credentials = ServerCertificates(tls).credentials() if tls else None
        self._must_show_certificate = tls is not None and tls.ca is not None
        if credentials is None and not allow_plaintext and not is_loopback(host):
            raise ConfigError(
                f"listen: {address} can be reached from other machines, and without TLS anyone there "
                "can read and write. Configure `tls`, or set `allow_plaintext: true`."
            )
        if self._reviews is not None and tls is None and not is_loopback(host):
            raise ConfigError("agent_identity.kubernetes: tokens would be sent in plain text; configure tls.")
        if not is_loopback(host) and not self._must_show_certificate and self._reviews is None:
            log.warning(
                "Agents are not authenticated: whoever reaches this address can send as any node. "
                "Set tls.ca, so that each agent shows a certificate.",
                extra={"listen": address},
            )
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(options=(*SERVER_OPTIONS, *self._connection_options()))
        # Raw bytes in and out: what is malformed is ours to count and to answer.
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        service, method = CONNECT_METHOD.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise PerfdError(
                f"Cannot listen on {address} for agents. "
                "Choose another address (`listen`), or stop the process that has it."
            ) from error
        await server.start()
        self._server = server
        self._looked_s = self._loop.time()
        self._watch = asyncio.create_task(self._watch_streams())
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _connection_options(self) -> tuple[tuple[str, int], ...]:
        """Limits on connections, which are gRPC's own: no code of perfd sees one before its stream."""
        within_ms = round(self._sessions.limits.hello_within_s * 1000)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        options = [
            ("grpc.server_handshake_timeout_ms", within_ms),
            ("grpc.max_connection_idle_ms", within_ms),
        ]
        if descriptors != resource.RLIM_INFINITY:
            # The rest is for HTTP, history and captures.
            options.append(("grpc.max_allowed_incoming_connections", descriptors // 2))
        return tuple(options)

    async def stop(self, grace_s: float) -> None:
        """Close all streams; agents will come back later."""
        if self._watch is not None:
            self._watch.cancel()
        self._waiting.take()
        self._sessions.close()
        self._review_threads.shutdown(wait=False, cancel_futures=True)
        if self._server is not None:
            await self._server.stop(grace_s)

    def send(self, node: str, message: NodeMessage) -> None:
        """Send a message to the agent of a node, from any thread; nothing when it is not there."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._enqueue, node, encode_message(message))

    def send_to_agent(self, agent_id: str, message: NodeMessage) -> None:
        """Send a message to the agent of this identity; nothing when it is not there."""
        if (stream := self._streams.get(agent_id)) is not None:
            self._put(stream, encode_message(message))

    def _enqueue(self, node: str, data: bytes) -> None:
        if (stream := self._stream_of.get(node)) is not None:
            self._put(stream, data)

    def _put(self, stream: AgentStream, data: bytes) -> None:
        if len(stream.messages) >= _MAX_MESSAGES:
            node = stream.session.node
            log.warning("An agent does not read: a capture message was dropped.", extra={"node": node})
            return
        stream.messages.append(data)
        stream.changed.set()

    async def _watch_streams(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S * _LATEST_LOOK)
            if self._looked_ago_s() >= _LOOK_EVERY_S:
                self._look_at_streams()

    def _messages_taken(self) -> None:
        """Look at the streams if that is due soon: a process that sleeps need not wake for it then."""
        if self._looked_ago_s() >= _LOOK_EVERY_S * _EARLIEST_LOOK:
            self._look_at_streams()

    def _looked_ago_s(self) -> float:
        return asyncio.get_running_loop().time() - self._looked_s

    def _look_at_streams(self) -> None:
        self._looked_s = asyncio.get_running_loop().time()
        self._looks += 1
        for stream in list(self._streams.values()):
            session, waiting = stream.session, stream.session.received_sequence - stream.acknowledged
            if session.has_to_resend:
                stream.abort("Resend what is not stored.")
            elif waiting and (
                # Not of all streams at once.
                waiting >= stream.every
                or (self._looks - stream.number // _ACKNOWLEDGED_TOGETHER) % _ACKNOWLEDGED_WITHIN_LOOKS == 0
            ):
                stream.slow = session.stored_sequence < session.received_sequence
                stream.changed.set()

    async def _connect(self, _requests: object, context: Context) -> None:
        stream: AgentStream | None = None
        address = address_of(context.peer())
        try:
            with self._agents_of.hold(address) as has_room:
                self._require(has_room, "agents", address)
                with self._strangers_of.hold(address) as admitted:
                    self._require(admitted, "streams_without_hello", address)
                    stream = await self._greet(context)
                if stream is not None:
                    await self._read_all(stream)
        except WireError as error:
            self._sessions.malformed()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except RefusedError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "No Hello within the time limit.")
        except PerfdError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            if stream is not None:
                self._leave(stream)

    def _require(self, admitted: bool, bound: str, address: str) -> None:
        """Raise `PerfdError` if an address has no room left."""
        if not admitted:
            self._sessions.rejected(bound)
            if address not in self._warned:
                if len(self._warned) >= _MAX_WARNED:
                    self._warned.clear()
                self._warned.add(address)
                log.warning(
                    "An address has used its share of a limit: more from it is refused until it uses less.",
                    extra={"address": address, "bound": bound},
                )
            raise PerfdError(
                f"This aggregator is at its limit of {bound}, or this address has used its share: "
                "try again later."
            )

    async def _greet(self, context: Context) -> AgentStream | None:
        """Take the Hello; None when the agent has to come back with another identity."""
        credential = await self._credential(context)
        data = await asyncio.wait_for(context.read(), self._sessions.limits.hello_within_s)
        if isinstance(data, bytes) and len(data) > self._sessions.limits.large_message_bytes:
            raise WireError("The first message of a stream is too large for a Hello.")
        hello = decode_agent_message(data) if isinstance(data, bytes) else None
        if not isinstance(hello, Hello):
            raise WireError("The first message of a stream must be a Hello.")
        number = next(self._numbers)
        # The Welcome says what was received.
        self._waiting.take()
        session, welcome = await self._sessions.open(
            hello, number, credential, partial(self._stored, hello.agent_id)
        )
        if session is None:
            await context.write(encode_message(welcome))
            return None
        stream = AgentStream(
            number,
            context,
            session,
            every=max(1, hello.acknowledge_every),
            acknowledged=session.stored_sequence,
        )
        rival = self._streams.get(session.agent_id)
        self._streams[session.agent_id] = self._stream_of[session.node] = stream
        if rival is not None:
            rival.abort("The agent has opened a newer stream.")
        await context.write(encode_message(welcome))
        session.connected()
        return stream

    async def _credential(self, context: Context) -> AgentCredential:
        if self._reviews is not None:
            shown = dict(context.invocation_metadata() or ()).get("authorization", "")
            try:
                return await self._reviewed(
                    self._reviews, str(shown).removeprefix("Bearer ").strip(), context
                )
            except RefusedError as error:
                raise self._sessions.refuse(str(error), actor=context.peer()) from error
        if not self._must_show_certificate:
            return ANYBODY
        credential = credential_of_certificate(context.auth_context(), self._identity.any_node)
        if credential is None:
            raise self._sessions.refuse(
                "The certificate of this agent names no node: it needs a DNS name or a URI.",
                actor=context.peer(),
            )
        return credential

    async def _reviewed(self, reviews: TokenReviews, token: str, context: Context) -> AgentCredential:
        if (known := reviews.remembered(token)) is not None:
            return known
        address = address_of(context.peer())
        with self._reviews_of.hold(address) as admitted:
            # Otherwise one client's tokens could keep those of all agents waiting.
            self._require(admitted, "token_reviews", address)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._review_threads, reviews.credential, token)

    async def _read_all(self, stream: AgentStream) -> None:
        writer = asyncio.create_task(write_all(stream))
        session = stream.session
        try:
            while isinstance(data := await stream.context.read(), bytes):
                if not session.current:
                    return
                if data == _ACKNOWLEDGE_EACH:
                    self._waiting.take()
                    stream.every = 1
                    stream.taken(repeat=False)
                elif len(self._streams) >= waiting_messages.FEWEST_AGENTS and self._waiting.may_wait(
                    stream, data
                ):
                    self._waiting.add(stream, data)
                else:
                    self._waiting.take()
                    stream.taken(repeat=await self._take(stream, data))
                    self._messages_taken()
        finally:
            self._waiting.take()
            # The status comes after the last message.
            stream.over = True
            stream.changed.set()
            await asyncio.wait([writer], timeout=_LAST_WRITE_WITHIN_S)
            writer.cancel()

    async def _take(self, stream: AgentStream, data: bytes) -> bool:
        if len(data) <= self._sessions.limits.large_message_bytes:
            return await stream.session.take(data)
        address = address_of(stream.context.peer())
        with self._held_bytes_of.hold(address, len(data)) as admitted:
            self._require(admitted, "held_message_bytes", address)
            return await stream.session.take(data)

    def _stored(self, agent_id: str) -> None:
        """Wake the coroutine that acknowledges, from any thread; a loop that is gone has none."""
        self._stored_of.append(agent_id)
        if self._loop is not None and not self._waking:
            self._waking = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # First, so that a thread which stores more from here on requests another call.
        self._waking = False
        while self._stored_of:
            stream = self._streams.get(self._stored_of.popleft())
            if stream is not None and stream.is_due:
                stream.changed.set()

    def _leave(self, stream: AgentStream) -> None:
        newest = self._streams.get(stream.session.agent_id) is stream
        if newest:
            del self._streams[stream.session.agent_id]
        if self._stream_of.get(stream.session.node) is stream:
            del self._stream_of[stream.session.node]
        stream.session.close(newest=newest)
