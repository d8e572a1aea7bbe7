"""Connections to NATS servers, with the extra `perfd[nats]`."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from perfd.config import NatsConfig
from perfd.errors import ConfigError, PerfdError, reason_of
from perfd.net.http import is_loopback
from perfd.net.loop_thread import end_tasks
from perfd.net.tls import client_context

if TYPE_CHECKING:
    from nats.aio.client import Client

log = logging.getLogger(__name__)

PUBLISHED_HEADER_BYTES = 4096
"""What sender and headers add to a batch at most: names have 256 characters."""
_CONNECT_WITHIN_S = 10.0
"""For TCP, TLS and authentication together, with all servers."""
_AVOIDED_FOR_S = 30.0
"""How long a server that did not answer is tried after the others: one that hangs takes connections."""
_PING_INTERVAL_S = 2
"""A connection whose other side is gone without a word is noticed after three of them."""
_RELEASE_WITHIN_S = 1.0
"""For tasks that were canceled to end before the connection is closed."""
_FIRST_RETRY_S = 0.5
"""After a lost connection; it doubles with each failure."""
_LAST_RETRY_S = 15.0
"""Between attempts at most: servers that are back are used within it."""
_SCHEMES = {"nats", "tls"}


class NatsConnector:
    """Opens one connection after another, each to any of the servers; raises `ConfigError`.

    Files are read for each connection, so that renewed credentials are used without a restart.
    """

    def __init__(self, config: NatsConfig, *, key: str, name: str) -> None:
        """`key` is that of `config` in the configuration, and `name` what servers call the connection."""
        self._config = config
        self._key = key
        self._name = name
        if importlib.util.find_spec("nats") is None:
            raise ConfigError(f"{key}: install perfd[nats], which has the client of NATS.")
        if not config.servers:
            raise ConfigError(f"{key}.servers: name at least one server.")
        if config.credentials_file and config.nkey_file:
            raise ConfigError(f"{key}: `credentials_file` and `nkey_file` are mutually exclusive.")
        for server in config.servers:
            self._check(server)
        self._options()
        self._failed_s: dict[str, float] = {}
        """When a server could not be used."""

    async def connect(self, *, inbox: str, ended: Callable[[str], None]) -> Client:
        """A connection whose requests are answered below `inbox`; raises `PerfdError` with the reason.

        `ended` is called, from this event loop and perhaps more than once, when the connection is over or
        the server refuses what is done with it.
        """
        loop = asyncio.get_running_loop()
        servers = random.sample(self._config.servers, len(self._config.servers))
        servers.sort(key=lambda one: loop.time() - self._failed_s.get(one, -_AVOIDED_FOR_S) < _AVOIDED_FOR_S)
        for place, server in enumerate(servers):
            try:
                client = await self._connect(
                    server, _CONNECT_WITHIN_S / len(servers), inbox=inbox, ended=ended
                )
            except PerfdError as error:
                self._failed_s[server] = loop.time()
                if place == len(servers) - 1:
                    raise
                log.debug("A NATS server cannot be used.", extra={"server": server, "reason": str(error)})
            else:
                self._failed_s.pop(server, None)
                return client
        raise PerfdError("No NATS server is configured.")

    async def _connect(
        self, server: str, within_s: float, *, inbox: str, ended: Callable[[str], None]
    ) -> Client:
        # With the extra only, and not for agents that use gRPC.
        from nats import errors  # noqa: PLC0415
        from nats.aio.client import Client  # noqa: PLC0415

        connected = False

        async def failed(error: Exception) -> None:
            if connected:
                ended(_sentence(error))

        async def closed() -> None:
            # That of a server that does not answer says nothing about the one that is tried next.
            if connected:
                ended(_sentence(client.last_error) if client.last_error else "The connection to NATS ended.")

        client = Client()
        try:
            async with asyncio.timeout(within_s):
                await client.connect(
                    servers=[server],
                    name=self._name,
                    # The caller has its own policy, which also renews what it reads from files.
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    ping_interval=_PING_INTERVAL_S,
                    error_cb=failed,
                    closed_cb=closed,
                    inbox_prefix=inbox,
                    **self._options(),
                )
        except asyncio.CancelledError:
            await client.close()
            raise
        except TimeoutError as error:
            await _release(client)
            raise PerfdError("No NATS server answers.") from error
        except Exception as error:  # also those of nkeys, about a file without a seed
            await _release(client)
            cause = client.last_error if isinstance(error, errors.NoServersError) else error
            raise PerfdError(_sentence(cause or error)) from error
        connected = True
        return client

    async def max_payload_bytes(self) -> int:
        """Connect once; the largest message that the servers take. Raises `PerfdError`."""
        client = await self.connect(inbox="_INBOX_perfd", ended=lambda _reason: None)
        try:
            return client.max_payload
        finally:
            await client.close()

    async def keep_connected(
        self,
        inbox: str,
        use: Callable[[Client], Awaitable[object]],
        lost: Callable[[str], None],
        *,
        last_retry_s: float = _LAST_RETRY_S,
    ) -> None:
        """Run `use` with one connection after another, until it returns or this is canceled.

        `use` is canceled when its connection ends, and before it is closed by a cancellation of this; `lost`
        gets the reason. Waits grow up to `last_retry_s`, also where `use` raises soon after each connection.
        """
        retry_s = _FIRST_RETRY_S
        loop = asyncio.get_running_loop()
        while True:
            ended: asyncio.Future[str] = loop.create_future()
            connected_s: float | None = None
            try:
                client = await self.connect(inbox=inbox, ended=partial(_end, ended))
                connected_s = loop.time()
                using: asyncio.Future[Any] = asyncio.ensure_future(use(client))
                outcomes: set[asyncio.Future[Any]] = {using, ended}
                try:
                    await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
                    if using.done():
                        using.result()
                        return
                    reason = ended.result()
                finally:
                    await end_tasks(using)
                    await client.close()
            except PerfdError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001  (whatever a library raises, it is tried again)
                reason = _sentence(error)
            lost(reason)
            if connected_s is not None and loop.time() - connected_s >= retry_s:
                retry_s = _FIRST_RETRY_S
            await asyncio.sleep(retry_s * random.random())  # noqa: S311  (spreads retries)
            retry_s = min(last_retry_s, retry_s * 2)

    def _check(self, server: str) -> None:
        try:
            parts = urlsplit(server)
            host, plain = parts.hostname, parts.scheme == "nats" and self._config.tls is None
        except ValueError as error:
            raise ConfigError(f"{self._key}.servers: {server} is not an address: {error}.") from error
        if parts.scheme not in _SCHEMES or not host:
            raise ConfigError(f"{self._key}.servers: {server} must be nats://HOST:PORT or tls://HOST:PORT.")
        if parts.username or parts.password:
            raise ConfigError(
                f"{self._key}.servers: an address must not contain credentials; name a `credentials_file`."
            )
        if plain and not self._config.allow_plaintext and not is_loopback(host):
            raise ConfigError(
                f"{self._key}.servers: {server} is another machine, and it would be plain text: "
                f"use tls://, configure {self._key}.tls, or set {self._key}.allow_plaintext."
            )

    def _options(self) -> dict[str, Any]:
        """What the client needs of the configuration; raises `ConfigError` if files cannot be read."""
        options: dict[str, Any] = {}
        for option, name, path in (
            ("user_credentials", "credentials_file", self._config.credentials_file),
            ("nkeys_seed", "nkey_file", self._config.nkey_file),
        ):
            if path is None:
                continue
            if importlib.util.find_spec("nkeys") is None:
                raise ConfigError(f"{self._key}.{name}: install perfd[nats], which has the package nkeys.")
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"{self._key}.{name}: {path} cannot be read: {reason_of(error)}."
                ) from error
            options[option] = path
        tls = self._config.tls
        if tls is not None:
            context = client_context(ca=tls.ca, certificate=tls.certificate, key=tls.key)
            options["tls"] = context or ssl.create_default_context()
        return options


def _end(ended: asyncio.Future[str], reason: str) -> None:
    if not ended.done():
        ended.set_result(reason)


async def _release(client: Client) -> None:
    """Close what a failed connection left open, also by tasks of the client."""
    await client.close()
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=_RELEASE_WITHIN_S)


def _sentence(error: Exception) -> str:
    text = str(error).removeprefix("nats: ").strip().rstrip(".").replace('"', "")
    return f"NATS: {text or type(error).__name__}."
