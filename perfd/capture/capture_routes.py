"""The HTTP API of captures: /api/v1/captures as routes for `perfd.net.http.HttpServer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

import msgspec

from perfd.capture.policy.capture_json import API_PATH, SCHEMA
from perfd.errors import CaptureError, StorageError
from perfd.net import Handler, Request, Response, error_response, json_response

_FILES = "files/"

_T = TypeVar("_T", bound=msgspec.Struct)


class StartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/v1/captures`. Missing values come from the profile."""

    job: str
    profile: str = "default"
    ranks: str | None = None
    steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_duration_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    by: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """The requester's name for display; not verified."""
    id: str | None = None
    """Chosen by the caller so that a repeated request captures once."""


class CancelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/v1/captures/ID/cancel`."""

    reason: str = "by hand."


_STARTS, _CANCELS = msgspec.json.Decoder(StartBody), msgspec.json.Decoder(CancelBody)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


def capture_routes(
    *,
    captures: Callable[[], Sequence[Mapping[str, Any]]],
    start: Callable[[StartBody], Mapping[str, Any]],
    cancel: Callable[[str, str], Mapping[str, Any]],
    link: Callable[[str, str], tuple[str, float]],
) -> dict[str, Handler]:
    """Routes over callbacks, which do their own locking and raise `CaptureError` for a bad request.

    `start` raises `StorageError` if it cannot record the capture. `link` returns a temporary address of a
    capture's file, and for how many seconds it is valid; it raises `StorageError`.
    """

    def collection(request: Request) -> Response:
        if request.method == "POST":
            return _answer(202, lambda: {"capture": start(_body(request.body, _STARTS))})
        short = _short if request.query.get("short") == "1" else dict
        return _answer(200, lambda: {"captures": [short(one) for one in _chosen(captures(), request.query)]})

    def one(request: Request) -> Response:
        capture_id, _, verb = request.rest.partition("/")
        if request.method == "POST" and verb == "cancel":
            return _answer(202, lambda: {"capture": cancel(capture_id, _body(request.body, _CANCELS).reason)})
        if request.method != "POST" and verb.startswith(_FILES):
            return _linked(lambda: link(unquote(capture_id), unquote(verb.removeprefix(_FILES))), request)
        if request.method == "POST" or verb:
            return error_response(404, f"No such path: {request.path}; GET {API_PATH} lists the captures.")
        found = next((c for c in captures() if c["id"] == capture_id), None)
        if found is None:
            return error_response(404, f"No capture {capture_id!r}; see `perfd capture list`.")
        return _answer(200, lambda: {"capture": found})

    return {API_PATH: collection, API_PATH + "/": one}


def _linked(link: Callable[[], tuple[str, float]], request: Request) -> Response:
    """A redirect to a file, or with `?link=1` its address: who may read this server may read the file."""
    try:
        address, lifetime_s = link()
    except StorageError as error:
        return error_response(404, str(error))
    # The address is a credential: it must not stay anywhere longer than it is valid.
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    if request.query.get("link") == "1":
        document = {"schema": SCHEMA, "url": address, "lifetime_s": lifetime_s}
        return json_response(document, headers=headers)
    return Response(status=302, headers={**headers, "Location": address})


def _chosen(captures: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """The captures of one job or server, or of one kind of them."""
    job, kind = query.get("job"), query.get("kind")
    if kind not in (None, "job", "server"):
        raise CaptureError(f"`kind` must be job or server, not {kind!r}.")
    return [
        capture
        for capture in captures
        if job in (None, capture["job"]) and kind in (None, "server" if capture["server"] else "job")
    ]


def _short(capture: Mapping[str, Any]) -> dict[str, Any]:
    """The capture without data per rank, only with the number of ranks in each state."""
    report = capture["report"]
    return {
        **{key: value for key, value in capture.items() if key != "ranks"},
        "rank_states": Counter(who["state"] for who in capture["ranks"]),
        "report": report and {**report, "shares": None},
    }


def _body(body: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    try:
        return decoder.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaptureError(f"Invalid request body: {error}.") from error


def _answer(status: int, make: Callable[[], Mapping[str, Any]]) -> Response:
    try:
        document = make()
    except CaptureError as error:
        return error_response(400, str(error))
    except StorageError as error:
        return error_response(503, str(error))
    return json_response({"schema": SCHEMA, **document}, status)
