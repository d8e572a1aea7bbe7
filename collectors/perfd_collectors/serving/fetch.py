"""GET from a server that may hang, talk without end or be something else: bounded in time and size."""

from __future__ import annotations

import http.client
import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from perfd.errors import PerfdError, reason_of
from perfd.net import BoundedConnection, BoundedTlsConnection
from perfd_collectors.serving.exposition_reader import MAX_PAGE_BYTES

_CHUNK_BYTES = 256 * 1024


class FetchError(PerfdError):
    """A server could not be asked; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How to ask a server."""

    timeout_s: float = 5.0
    """For all of it: the name of the host, the connection, the whole answer."""
    authorization: str | None = None
    """The value of the `Authorization` header."""
    authorization_file: Path | None = None
    """A file with it, read for each request, so that a new key counts."""
    tls: ssl.SSLContext | None = None


Get = Callable[[str], bytes]
"""From a URL to its body; raises `FetchError`."""


def fetch(url: str, access: ServerAccess, max_bytes: int = MAX_PAGE_BYTES) -> bytes:
    """The body of a GET. Follows no redirect, so that the authorization goes nowhere else.

    Raises `FetchError` when there is no answer in time, its status is not 200, or it is too large.
    """
    address = urlsplit(url)
    headers = {"Accept": "text/plain; version=0.0.4, */*;q=0.1", **_authorization(access)}
    connection = _connection(address, access)
    connection.deadline_s = time.monotonic() + access.timeout_s
    try:
        target = f"{address.path or '/'}{'?' + address.query if address.query else ''}"
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            raise FetchError(_refused(url, response.status, response.getheader("Location")))
        return _body(url, response, max_bytes)
    except TimeoutError as error:
        raise FetchError(
            f"{url} did not answer within {access.timeout_s:g} s: is the server hung?"
        ) from error
    except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
        raise FetchError(f"{url} cannot be read: {_words(error)}.") from error
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


def _connection(address: SplitResult, access: ServerAccess) -> BoundedConnection:
    host = address.hostname or ""
    if address.scheme == "https":
        return BoundedTlsConnection(host, address.port, context=access.tls or ssl.create_default_context())
    return BoundedConnection(host, address.port)


def _authorization(access: ServerAccess) -> dict[str, str]:
    value = access.authorization
    if access.authorization_file is not None:
        try:
            value = access.authorization_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FetchError(f"The file of the authorization cannot be read: {reason_of(error)}.") from error
    if value is not None and not (value.isascii() and value.isprintable()):
        raise FetchError("The authorization must be one line of plain characters.")
    return {} if value is None else {"Authorization": value}


def _body(url: str, response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    # We ask for plain text; a proxy may pack it all the same.
    packed = response.getheader("Content-Encoding", "").lower() in {"gzip", "x-gzip", "deflate"}
    unpack = zlib.decompressobj(wbits=47) if packed else None
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_CHUNK_BYTES):
        if unpack is not None:
            part = unpack.decompress(part, max_bytes - size + 1)
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise FetchError(f"{url} sent more than {max_bytes} bytes: this is not a page of metrics.")
    if response.length or (unpack is not None and not unpack.eof):
        raise FetchError(f"{url} closed the connection before the end of its answer.")
    return b"".join(parts)


def _words(error: Exception) -> str:
    """What an error says, in one line: it may quote what the server sent."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in reason_of(error)).split())
    return words[:200] or type(error).__name__


def _refused(url: str, status: int, location: str | None) -> str:
    if 300 <= status < 400:
        return f"{url} answered with status {status}, to {location}: give that address, if you trust it."
    if status in {401, 403}:
        return f"{url} wants an authorization (status {status}): name a file or variable with it."
    if status == 404:
        return f"{url} does not exist: start SGLang with --enable-metrics, or give the path of the metrics."
    return f"{url} answered with status {status}."
