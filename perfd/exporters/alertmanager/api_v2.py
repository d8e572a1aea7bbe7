"""The endpoints of Alertmanager's HTTP API v2 that perfd posts to, and silences of alerts there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from perfd.config import AlertmanagerConfig
from perfd.errors import PerfdError
from perfd.exporters.http_post import Poster, PostResponse

KEY = "exporters.alertmanager"
"""Where it is configured."""
_PATH = "/api/v2/"


class ApiV2:
    """One endpoint of one Alertmanager; `url` is its address, with or without the path of alerts."""

    def __init__(self, url: str, endpoint: Literal["alerts", "silences"], config: AlertmanagerConfig) -> None:
        base = url.rstrip("/").removesuffix(f"{_PATH}alerts")
        self._poster = Poster(f"{base}{_PATH}{endpoint}", config.http, key=KEY)

    def post(self, document: Any) -> PostResponse:  # noqa: ANN401  (any JSON)
        """Send a document as JSON."""
        return self._poster.post(msgspec.json.encode(document), {"Content-Type": "application/json"})

    def close(self) -> None:
        """Close the connection."""
        self._poster.close()


def timestamp(unix_s: float) -> str:
    """A time as the API wants it (RFC 3339)."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


class _Created(msgspec.Struct):
    silenceID: str  # noqa: N815  (Alertmanager's name)


_CREATED = msgspec.json.Decoder(_Created)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


def silence_body(
    labels: Mapping[str, str], start_unix_s: float, duration_s: float, *, by: str, comment: str
) -> dict[str, Any]:
    """The request for a silence of the one alert with exactly these labels."""
    # Alertmanager has no empty labels.
    matchers = [
        {"name": name, "value": value, "isRegex": False, "isEqual": True}
        for name, value in sorted(labels.items())
        if value
    ]
    return {
        "matchers": matchers,
        "startsAt": timestamp(start_unix_s),
        "endsAt": timestamp(start_unix_s + duration_s),
        "createdBy": by,
        "comment": comment,
    }


def create_silence(config: AlertmanagerConfig, body: Mapping[str, Any]) -> str:
    """Create a silence at the first Alertmanager that accepts it, and return the id; its cluster shares it.

    Raises `PerfdError` with every Alertmanager's answer when none does.
    """
    answers: list[str] = []
    for url in config.urls:
        silences = ApiV2(url, "silences", config)
        answer = silences.post(body)
        silences.close()
        if answer.taken:
            try:
                return _CREATED.decode(answer.text).silenceID
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                answers.append(f"{url}: {error}")
        else:
            answers.append(f"{url}: {answer.status or 'no answer'} {answer.text[:200]}".rstrip())
    raise PerfdError(f"No Alertmanager accepted the silence: {'; '.join(answers)}.")
