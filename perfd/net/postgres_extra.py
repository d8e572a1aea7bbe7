"""Whether the extra `perfd[postgres]` is there; without it the modules that need it are not imported."""

from __future__ import annotations

import importlib.util

from perfd.errors import ConfigError


def require_postgres() -> None:
    """Raise `ConfigError` without the extra."""
    if any(importlib.util.find_spec(name) is None for name in ("psycopg", "alembic")):
        raise ConfigError("history.url: install perfd[postgres], which contains the PostgreSQL client.")
