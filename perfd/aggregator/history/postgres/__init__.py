"""History in a PostgreSQL database, with the extra `perfd[postgres]`."""

from perfd.aggregator.history.postgres.postgres_database import PostgresDatabase

__all__ = ["PostgresDatabase"]
