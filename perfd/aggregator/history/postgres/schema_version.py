"""Upgrades the tables of the history to this program's revision; refuses newer ones."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import psycopg

from perfd.errors import PerfdError
from perfd.net.postgres_server import PostgresServer

log = logging.getLogger(__name__)

SCHEMA_REVISION = "0001"
"""The newest one in `migrations/versions`."""
_KNOWN = {"0001"}
_ONE_AT_A_TIME = threading.Lock()
"""Alembic keeps a migration's connection in a module global, so partitions of one process take turns."""


def bring_up_to_date(server: PostgresServer, found: str | None) -> None:
    """Run what is missing, all or nothing. The caller holds the lock that keeps others out.

    `found` is the revision of the tables.

    Raises `PerfdError` when a newer perfd made the tables, or `psycopg.Error`.
    """
    if found == SCHEMA_REVISION:
        return
    if found is not None and found not in _KNOWN:
        raise PerfdError(
            f"The history at {server.place} was written by a newer perfd (schema {found}): upgrade this one, "
            "or set history.url to another database."
        )
    with _ONE_AT_A_TIME:
        _run(server)


def _run(server: PostgresServer) -> None:
    # Only where there is something to do: they take half a second and 30 MB.
    from alembic.config import Config  # noqa: PLC0415
    from alembic.runtime.environment import EnvironmentContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415
    from sqlalchemy import create_engine  # noqa: PLC0415
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    script = ScriptDirectory.from_config(config)
    engine = create_engine("postgresql+psycopg://", creator=server.connect, poolclass=NullPool)
    try:
        with engine.connect() as database:
            environment = EnvironmentContext(config, script)
            environment.configure(
                connection=database,
                fn=lambda revision, _: script._upgrade_revs("head", revision),  # noqa: SLF001
            )
            with environment.begin_transaction():
                environment.run_migrations()
            database.commit()
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from error
        raise
    log.info(
        "The tables of the history were brought up to date.",
        extra={"history": server.place, "schema": SCHEMA_REVISION},
    )
