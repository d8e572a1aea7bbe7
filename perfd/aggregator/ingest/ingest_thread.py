"""The thread in whose event loop agents are served, from its start to an end that takes a bounded time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine

from perfd.aggregator.ingest.grpc_server import TelemetryServer
from perfd.config import AggregatorConfig, GatewayConfig

log = logging.getLogger(__name__)
_START_TIMEOUT_S = 30.0
"""For the server to listen, on a busy machine too. Chosen."""
_GRACE_S = 1.0
"""How long streams may take to end by themselves, and the loop once it is stopped."""
_END_WITHIN_S = 3.0
"""How long the server may take to end."""


class IngestThread:
    """Runs a server. `start` is called once; `stop` is legal always, also before and twice."""

    def __init__(self, server: TelemetryServer) -> None:
        self._server = server
        # Made at the start: who is never started needs no stop.
        self._serving: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def start(
        self,
        config: AggregatorConfig | GatewayConfig,
        beside: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> str:
        """Listen; returns the real address. Raises `PerfdError` when that is not possible.

        `beside` runs in the same event loop until the stop.
        """
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="perfd-ingest", daemon=True)
        self._serving = loop, thread
        thread.start()
        listening = self._server.start(config.listen, config.tls, allow_plaintext=config.allow_plaintext)
        address = asyncio.run_coroutine_threadsafe(listening, loop).result(_START_TIMEOUT_S)
        if beside is not None:
            asyncio.run_coroutine_threadsafe(beside(), loop)
        return address

    def stop(self) -> None:
        """Close the streams, and end the thread; one that hangs is left behind."""
        if self._serving is None:
            return
        loop, thread = self._serving
        if thread.is_alive():
            stopping = asyncio.run_coroutine_threadsafe(self._end(), loop)
            try:
                stopping.result(_END_WITHIN_S)
            except TimeoutError:
                log.warning("The server for agents did not end in time; its streams break now.")
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_GRACE_S)
        if thread.is_alive():
            log.warning("The thread that serves agents did not end in time.")
        elif not loop.is_closed():
            loop.close()

    async def _end(self) -> None:
        await self._server.stop(_GRACE_S)
        # gRPC leaves tasks of streams that broke, which would complain when they are thrown away.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_GRACE_S)
