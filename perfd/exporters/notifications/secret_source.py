"""A secret from a file or an environment variable, read again whenever it is needed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from perfd.errors import ConfigError
from perfd.exporters.http_post import read_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """Where one secret is."""

    file: str | None
    variable: str | None
    key: str
    """The key of the configuration, for errors; `_file` or `_variable` is appended."""

    def __bool__(self) -> bool:
        return self.file is not None or self.variable is not None

    def read(self) -> str:
        """The secret; raises `ConfigError`, without the secret in it, if there is none or two."""
        if self.file is not None and self.variable is not None:
            raise ConfigError(f"{self.key}: set `_file` or `_variable`, not both.")
        if self.file is not None:
            return read_secret(self.file, f"{self.key}_file")
        value = os.environ.get(self.variable or "", "").strip()
        if not value or not value.isprintable():
            raise ConfigError(f"{self.key}_variable: {self.variable} must hold one line, the secret.")
        return value


def without(text: str, *secrets: str) -> str:
    """The text with `***` where it has a secret, as the answers of some servers do."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text
