"""Encodes answers: gzip if the client allows it, no body if the client has the same version."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass

_LEAST_BYTES = 500
"""A smaller answer is one packet in any case."""
_COMPRESSIBLE = ("text/", "application/json", "application/openmetrics-text", "image/svg+xml")
_GZIP_LEVEL = 3
"""The last of zlib's fast levels: hardly slower than 1, and level 6 takes three times as long for a tenth
less (docs/adr/0020)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBody:
    """A body as it is sent, the status, and headers in addition to the answer's own."""

    body: bytes
    status: int
    headers: Mapping[str, str]


def encode_body(
    body: bytes, status: int, content_type: str, headers: Mapping[str, str], asked: Mapping[str, str]
) -> EncodedBody:
    """What answers a request whose headers, with names in lower case, are `asked`.

    An answer whose `ETag` is in `If-None-Match` becomes a 304 without a body (RFC 9110, 13.1.2).
    """
    if status == 200 and _has(asked.get("if-none-match", ""), headers.get("ETag")):
        return EncodedBody(body=b"", status=304, headers={"Vary": "Accept-Encoding"})
    if "Content-Encoding" in headers or not content_type.startswith(_COMPRESSIBLE):
        return EncodedBody(body=body, status=status, headers={})
    added = {"Vary": "Accept-Encoding"}
    if len(body) >= _LEAST_BYTES and accepts_gzip(asked.get("accept-encoding", "")):
        # It runs beside other threads: zlib holds no lock of the interpreter.
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        added["Content-Encoding"] = "gzip"
    return EncodedBody(body=body, status=status, headers=added)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an `Accept-Encoding` header allows gzip, by name or by `*` (RFC 9110, 12.5.3)."""
    weights: dict[str, bool] = {}
    for part in accept_encoding.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weights[name] = not any(_is_zero(one) for one in parameters)
    return weights.get("gzip", weights.get("*", False))


def _is_zero(parameter: str) -> bool:
    """Whether it is a weight of zero, `q=0` to `q=0.000`."""
    name, _, weight = parameter.partition("=")
    return name.strip() == "q" and weight.strip() != "" and not weight.strip().strip("0.")


def _has(if_none_match: str, etag: str | None) -> bool:
    """Whether a client has the version of an `ETag`; weak and strong ones are alike here."""
    if etag is None:
        return False
    named = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return bool(named & {"*", etag.removeprefix("W/")})
