"""Real NATS servers on loopback, with JetStream. Needs the Debian package `nats-server`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.support.services import Service, free_port

_T = TypeVar("_T")


class NatsServer(Service):
    """One server; `kill` and `start` bring it back on the same port, with what its stream had on disk."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        """`more` is appended to its configuration."""
        self.client_port = free_port()
        self.address = f"nats://127.0.0.1:{self.client_port}"
        self._config = folder / f"nats-{self.client_port}.conf"
        self._more = more
        self._folder = folder
        super().__init__(self._command_line, ready="/healthz", folder=folder)

    def _command_line(self, port: int) -> list[str | Path]:
        self._config.write_text(
            f"listen: 127.0.0.1:{self.client_port}\nhttp: 127.0.0.1:{port}\n"
            f"jetstream {{ store_dir: {json.dumps(str(self._folder / f'js-{port}'))} }}\n{self._more}\n"
        )
        return ["nats-server", "-c", self._config]

    def pause(self) -> None:
        """Stop the process with its connections open."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

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
