"""What every configuration type is made of: unknown keys are refused, and certificates are named alike."""

from __future__ import annotations

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Refuses unknown keys, so that a misspelled one is an error and not silence."""


class TlsConfig(Strict, frozen=True):
    """Certificates in PEM files; with `ca` the other side must show one too (mutual TLS)."""

    certificate: str | None = None
    key: str | None = None
    ca: str | None = None
