"""Asks an aggregator over HTTP, for the verbs that show what it knows."""

from __future__ import annotations

import argparse
import http.client
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from perfd.errors import PerfdError

DEFAULT_URL = "http://127.0.0.1:9460"
URL_VARIABLE = "PERFD_AGGREGATOR_URL"
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
