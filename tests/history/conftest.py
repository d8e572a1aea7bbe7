"""A PostgreSQL server for all tests here, and a history in each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from history.support import Location, PostgresLocation, SqliteLocation

from tests.support.postgres_server import PostgresCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster(settings="fsync = off") as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.system)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "sqlite":
        return SqliteLocation(tmp_path)
    return PostgresLocation(request.getfixturevalue("cluster"))


@pytest.fixture
def postgres(cluster: PostgresCluster) -> PostgresLocation:
    return PostgresLocation(cluster)
