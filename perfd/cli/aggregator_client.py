"""Asks an aggregator over HTTP, for the verbs that show what it knows."""

from __future__ import annotations

import argparse
import functools
import http.client
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from perfd.cli.unexpected_errors import unreadable
from perfd.errors import PerfdError, reason_of
from perfd.formatting import printable_text
from perfd.model import api_schemas
from perfd.net import BoundedConnection, BoundedTlsConnection

_T = TypeVar("_T")
DEFAULT_URL = "http://127.0.0.1:9460"
URL_VARIABLE = "PERFD_AGGREGATOR_URL"
TOKEN_VARIABLE = "PERFD_TOKEN_FILE"  # noqa: S105  (names a file)
_JOBS_PER_PAGE = 100
"""Of a request for all jobs, so that each answer stays small. Chosen."""
_MAX_BYTES = 1 << 28
"""Of an answer; what is cut there is no JSON. The largest answer is that of a fleet, of some megabytes."""
_TOKEN_CHARS = 65_536
"""More than the header of any request may have."""
_TIMEOUT_S = 10.0
"""For a whole request and its answer, the name of the host and the handshake of TLS included."""


class NothingAtPathError(PerfdError):
    """The aggregator answered 404: nothing is at that path."""


def add_aggregator(parser: argparse.ArgumentParser) -> None:
    """Declare `--aggregator`."""
    parser.add_argument(
        "--aggregator",
        metavar="URL",
        help=f"an aggregator's HTTP address; default: ${URL_VARIABLE}, else {DEFAULT_URL}",
    )


def url_of(args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> str:
    """The aggregator that the arguments or the environment name."""
    found: str = (
        args.aggregator or (os.environ if environ is None else environ).get(URL_VARIABLE) or DEFAULT_URL
    )
    return found if "//" in found else f"http://{found}"


def add_token(parser: argparse.ArgumentParser) -> None:
    """Declare `--token-file`."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"holds the token of the aggregator's http_token_file; default: ${TOKEN_VARIABLE}, else none",
    )


def authorization_of(args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The header that shows the token which the arguments or the environment name; raises `PerfdError`."""
    return authorization_in(
        args.token_file or (os.environ if environ is None else environ).get(TOKEN_VARIABLE)
    )


def authorization_in(path: str | Path | None) -> dict[str, str]:
    """The header that shows the token in a file, none without a file; raises `PerfdError`."""
    if not path:
        return {}
    try:
        with Path(path).open(encoding="ascii") as file:
            token = file.read(_TOKEN_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PerfdError(f"Cannot read the token in {path}: {reason_of(error)}.") from error
    if len(token.split()) != 1:
        raise PerfdError(f"{path} must contain one word, the token of the aggregator's http_token_file.")
    return {"Authorization": f"Bearer {token}"}


def get(url: str, path: str, schema: str) -> dict[str, Any]:
    """The document of a schema at a path of an aggregator; raises as `ask`.

    The token is that of the environment.
    """
    return ask(url, "GET", path, schema=schema, headers=authorization_in(os.environ.get(TOKEN_VARIABLE)))


def reads_answers(run: Callable[[argparse.Namespace], _T]) -> Callable[[argparse.Namespace], _T]:
    """The part of a verb that reads an aggregator's answers; raises `PerfdError` if these lack what it reads.

    An answer of the right schema may come from a later version, or from another program that knows its name.
    """

    @functools.wraps(run)
    def reading(args: argparse.Namespace) -> _T:
        try:
            return run(args)
        except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
            raise PerfdError(unreadable(url_of(args), error)) from error

    return reading


def get_jobs(url: str, *, short: bool = False) -> list[dict[str, Any]]:
    """All entries of perfd.jobs/2 by name, asked for page by page; raises `PerfdError`."""
    found: dict[str, dict[str, Any]] = {}
    offset, matched = 0, 1
    while offset < matched:
        path = f"/api/v1/jobs?sort=name&limit={_JOBS_PER_PAGE}&offset={offset}&short={int(short)}"
        document = get(url, path, api_schemas.JOBS)
        # A job that is forgotten between two pages moves those after it.
        found |= {entry["name"]: entry for entry in document["jobs"]}
        offset, matched = offset + _JOBS_PER_PAGE, document.get("page", {"matched": 0})["matched"]
    return list(found.values())


def ask(
    url: str,
    method: str,
    path: str,
    *,
    schema: str | None = None,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    """An aggregator's answer, of `schema` if that is named.

    Raises `PerfdError` with its reason when it refuses, and with what to do when something else answers, or
    an aggregator of another version. `timeout_s` bounds all of it: a name that is not found and an answer
    that drips too.
    """
    connection, base = _connection(url)
    connection.deadline_s = time.monotonic() + timeout_s
    try:
        connection.request(method, base + path, body, headers or {})
        response = connection.getresponse()
        content = response.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = reason_of(error).strip()
        raise PerfdError(
            f"No aggregator answers at {url}: {reason}. Start one with `perfd aggregator`, "
            "or name another with --aggregator."
        ) from error
    finally:
        connection.close()
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _stranger(url, response.status) from error
    document = {printable_text(key): printable(item) for key, item in document.items()}
    if response.status >= http.HTTPStatus.BAD_REQUEST:
        reason = str(document.get("error") or f"{url}{path} answers with status {response.status}.")
        missing = response.status == http.HTTPStatus.NOT_FOUND
        raise NothingAtPathError(reason) if missing else PerfdError(reason)
    _check_schema(document.get("schema"), schema, url, response.status)
    return document


def _check_schema(found: object, wanted: str | None, url: str, status: int) -> None:
    if not isinstance(found, str) or not found.startswith("perfd."):
        raise _stranger(url, status)
    if wanted not in {None, found}:
        raise PerfdError(
            f"The aggregator at {url} answers with {found} and this perfd reads {wanted}: "
            "use the same version of perfd for both."
        )


def _stranger(url: str, status: int) -> PerfdError:
    detail = "" if status == http.HTTPStatus.OK else f" (status {status})"
    return PerfdError(f"What answers at {url}{detail} is not a perfd aggregator; name one with --aggregator.")


def printable(value: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
    """The same document without characters that would change the terminal which shows it."""
    if isinstance(value, str):
        return printable_text(value)
    if isinstance(value, dict):
        return {printable_text(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def _connection(url: str) -> tuple[BoundedConnection, str]:
    """A connection that is not open yet, and what paths begin with."""
    try:
        parts = urlsplit(url)
        host, port, base = parts.hostname or "", parts.port, parts.path.rstrip("/")
        if host and parts.scheme == "https":
            return BoundedTlsConnection(host, port, context=ssl.create_default_context()), base
        if host and parts.scheme == "http":
            return BoundedConnection(host, port), base
    except (ValueError, http.client.InvalidURL):  # A port that cannot be, half of an IPv6 address, a space.
        pass
    raise PerfdError(f"{url!r} is not an aggregator's address; write it as {DEFAULT_URL}.")
