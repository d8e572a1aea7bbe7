"""Real NATS servers on loopback, with JetStream. Needs the Debian package `nats-server`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.support.services import Service, free_port

_T = TypeVar("_T")


class NatsServer(Service):
    """One server; `kill` and `start` bring it back on the same port, with what its stream had on disk."""

    def __init__(self, folder: Path, *, more: str = "", ready: str = "/healthz") -> None:
        """`more` is appended to its configuration; it is started once it answers at `ready`."""
        self.client_port = free_port()
        self.address = f"nats://127.0.0.1:{self.client_port}"
        self._config = folder / f"nats-{self.client_port}.conf"
        self._more = more
        self._folder = folder
        super().__init__(self._command_line, ready=ready, folder=folder)

    def _command_line(self, port: int) -> list[str | Path]:
        self._config.write_text(
            f"listen: 127.0.0.1:{self.client_port}\nhttp: 127.0.0.1:{port}\n"
            f"jetstream {{ store_dir: {json.dumps(str(self._folder / f'js-{port}'))} }}\n{self._more}\n"
        )
        return ["nats-server", "-c", self._config]

    def configure(self, more: str) -> None:
        """Have it read another configuration with `more`, without a restart."""
        assert self._process is not None
        self._more = more
        self._command_line(self.port)
        os.kill(self._process.pid, signal.SIGHUP)

    def ask(self, question: Callable[[Any], Awaitable[_T]], **options: Any) -> _T:
        """What `question` returns for a JetStream context of a new connection."""

        async def asked() -> _T:
            import nats  # noqa: PLC0415  (only where the tests run that need it)

            client = await nats.connect(self.address, allow_reconnect=False, **options)
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(asked())


@contextlib.contextmanager
def nats_cluster(folder: Path, count: int = 3) -> Iterator[list[NatsServer]]:
    """Servers that replicate their streams, once they have a leader."""
    ports = [free_port() for _ in range(count)]
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers = [
        NatsServer(
            folder,
            more=f"server_name: s{number}\n"
            f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}",
            # Healthy is a server only with a leader, which the first one does not have.
            ready="/varz",
        )
        for number, port in enumerate(ports)
    ]
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        while not all(server.get("/jsz").get("meta_cluster", {}).get("leader") for server in servers):
            time.sleep(0.1)
        yield servers
