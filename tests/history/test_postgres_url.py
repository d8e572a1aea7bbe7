"""What `history.url` may say, and where; no server is needed."""

from __future__ import annotations

import importlib.util
import os
from types import SimpleNamespace

import pytest

from perfd.aggregator.history import configured_history
from perfd.config import HistoryConfig
from perfd.doctor.node_probe import probe_history
from perfd.errors import ConfigError, PerfdError

SECRET = "correct-horse"
OTHER = "postgresql://perfd@db1.example.com:5432/perfd"
pytest.importorskip("psycopg")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


def server(url, **options):
    from perfd.net.postgres_server import PostgresServer  # noqa: PLC0415  (with the extra only)

    return PostgresServer(HistoryConfig(url=url, **options), application="test")


def refused(url, **options):
    with pytest.raises(ConfigError) as raised:
        server(url, **options)
    assert str(raised.value).startswith("history.url: ")
    assert raised.value.__cause__ is None, "the cause may quote the URL"
    return str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://perfd:{SECRET}@localhost/perfd",
        f"postgresql://perfd@localhost/perfd?password={SECRET}",
        f"postgresql://perfd@localhost/perfd?sslpassword={SECRET}",
        f"postgresql://perfd@localhost/perfd?oauth_client_secret={SECRET}",
        f"postgresql://perfd:%{SECRET}@localhost/perfd",
        f"mysql://perfd:{SECRET}@localhost/perfd",
        f"host=localhost password={SECRET}",
    ],
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(url):
    assert SECRET not in refused(url)


@pytest.mark.parametrize(
    "url",
    [
        f"{OTHER}?sslmode=disable",
        f"{OTHER}?sslmode=allow",
        f"{OTHER}?sslmode=prefer",
        "postgresql://perfd@localhost,db1.example.com/perfd?sslmode=prefer",
        "postgresql://perfd@localhost/perfd?hostaddr=192.0.2.1&sslmode=prefer",
    ],
)
def test_plain_text_to_another_machine_has_to_be_allowed(url):
    assert "history.allow_plaintext" in refused(url)
    assert server(url, allow_plaintext=True)._parameters["sslmode"] in url


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        (OTHER, "require"),
        (f"{OTHER}?sslmode=verify-full", "verify-full"),
        ("postgresql://perfd@localhost/perfd?hostaddr=192.0.2.1", "require"),
        ("postgresql://perfd@db1.example.com/perfd?hostaddr=127.0.0.1", "prefer"),
        ("postgresql://perfd@127.0.0.1/perfd", "prefer"),
        ("postgresql://perfd@[::1]/perfd", "prefer"),
        ("postgresql:///perfd", "prefer"),
        ("postgresql:///perfd?host=/run/postgresql", "prefer"),
    ],
)
def test_another_machine_gets_encryption_without_a_word(url, mode):
    assert server(url)._parameters["sslmode"] == mode


@pytest.mark.parametrize("name", ["PGHOST", "PGHOSTADDR"])
def test_a_machine_that_the_environment_names_gets_encryption_too(monkeypatch, name):
    monkeypatch.setenv(name, "192.0.2.1")
    assert server("postgresql:///perfd")._parameters["sslmode"] == "require"
    monkeypatch.setenv("PGSSLMODE", "prefer")
    assert "sslmode=prefer" in refused("postgresql:///perfd")


def test_a_service_file_is_refused_wherever_it_is_named(monkeypatch):
    assert "`service`" in refused("postgresql:///perfd?service=perfd")
    monkeypatch.setenv("PGSERVICE", "perfd")
    assert "PGSERVICE" in refused("postgresql:///perfd")


def test_a_file_and_a_database_exclude_each_other_and_doctor_knows(tmp_path):
    config = HistoryConfig(path=str(tmp_path / "history.sqlite"), url="postgresql://localhost/perfd")
    with pytest.raises(ConfigError, match="`path` and `url` are mutually exclusive") as raised:
        configured_history(config)
    assert list(tmp_path.iterdir()) == []
    assert probe_history(config).server.error == str(raised.value)


@pytest.mark.parametrize("missing", ["psycopg", "alembic"])
def test_without_the_extra_the_sentence_names_it(monkeypatch, missing):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(ConfigError, match=r"^history\.url: install perfd\[postgres\]"):
        configured_history(HistoryConfig(url="postgresql://localhost/perfd"))


@pytest.mark.parametrize(
    ("version", "encoding", "sentence"),
    [
        (120_022, "UTF8", "is on PostgreSQL 12: perfd needs 13 or later"),
        (170_002, "LATIN1", "does not have the encoding UTF8: create another one for perfd"),
    ],
)
def test_a_server_that_is_too_old_or_of_another_encoding_is_refused(version, encoding, sentence):
    from perfd.net.postgres_requirements import require_database  # noqa: PLC0415  (with the extra only)

    info = SimpleNamespace(server_version=version, parameter_status={"server_encoding": encoding}.get)
    with pytest.raises(PerfdError, match=sentence):
        require_database(SimpleNamespace(info=info), "postgresql://db1:5432/perfd")
