"""Silences alerts in the Alertmanagers that receive them, through API v2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perfd.config import AlertmanagerConfig
from perfd.errors import PerfdError
from perfd.exporters.alertmanager.api_v2 import ApiV2, timestamp


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
