"""/api/v1/silences: silence a firing alert in the configured Alertmanager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from perfd.errors import PerfdError
from perfd.net import Handler, Request, Response, error_response, json_response

PATH = "/api/v1/silences"
SCHEMA = "perfd.silences/1"
_MOST_S = 30 * 86_400.0
"""Longer silences are easily forgotten; Alertmanager's own page can create them."""
_NO_TOKEN = "To silence alerts, set http_token_file in the aggregator's configuration and use its token."  # noqa: S105  (a sentence)
_NO_ALERTMANAGER = "To silence alerts, set exporters.alertmanager.urls in the aggregator's configuration."

Silence = Callable[[Mapping[str, str], float, str, str], str]
"""Silences the alert with these labels for so many seconds; takes a name and a comment, returns the id."""


class SilenceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/v1/silences`."""

    labels: dict[str, str]
    """All labels of a firing alert."""
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=_MOST_S)]
    by: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    comment: Annotated[str, msgspec.Meta(max_length=2000)] = ""


_BODIES = msgspec.json.Decoder(SilenceBody)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


def silence_routes(
    alerts: Callable[[], Sequence[Mapping[str, Any]]],
    silence: Silence,
    *,
    has_alertmanager: bool,
    has_token: bool,
) -> dict[str, Handler]:
    """The route; a GET returns whether it is available, or why not. Without a token no alert is silenced."""
    missing = _NO_ALERTMANAGER if not has_alertmanager else _NO_TOKEN if not has_token else None

    def answer(request: Request) -> Response:
        if request.method != "POST":
            return json_response({"schema": SCHEMA, "available": missing is None, "reason": missing})
        if missing is not None:
            return error_response(403, missing)
        try:
            body = _BODIES.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return error_response(400, f"Invalid request body: {error}.")
        # Fewer labels would silence more than the alert that the user sees.
        if not any(one["state"] == "firing" and one["labels"] == body.labels for one in alerts()):
            return error_response(404, "No alert with exactly these labels is firing.")
        try:
            silence_id = silence(body.labels, body.duration_s, body.by, body.comment)
        except PerfdError as error:
            return error_response(503, str(error))
        return json_response({"schema": SCHEMA, "id": silence_id}, 201)

    return {PATH: answer}
