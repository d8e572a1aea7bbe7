"""Forwards requests to other members of the group."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from urllib.parse import urlencode, urlsplit

from perfd.errors import PerfdError
from perfd.net import BoundedConnection, BoundedTlsConnection, Request, Response, client_context

FORWARDED = "perfd-forwarded"
"""Header of a request forwarded by another member, which is not forwarded again."""
_MAX_BYTES = 64 << 20
"""Largest answer of one member, which is held in memory as a whole."""
_THREADS = 16
"""Requests to other members at one time; each may wait for `answer_within_s`."""
_LOOK_EVERY_S = 0.1
"""How soon a request ends whose partition has another holder."""
_PORTS = {"http": 80, "https": 443}
"""Of addresses without one."""
_SENT_ON = ("authorization", "content-type", "accept")
_KEPT = (
    "location",
    "content-disposition",
    "cache-control",
    # Reports may contain names from jobs: no member may serve one that can run scripts.
    "content-security-policy",
    "x-content-type-options",
    "referrer-policy",
)


async def may_listen(address: str, within_s: float) -> bool:
    """Whether a process may be at `address`: not if its machine refuses a connection.

    One that cannot be reached, or whose name is unknown here, may reach NATS nevertheless.
    """
    try:
        url = urlsplit(address)
        host, port = url.hostname, url.port or _PORTS.get(url.scheme)
        if not host or not port:
            return True
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):
        return True
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


class Peers:
    """Forwards requests, from any thread."""

    def __init__(self, within_s: float, ca: str | None) -> None:
        self._within_s = within_s
        self._threads = ThreadPoolExecutor(_THREADS, "perfd-peers")
        self._context = client_context(ca=ca) or ssl.create_default_context()

    def ask(
        self, address: str, request: Request, query: Mapping[str, str], holds: Callable[[], bool]
    ) -> Response:
        """The answer from `address` to `request` with this query; raises `PerfdError` without one in time.

        It is not waited for once `holds` returns False: a member that is paused or cut off never answers.
        """
        asked = self._threads.submit(self._ask, address, request, query)
        while not wait([asked], _LOOK_EVERY_S).done:
            if not holds():
                asked.cancel()
                raise PerfdError(f"{address} does not hold the partition any more.")
        return asked.result()

    def close(self) -> None:
        """Cancel what is not asked yet."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, address: str, request: Request, query: Mapping[str, str]) -> Response:
        url = urlsplit(address)
        host, path = url.hostname or "", f"{url.path.rstrip('/')}{request.path}?{urlencode(query)}"
        connection = (
            BoundedTlsConnection(host, url.port, context=self._context)
            if url.scheme == "https"
            else BoundedConnection(host, url.port)
        )
        connection.deadline_s = time.monotonic() + self._within_s
        headers = {name: request.headers[name] for name in _SENT_ON if name in request.headers}
        try:
            connection.request(request.method, path, request.body or None, {**headers, FORWARDED: "1"})
            answer = connection.getresponse()
            body = answer.read(_MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PerfdError(f"{address} does not answer: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if len(body) > _MAX_BYTES:
            raise PerfdError(f"{address} answers with more than {_MAX_BYTES >> 20} MiB.")
        return Response(
            body=body,
            status=answer.status,
            content_type=answer.getheader("Content-Type", ""),
            headers={name: value for name in _KEPT if (value := answer.getheader(name)) is not None},
        )
