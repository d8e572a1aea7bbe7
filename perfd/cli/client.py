"""Asks an aggregator over HTTP, for the verbs that show what it knows."""

from __future__ import annotations

import argparse
import http.client
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from perfd.errors import PerfdError

DEFAULT_URL = "http://127.0.0.1:9460"
URL_VARIABLE = "PERFD_AGGREGATOR_URL"
TOKEN_VARIABLE = "PERFD_TOKEN_FILE"  # noqa: S105  (names a file)
_TIMEOUT_S = 10.0


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
    path = args.token_file or (os.environ if environ is None else environ).get(TOKEN_VARIABLE)
    if not path:
        return {}
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PerfdError(f"Cannot read the token in {path}: {error}.") from error
    if len(token.split()) != 1:
        raise PerfdError(f"{path} must hold one word, the token of the aggregator's http_token_file.")
    return {"Authorization": f"Bearer {token}"}


def get(url: str, path: str) -> dict[str, Any]:
    """The JSON at a path of an aggregator; raises `PerfdError` with what to do when there is none."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PerfdError(f"{url!r} is not an aggregator's address; write it as {DEFAULT_URL}.")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", parts.path.rstrip("/") + path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise PerfdError(
            f"No aggregator answers at {url}: {reason}. Start one with `perfd aggregator`, "
            "or name another with --aggregator."
        ) from error
    finally:
        connection.close()
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise PerfdError(f"What answers at {url}{path} is not a perfd aggregator: {error}.") from error
    if response.status != 200 or not isinstance(document, dict):
        reason = document.get("error", "") if isinstance(document, dict) else ""
        raise PerfdError(f"{url}{path} answers {response.status}: {reason}")
    return document
