"""Connections to a PostgreSQL database, with the extra `perfd[postgres]`."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.waiting import Ready

from perfd.config import HistoryConfig
from perfd.errors import ConfigError, PerfdError, reason_of
from perfd.net.http import is_loopback

_T = TypeVar("_T")
# It warns of each connection that breaks; what that means for history is said once, and by perfd.
logging.getLogger("psycopg").setLevel(logging.ERROR)
_SCHEMES = ("postgresql://", "postgres://")
_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
_ENCRYPTED = {"require", "verify-ca", "verify-full"}
_CONNECT_WITHIN_S = 5
"""To each host of the URL."""
_KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""A machine that is gone is noticed in 25 s and not after two hours, on both sides."""
_SERVER_KEEPALIVE = "; ".join(
    f"SET {name} = {value}"
    for name, value in (
        ("tcp_keepalives_idle", 10),
        ("tcp_keepalives_interval", 5),
        ("tcp_keepalives_count", 3),
        ("tcp_user_timeout", 20_000),
    )
)


class PostgresError(PerfdError):
    """The server refused or did not answer; the message is the reason, without values of rows."""

    def __init__(self, reason: str, *, sqlstate: str | None = None) -> None:
        super().__init__(reason)
        self.sqlstate = sqlstate
        """PostgreSQL's code of the error; None if the server did not answer."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up when the server is stopped or gone."""

    limit_s = 10.0
    """How long each exchange with the server may take."""
    _late = False

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Consume a generator of psycopg, or raise `psycopg.OperationalError` when it takes too long."""
        del timeout
        return super().wait(self._limited(gen), interval)

    def _limited(self, gen: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
        # Once it was late, nothing more is worth waiting for.
        deadline_s = monotonic() + (0.0 if self._late else self.limit_s)
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready == Ready.NONE and monotonic() > deadline_s:
                    self._late = True
                    raise psycopg.OperationalError(f"PostgreSQL did not answer within {self.limit_s:.0f} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class PostgresServer:
    """A database by its URL; raises `ConfigError`, which never quotes the URL.

    The password is none of the URL: it is read from a file for each connection, so that a renewed one is
    used without a restart, or libpq takes it from PGPASSFILE or PGPASSWORD.
    """

    def __init__(self, config: HistoryConfig, *, application: str, schema: str | None = None) -> None:
        """`application` names connections on the server; `schema` holds the tables, created if missing."""
        self._schema = schema
        if config.path is not None:
            raise ConfigError("history: `path` and `url` are mutually exclusive.")
        url = config.url or ""
        if not url.startswith(_SCHEMES):
            raise ConfigError("history.url: it must be postgresql://USER@HOST:PORT/DATABASE.")
        try:
            parameters = conninfo_to_dict(url)
        except psycopg.Error:
            # What libpq says quotes parts of it.
            raise ConfigError(
                "history.url: libpq cannot parse it; write special characters as %XX."
            ) from None
        if _SECRETS & parameters.keys():
            raise ConfigError(
                "history.url: it must not contain a password. Name a file in history.password_file, or use "
                "PGPASSFILE or PGPASSWORD; `sslpassword` is not supported."
            )
        if "service" in parameters or "PGSERVICE" in os.environ:
            raise ConfigError(
                "history.url: `service` and PGSERVICE are not supported; write the settings into the URL."
            )
        names = parameters.get("host") or os.environ.get("PGHOST")
        # These are connected to, whatever the names are.
        addresses = parameters.get("hostaddr") or os.environ.get("PGHOSTADDR")
        hosts = str(names or addresses or "")
        self._parameters = {
            **_KEEPALIVE,
            "connect_timeout": _CONNECT_WITHIN_S,
            # Of several hosts, the one that takes writes.
            "target_session_attrs": "primary",
            **parameters,
            "sslmode": _ssl_mode(str(addresses or hosts), parameters, allow_plaintext=config.allow_plaintext),
            "application_name": application,
        }
        if schema is not None:
            # The last of two settings applies.
            self._parameters["options"] = f"{parameters.get('options') or ''} -csearch_path={schema}".strip()
        self._password_file = config.password_file
        port = parameters.get("port") or os.environ.get("PGPORT") or "5432"
        database = parameters.get("dbname") or os.environ.get("PGDATABASE") or "(default)"
        self.place = f"postgresql://{hosts or '(local socket)'}:{port}/{database}"
        """Host, port and database, for people."""

    def connect(self) -> PostgresConnection:
        """A connection in autocommit mode; raises `PostgresError`."""
        try:
            connection = PostgresConnection.connect(
                make_conninfo("", **self._parameters, **self._password()), autocommit=True
            )
        except psycopg.Error as error:
            raise postgres_error(error) from error
        try:
            connection.execute(_SERVER_KEEPALIVE)
            if self._schema is not None and _no_schema(connection):
                connection.execute(
                    sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema))
                )
        except psycopg.Error as error:
            connection.close()
            raise postgres_error(error) from error
        return connection

    def _password(self) -> dict[str, str]:
        if self._password_file is None:
            return {}
        try:
            return {"password": Path(self._password_file).read_text(encoding="utf-8").strip()}
        except (OSError, UnicodeDecodeError) as error:
            raise PostgresError(f"history.password_file cannot be read: {reason_of(error)}.") from error


def _no_schema(connection: PostgresConnection) -> bool:
    return connection.execute("SELECT current_schema()").fetchone() == (None,)


def postgres_error(error: psycopg.Error) -> PostgresError:
    """An error of psycopg without what the server says of values, and in one line."""
    reason = " ".join((error.diag.message_primary or str(error)).split())
    return PostgresError(reason or type(error).__name__, sqlstate=error.sqlstate)


def _ssl_mode(hosts: str, parameters: dict[str, Any], *, allow_plaintext: bool) -> str:
    """`sslmode` of libpq; raises `ConfigError` if rows would cross a network in plain text by accident."""
    wanted = parameters.get("sslmode") or os.environ.get("PGSSLMODE")
    local = all(host.startswith(("/", "@")) or not host or is_loopback(host) for host in hosts.split(","))
    if local or allow_plaintext:
        return str(wanted or "prefer")
    if wanted is not None and wanted not in _ENCRYPTED:
        raise ConfigError(
            f"history.url: sslmode={wanted} allows plain text to another machine: use verify-full with "
            "sslrootcert, or set history.allow_plaintext."
        )
    return str(wanted or "require")
