"""A bearer token in a file: whoever shows it is believed."""

from __future__ import annotations

import hmac
from pathlib import Path

from perfd.errors import ConfigError


class BearerToken:
    """The token in a file, read at each question, so that a new one counts at once.

    Raises `ConfigError`, with the configuration's `key`, when the file holds none.
    """

    def __init__(self, path: str, *, key: str) -> None:
        self._path = path
        self._key = key
        self._read()

    def shown_in(self, authorization: str) -> bool:
        """Whether the value of an `Authorization` header shows it; raises `ConfigError` as at the start."""
        token = self._read()
        scheme, _, shown = authorization.partition(" ")
        # Compared in constant time, so that it cannot be guessed piece by piece.
        right = hmac.compare_digest(shown.strip().encode(errors="surrogateescape"), token)
        return scheme.lower() == "bearer" and right

    def _read(self) -> bytes:
        try:
            token = Path(self._path).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{self._key}: cannot read {self._path}: {error.strerror or error}.") from error
        if not token or len(token.split()) != 1:
            raise ConfigError(f"{self._key}: {self._path} must contain one word, the token.")
        return token
