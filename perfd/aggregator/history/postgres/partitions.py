"""Partitions by the day on which attempts began: they are created on demand, and dropped when all expired."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta

from psycopg import errors, sql

from perfd.aggregator.history.postgres.postgres_tables import day_of
from perfd.net.postgres_server import PostgresConnection

_TABLES = ("step_rows", "phase_rows", "event_rows")
_LOCK_WITHIN = "2s"
"""A dump holds a lock on every table for as long as it takes: then partitions are dropped an hour later."""
_LINGER = timedelta(days=7)
"""Rows of expired attempts that are so much older are deleted from a partition that a long job keeps."""


def create(connection: PostgresConnection, days: Iterable[date]) -> None:
    """Have a partition of each table for each day; those that are there stay. Raises `psycopg.Error`."""
    for day in sorted(days):
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WITHIN}'")
            for table in _TABLES:
                name, parent = sql.Identifier(_name(table, day)), sql.Identifier(table)
                found = connection.execute(
                    "SELECT FROM pg_inherits WHERE inhrelid = to_regclass(%s)", [_name(table, day)]
                ).fetchone()
                if found is not None:
                    continue
                # Attached, it needs no lock that readers and dumps would have to wait for. One that a person
                # detached is attached again.
                connection.execute(
                    sql.SQL("CREATE TABLE IF NOT EXISTS {} (LIKE {} INCLUDING ALL)").format(name, parent)
                )
                connection.execute(
                    sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
                        parent,
                        name,
                        sql.Literal(day.isoformat()),
                        sql.Literal((day + timedelta(1)).isoformat()),
                    )
                )


def existing(connection: PostgresConnection) -> set[date]:
    """The days for which every table has a partition."""
    found: dict[str, set[date]] = {table: set() for table in _TABLES}
    rows = connection.execute(
        "SELECT parent.relname, partition.relname FROM pg_inherits "
        "JOIN pg_class AS parent ON parent.oid = inhparent "
        "JOIN pg_class AS partition ON partition.oid = inhrelid "
        "WHERE inhparent IN (%s::regclass, %s::regclass, %s::regclass)",
        _TABLES,
    )
    for table, name in rows:
        text = name.removeprefix(f"{table}_")
        if len(text) == len("20261123") and text.isdecimal():
            found[table].add(date.fromisoformat(text))
    return set.intersection(*found.values())


def in_use(connection: PostgresConnection) -> set[date]:
    """The days on which attempts began that have not expired."""
    return {day for (day,) in connection.execute("SELECT DISTINCT began_on FROM jobs")}


def drop_expired(connection: PostgresConnection, before_unix_s: float) -> set[date]:
    """Drop partitions of days before a time that no attempt needs; returns their days.

    Of partitions that an attempt still needs, old rows are deleted. Raises `psycopg.Error`.
    """
    # A retention of many years comes to a time before the first year.
    before = day_of(max(0.0, before_unix_s))
    needed = in_use(connection)
    dropped: set[date] = set()
    for day in sorted(one for one in existing(connection) if one < before):
        if day not in needed:
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WITHIN}'")
                    for table in _TABLES:
                        connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(_name(table, day))))
            except errors.LockNotAvailable:
                return dropped
            dropped.add(day)
            continue
        for table in ("phase_rows", "event_rows"):
            connection.execute(
                sql.SQL("DELETE FROM {} WHERE time_unix_s < %s").format(sql.Identifier(_name(table, day))),
                [before_unix_s],
            )
        if day < before - _LINGER:
            for table in _TABLES:
                connection.execute(
                    sql.SQL(
                        "DELETE FROM {} AS kept WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.job = kept.job "
                        "AND jobs.attempt = kept.attempt AND jobs.began_on = kept.began_on)"
                    ).format(sql.Identifier(_name(table, day)))
                )
    return dropped


def _name(table: str, day: date) -> str:
    return f"{table}_{day:%Y%m%d}"
