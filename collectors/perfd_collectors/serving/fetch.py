"""GET from a server that may hang, talk without end or be something else: bounded in time and size."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from perfd.errors import PerfdError
from perfd_collectors.serving.exposition import MAX_PAGE_BYTES

_CHUNK_BYTES = 256 * 1024


class FetchError(PerfdError):
    """A server could not be asked; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to ask a server."""

    timeout_s: float = 5.0
    """For the whole answer."""
    authorization: str | None = None
    """The value of the `Authorization` header."""
    tls: ssl.SSLContext | None = None


Get = Callable[[str], bytes]
"""From a URL to its body; raises `FetchError`."""


def fetch(url: str, access: Access, max_bytes: int = MAX_PAGE_BYTES) -> bytes:
    """The body of a GET. Follows no redirect, so that the authorization goes nowhere else.

    Raises `FetchError` when there is no answer in time, its status is not 200, or it is too large.
    """
    address = urlsplit(url)
    deadline_s = time.monotonic() + access.timeout_s
    connection = _connection(address, access)
    try:
        headers = {"Accept": "text/plain; version=0.0.4, */*;q=0.1"}
        if access.authorization is not None:
            headers["Authorization"] = access.authorization
        target = f"{address.path or '/'}{'?' + address.query if address.query else ''}"
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            raise FetchError(_refused(url, response.status))
        return _body(url, response, connection.sock, deadline_s, max_bytes)
    except TimeoutError as error:
        raise FetchError(
            f"{url} did not answer within {access.timeout_s:g} s: is the server hung?"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FetchError(f"{url} cannot be read: {error or type(error).__name__}.") from error
    finally:
        connection.close()


def base_of(url: str) -> str:
    """The server of a URL, without path: `http://host:30000`."""
    address = urlsplit(url if "://" in url else f"http://{url}")
    if address.scheme not in {"http", "https"} or not address.hostname:
        raise FetchError(f"{url!r} is not the address of a server; write it as http://host:port.")
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"


def metrics_url(url: str) -> str:
    """Where a server's metrics are: the path given, else /metrics."""
    path = urlsplit(url if "://" in url else f"http://{url}").path
    return f"{base_of(url)}{path if path not in {'', '/'} else '/metrics'}"


def _connection(address: SplitResult, access: Access) -> http.client.HTTPConnection:
    host = address.hostname or ""
    if address.scheme == "https":
        return http.client.HTTPSConnection(
            host, address.port, timeout=access.timeout_s, context=access.tls or ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, address.port, timeout=access.timeout_s)


def _body(
    url: str,
    response: http.client.HTTPResponse,
    connected: socket.socket | None,
    deadline_s: float,
    max_bytes: int,
) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if connected is not None and connected.fileno() >= 0:
            connected.settimeout(left_s)
        part = response.read1(_CHUNK_BYTES)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise FetchError(f"{url} sent more than {max_bytes} bytes: this is not a page of metrics.")
    if response.length:
        raise FetchError(f"{url} closed the connection {response.length} bytes before the end of its answer.")
    return b"".join(parts)


def _refused(url: str, status: int) -> str:
    if status in {401, 403}:
        return f"{url} wants an authorization (status {status}): name a file or variable with it."
    if status == 404:
        return f"{url} does not exist: start SGLang with --enable-metrics, or give the path of the metrics."
    return f"{url} answered with status {status}."
