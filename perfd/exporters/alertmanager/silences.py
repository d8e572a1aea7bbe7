"""Silences alerts in the Alertmanagers that receive them, through API v2."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from perfd.config import AlertmanagerConfig
from perfd.errors import PerfdError
from perfd.exporters.http_post import Poster

_KEY = "exporters.alertmanager"
_ALERTS, _SILENCES = "/api/v2/alerts", "/api/v2/silences"


class _Created(msgspec.Struct):
    silenceID: str  # noqa: N815  (Alertmanager's name)


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
    times = (start_unix_s, start_unix_s + duration_s)
    starts, ends = (
        datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds") for unix_s in times
    )
    return {"matchers": matchers, "startsAt": starts, "endsAt": ends, "createdBy": by, "comment": comment}


def create_silence(config: AlertmanagerConfig, body: Mapping[str, Any]) -> str:
    """Create a silence at the first Alertmanager that accepts it, and return the id; its cluster shares it.

    Raises `PerfdError` with every Alertmanager's answer when none does.
    """
    answers: list[str] = []
    for url in config.urls:
        poster = Poster(url.rstrip("/").removesuffix(_ALERTS) + _SILENCES, config.http, key=_KEY)
        answer = poster.post(msgspec.json.encode(body), {"Content-Type": "application/json"})
        poster.close()
        if answer.taken:
            try:
                return msgspec.json.decode(answer.text, type=_Created).silenceID
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                answers.append(f"{url}: {error}")
        else:
            answers.append(f"{url}: {answer.status or 'no answer'} {answer.text[:200]}".rstrip())
    raise PerfdError(f"No Alertmanager accepted the silence: {'; '.join(answers)}.")
