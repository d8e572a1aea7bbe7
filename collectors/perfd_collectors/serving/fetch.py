"""HTTP GET bounded in time and size, from a server that may hang or send endless data."""

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
"""Read at a time, so that the size limit is checked early."""
_MAX_REASON_CHARS = 200
"""An error's text may quote the server and is cut."""
_ANY_COMPRESSION_WBITS = 47
"""zlib's 32 (detect gzip or zlib) plus 15, the largest window."""


class FetchError(PerfdError):
    """A request failed; the message gives the reason and a fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """Timeout, authorization and TLS of requests."""

    timeout_s: float = 5.0
    """For the whole request: name resolution, connection and response."""
    authorization: str | None = None
    """The value of the `Authorization` header."""
    authorization_file: Path | None = None
    """A file with that value, read for each request, so that a rotated key is used."""
    tls: ssl.SSLContext | None = None


Get = Callable[[str], bytes]
"""Returns the body at a URL; raises `FetchError`."""


def fetch(url: str, access: ServerAccess, max_bytes: int = MAX_PAGE_BYTES) -> bytes:
    """The response's body. Follows no redirects, so that the authorization is not sent elsewhere.

    Raises `FetchError` on timeout, on a status other than 200, and on a response that is too large.
    """
    address = _parts(url)
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
            f"{url} did not respond within {access.timeout_s:g} s: the server may hang."
        ) from error
    except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
        raise FetchError(f"{url} cannot be read: {_words(error)}.") from error
    finally:
        connection.close()


def base_of(url: str) -> str:
    """A URL without its path: `http://host:30000`."""
    address = _parts(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"


def metrics_url(url: str) -> str:
    """The URL of a server's metrics: with the given path, else /metrics."""
    path = _parts(url).path
    return f"{base_of(url)}{path if path not in {'', '/'} else '/metrics'}"


def _parts(url: str) -> SplitResult:
    """The parts of a server's URL; raises `FetchError` if it cannot be one."""
    try:
        address = urlsplit(url if "://" in url else f"http://{url}")
        # Reading the port checks it.
        host, _ = address.hostname or "", address.port
        if address.scheme in {"http", "https"} and len(host.split()) == 1:
            return address
    except ValueError:
        pass
    raise FetchError(f"{url!r} is not a server address; write it as http://host:port.")


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
            raise FetchError(f"The authorization file cannot be read: {reason_of(error)}.") from error
    if value is not None and not (value.isascii() and value.isprintable()):
        raise FetchError("The authorization must be one line of printable ASCII.")
    return {} if value is None else {"Authorization": value}


def _body(url: str, response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    # Plain text is requested, but a proxy may compress it.
    compressed = response.getheader("Content-Encoding", "").lower() in {"gzip", "x-gzip", "deflate"}
    decompressor = zlib.decompressobj(wbits=_ANY_COMPRESSION_WBITS) if compressed else None
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_CHUNK_BYTES):
        if decompressor is not None:
            part = decompressor.decompress(part, max_bytes - size + 1)
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise FetchError(f"{url} sent more than {max_bytes} bytes: not a metrics page.")
    if response.length or (decompressor is not None and not decompressor.eof):
        raise FetchError(f"{url} closed the connection before the end of its response.")
    return b"".join(parts)


def _words(error: Exception) -> str:
    """An error's text in one printable line: it may quote the server."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in reason_of(error)).split())
    return words[:_MAX_REASON_CHARS] or type(error).__name__


def _refused(url: str, status: int, location: str | None) -> str:
    if 300 <= status < 400:
        return f"{url} redirects to {location} (status {status}): use that address if you trust it."
    if status in {401, 403}:
        return f"{url} requires authorization (status {status}): set a file or variable with it."
    if status == 404:
        return f"{url} does not exist: start SGLang with --enable-metrics, or set the path of the metrics."
    return f"{url} responded with status {status}."
