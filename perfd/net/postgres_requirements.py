"""What a PostgreSQL database must be for a history, with the extra `perfd[postgres]`."""

from __future__ import annotations

import psycopg

from perfd.errors import PerfdError
from perfd.net.postgres_server import PostgresConnection, PostgresError, postgres_error

_OLDEST_SERVER = 130_000
"""13.0, as libpq numbers versions."""
_TABLES = (
    "SELECT to_regclass('alembic_version') IS NOT NULL, "
    "to_regclass('writer') IS NOT NULL AND to_regclass('step_rows') IS NOT NULL"
)
_RIGHTS = (
    "SELECT has_schema_privilege(current_schema(), 'CREATE'), "
    "coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class "
    "WHERE oid = to_regclass('step_rows')), true), "
    "current_schema(), current_user"
)
"""Partitions are created every day, which only the owner of their table may do."""


def require_database(connection: PostgresConnection, place: str) -> str | None:
    """The revision of the tables of a history; None if there are none yet.

    Raises `PerfdError` with what to do if perfd cannot keep a history in this database, or `PostgresError`.
    """
    try:
        _require_server(connection, place)
        _require_rights(connection, place)
        return _revision(connection, place)
    except psycopg.Error as error:
        raise postgres_error(error) from error


def _require_server(connection: PostgresConnection, place: str) -> None:
    info = connection.info
    if info.server_version < _OLDEST_SERVER:
        raise PerfdError(
            f"The history at {place} is on PostgreSQL {info.server_version // 10_000}: perfd needs "
            f"{_OLDEST_SERVER // 10_000} or later."
        )
    if info.parameter_status("server_encoding") != "UTF8":
        raise PerfdError(
            f"The database at {place} does not have the encoding UTF8: create another one for perfd."
        )


def _require_rights(connection: PostgresConnection, place: str) -> None:
    row = connection.execute(_RIGHTS).fetchone()
    may_create, owns, schema, user = row if row is not None else (True, True, "", "")
    if schema is None:
        raise PerfdError(
            f"The database at {place} has none of the schemas in search_path: create one, or correct "
            "`options` in history.url."
        )
    # It may be granted meanwhile: a history that is in use waits for it.
    if not may_create:
        raise PostgresError(
            f"The user {user} may not create tables: GRANT CREATE ON SCHEMA {schema} TO {user}."
        )
    if not owns:
        raise PostgresError(
            f"The tables belong to another user than {user}: connect as their owner, or change it with "
            "REASSIGN OWNED."
        )


def _revision(connection: PostgresConnection, place: str) -> str | None:
    row = connection.execute(_TABLES).fetchone()
    versioned, ours = row if row is not None else (False, False)
    if not versioned:
        return None
    if not ours:
        raise PerfdError(
            f"The table alembic_version at {place} belongs to another program: give perfd a separate "
            "database."
        )
    found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if found is None else str(found[0])
