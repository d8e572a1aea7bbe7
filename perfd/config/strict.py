"""Base types of the configuration: strict structs, and TLS certificates."""

from __future__ import annotations

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Refuses unknown keys, so that a misspelled one is an error."""


class TlsConfig(Strict, frozen=True):
    """Certificates in PEM files; with `ca` the peer must present one, too (mutual TLS)."""

    certificate: str | None = None
    key: str | None = None
    ca: str | None = None
