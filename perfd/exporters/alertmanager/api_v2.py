"""The endpoints of Alertmanager's HTTP API v2 that perfd posts to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from perfd.config import AlertmanagerConfig
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
