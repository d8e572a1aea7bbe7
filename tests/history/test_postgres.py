"""What only a PostgreSQL server can do to a history: be away, refuse, be shared, be restored."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from contextlib import closing
from datetime import date

import psycopg
import pytest
from aggregator.support import START_S, aggregator, fleet, source, step, values
from alembic.script import ScriptDirectory
from exporters.support import until
from history.support import DAY_S, Node, PostgresLocation, keep, step_rows, write

from perfd.aggregator.history import configured_history
from perfd.aggregator.history.history_rows import job_rows, rows
from perfd.aggregator.history.postgres import PostgresDatabase, schema_version
from perfd.aggregator.partition import Partition
from perfd.config import HistoryConfig
from perfd.doctor.node_probe import probe_history
from perfd.errors import PerfdError
from perfd.model import Event, EventKind
from perfd.net.postgres_server import PostgresConnection
from tests.support.pki import Authority
from tests.support.postgres_server import GUARDED, PostgresCluster

pytestmark = pytest.mark.system
WAIT_S = 60.0
SECRET = "correct-horse"
DAY = date(2023, 11, 14)
"""That of `START_S`."""


def partitions(postgres, table="step_rows"):
    """The days of its partitions."""
    found = postgres.sql(
        f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{table}'::regclass"
    )
    return sorted(name.removeprefix(f"{table}_") for (name,) in found)


def steps(history, job="llm"):
    return [line["step"] for line in history.steps(job, first_step=0, limit=1000)]


def expire(history, day, *, retention_days=5):
    """Let retention come to a day after `START_S`."""
    history._retention._reached_unix_s = None
    history.expire(retention_days * DAY_S, START_S + day * DAY_S, 0.0)
    write(history)


def writer(postgres):
    """The server's process of the writing connection."""
    return postgres.sql(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = "
        f"(SELECT oid FROM pg_database WHERE datname = '{postgres.database}')"
    )


# Credentials and encryption


def test_a_password_is_read_from_its_file_and_never_shown(cluster, postgres, tmp_path, caplog):
    cluster.sql(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{SECRET}'")
    cluster.sql(f"ALTER DATABASE {postgres.database} OWNER TO {GUARDED}")
    secret = tmp_path / "password"
    config = HistoryConfig(url=cluster.url_of(postgres.database, user=GUARDED), password_file=str(secret))
    with caplog.at_level(logging.DEBUG):
        for content in ("wrong", None):
            if content is None:
                secret.unlink()
            else:
                secret.write_text(content)
            with pytest.raises(PerfdError) as refused:
                PostgresDatabase(config, start_wait_s=0.0).open()
            assert "wrong" not in str(refused.value)
        assert "password_file" in str(refused.value)
        secret.write_text(f"{SECRET}\n")
        database = PostgresDatabase(config, start_wait_s=0.0)
        database.open()
        database.close()
    shown = caplog.text + repr(vars(database)) + repr(vars(database._server)) + database.place
    assert SECRET not in shown
    assert "wrong" not in caplog.text


def test_tls_is_what_the_url_asks_for(tmp_path):
    for name in ("known", "other"):
        (tmp_path / name).mkdir()
        Authority(tmp_path / name).sign("server", names="IP:127.0.0.1")
    known, other = tmp_path / "known", tmp_path / "other"
    with PostgresCluster(certificate=(known / "server.pem", known / "server.key")) as server:

        def opened(query):
            config = HistoryConfig(url=f"{server.url}?{query}")
            database = PostgresDatabase(config, start_wait_s=0.0)
            database.open()
            with database.reading() as query_of:
                ((encrypted,),) = query_of("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", [])
            database.close()
            return encrypted

        assert opened(f"sslmode=verify-full&sslrootcert={known}/ca.pem")
        assert not opened("sslmode=disable")
        with pytest.raises(PerfdError, match="certificate verify failed"):
            opened(f"sslmode=verify-full&sslrootcert={other}/ca.pem")


# Away, and back


@pytest.mark.parametrize(
    ("away", "back"),
    [("pause", "resume"), ("kill", "start"), ("stop", "start")],
    ids=["pause", "kill", "stop"],
)
def test_while_the_server_is_unreachable_batches_wait_and_live_numbers_continue(tmp_path, away, back):
    with (
        PostgresCluster() as server,
        aggregator(history=HistoryConfig(url=server.url)) as running,
        closing(Node(tmp_path, running.grpc_address)) as agent,
    ):
        assert agent.uplink.wait_acknowledged(agent.produce(20), WAIT_S)
        getattr(server, away)()
        last = agent.produce(20)
        until(lambda: running.state.fleet.jobs["job-n0"].steps.last_step == last)
        until(lambda: not running._history.healthy)
        running.tick()
        page = values(running.page())
        assert page["perfd_history_up"] == 0
        assert page['perfd_step{perfd_job="job-n0"}'] == last
        assert running.unready() is None
        assert running.history_problem().startswith("History cannot be written: ")
        assert agent.uplink.state.acknowledged_sequence == 20
        getattr(server, back)()
        assert agent.uplink.wait_acknowledged(last, WAIT_S)
        assert running.history_problem() is None
        assert [line["step"] for line in running.steps("job-n0", 0, 99)] == list(range(1, last + 1))
        assert running.state.counters.lost_batches == 0


def test_a_start_waits_for_a_server_that_is_starting():
    with PostgresCluster() as server:
        server.stop()
        starting = threading.Thread(target=server.start)
        database = PostgresDatabase(HistoryConfig(url=server.url), start_wait_s=WAIT_S)
        starting.start()
        database.open()
        starting.join()
        assert database.is_open
        database.close()


def test_without_a_server_the_aggregator_does_not_start(cluster):
    with PostgresCluster() as server:
        url = server.url
    with pytest.raises(PerfdError, match=r"postgresql://127\.0\.0\.1:\d+/perfd cannot be used: .*refused"):
        PostgresDatabase(HistoryConfig(url=url), start_wait_s=0.0).open()


def test_rows_wait_for_a_right_that_was_revoked(postgres, caplog):
    history = postgres.store(retry_s=0.05)
    write(history, *step_rows(1))
    postgres.sql("REVOKE INSERT ON step_rows FROM perfd")
    stored = threading.Event()
    history.submit(step_rows(2), stored.set)
    until(lambda: not history.healthy)
    assert history.problem == "History cannot be written: permission denied for table step_rows"
    assert not stored.is_set()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    postgres.sql("GRANT INSERT ON step_rows TO perfd")
    assert stored.wait(WAIT_S)
    assert steps(history) == [1, 2]
    assert history.failed_rows == 0
    history.close()


def test_rows_wait_for_room_on_the_servers_disk(postgres):
    history = postgres.store(retry_s=0.05)
    write(history, *step_rows(1))
    ((pid,),) = writer(postgres)
    # Files of tables may not grow, that of the log may: it has 16 MB from the start.
    big = Event(kind=EventKind.CHECKPOINT, time_unix_ns=1, message="x" * 9000, job="llm")
    postgres.cluster.limit_files(pid, 8192)
    stored = threading.Event()
    history.submit(
        [*step_rows(2), *(row for item in fleet().apply([big], source()) for row in rows(item, START_S))],
        stored.set,
    )
    until(lambda: not history.healthy)
    assert not stored.is_set()
    # The next connection has a process of its own, without the limit.
    assert stored.wait(WAIT_S)
    assert steps(history) == [1, 2]
    history.close()


def test_a_connection_that_ends_is_opened_again(postgres):
    history = postgres.store(retry_s=0.05)
    write(history, *step_rows(1))
    postgres.sql(f"SELECT pg_terminate_backend({writer(postgres)[0][0]})")
    write(history, *step_rows(2))
    assert steps(history) == [1, 2]
    assert history.failed_rows == 0
    history.close()


# Shared


def test_an_aggregator_stops_writing_after_another_one_wrote(postgres, caplog):
    first = postgres.store(retry_s=0.05)
    write(first, *step_rows(1))
    postgres.sql(f"SELECT pg_terminate_backend({writer(postgres)[0][0]})")
    until(lambda: not writer(postgres))
    second = postgres.store()
    write(second, *step_rows(2))
    stored = threading.Event()
    first.submit(step_rows(3), stored.set)
    until(lambda: first.problem is not None and "uses this database" in first.problem)
    second.close()
    until(lambda: "Another aggregator has written to this history since" in first.problem)
    assert not stored.is_set()
    assert steps(first) == [1, 2]
    first.close()


def test_two_schemas_of_a_database_are_two_histories(postgres):
    for name in ("a", "b"):
        postgres.sql(f"CREATE SCHEMA {name} AUTHORIZATION perfd")
    url = postgres.config.url
    one, two = (
        configured_history(HistoryConfig(url=f"{url}?options=-csearch_path%3D{name}")) for name in ("a", "b")
    )
    write(one, *step_rows(1))
    assert (steps(one), steps(two)) == ([1], [])
    one.close()
    two.close()


def test_a_schema_that_is_missing_is_named(postgres):
    config = HistoryConfig(url=f"{postgres.config.url}?options=-csearch_path%3Dnowhere")
    with pytest.raises(PerfdError, match=r"none of the schemas in search_path: create one"):
        PostgresDatabase(config).open()


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (
            "CREATE DATABASE {name} OWNER perfd ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'",
            "encoding UTF8",
        ),
        ("CREATE DATABASE {name}", "perfd may not create tables: GRANT CREATE ON SCHEMA public TO perfd"),
        ("SELECT 1 AS {name}", 'database "{name}" does not exist'),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_with_a_sentence(cluster, request, made, sentence):
    name = f"odd_{abs(hash(request.node.name))}"
    cluster.sql(made.format(name=name))
    config = HistoryConfig(url=cluster.url_of(name))
    with pytest.raises(PerfdError, match=sentence.format(name=name)):
        PostgresDatabase(config, start_wait_s=0.0).open()
    assert sentence.format(name=name) in probe_history(config).server.error


def test_tables_of_another_program_or_user_are_refused_with_a_sentence(cluster, postgres):
    def refused(sentence):
        with pytest.raises(PerfdError, match=sentence):
            PostgresDatabase(postgres.config, start_wait_s=0.0).open()
        assert sentence in probe_history(postgres.config).server.error

    # Many programs number their revisions like this one.
    postgres.sql("CREATE TABLE alembic_version (version_num text)")
    postgres.sql("INSERT INTO alembic_version VALUES ('0001')")
    refused("belongs to another program: give perfd a separate database")
    postgres.sql("DROP TABLE alembic_version")
    postgres.store().close()
    cluster.sql("ALTER TABLE step_rows OWNER TO CURRENT_USER", database=postgres.database)
    refused("The tables belong to another user than perfd: connect as their owner")


# Partitions


def test_partitions_are_dropped_when_all_of_their_attempts_have_expired(postgres):
    history, made = postgres.store(), fleet()
    for day in range(4):
        keep(history, made, step(1, job=f"j{day}"), now_s=day * DAY_S)
    assert partitions(postgres) == ["20231114", "20231115", "20231116", "20231117"]
    keep(history, made, step(2, job="j1"), now_s=3 * DAY_S)
    expire(history, 7.5)
    assert [steps(history, f"j{day}") for day in range(4)] == [[], [1, 2], [], [1]]
    for table in ("step_rows", "phase_rows", "event_rows"):
        assert partitions(postgres, table) == ["20231115", "20231117"]
    keep(history, made, step(9, job="j0"), now_s=9 * DAY_S)
    assert partitions(postgres) == ["20231115", "20231117", "20231123"]
    assert steps(history, "j0") == [9]
    history.close()


def test_what_a_long_attempt_keeps_loses_the_rows_of_others_in_time(postgres):
    history, made = postgres.store(), fleet()
    keep(history, made, step(1, job="short"), step(1, job="long"))
    old = Event(kind=EventKind.CHECKPOINT, time_unix_ns=round(START_S * 1e9), message="", job="long")
    keep(history, made, old, now_s=60.0)
    keep(history, made, step(2, job="long"), now_s=20 * DAY_S)
    count = "SELECT count(*) FROM step_rows"
    expire(history, 6)
    assert steps(history, "short") == []
    assert postgres.sql(count) == [(3,)]
    assert postgres.sql("SELECT count(*) FROM event_rows") == [(0,)]
    expire(history, 5 + 9)
    assert postgres.sql(count) == [(2,)]
    assert steps(history, "long") == [1, 2]
    history.close()


def test_a_partition_that_was_dropped_by_hand_is_created_again(postgres):
    history = postgres.store(retry_s=0.05)
    write(history, *step_rows(1))
    postgres.sql("DROP TABLE step_rows_20231114")
    write(history, *step_rows(2))
    assert steps(history) == [2]
    assert history.failed_rows == 0
    history.close()


def test_a_partition_that_was_detached_by_hand_is_attached_again(postgres):
    history = postgres.store(retry_s=0.05)
    write(history, *step_rows(1))
    postgres.sql("ALTER TABLE step_rows DETACH PARTITION step_rows_20231114")
    write(history, *step_rows(2))
    assert steps(history) == [1, 2]
    assert history.failed_rows == 0
    history.close()


def test_a_retention_of_three_thousand_years_keeps_everything(postgres):
    history = postgres.store()
    write(history, *step_rows(1))
    expire(history, 9, retention_days=3000 * 365)
    assert history.problem is None
    assert steps(history) == [1]
    history.close()


def test_a_server_that_does_not_answer_costs_a_reader_one_limit(postgres, monkeypatch):
    history = postgres.store()
    write(history, *step_rows(1))
    # As many at once as there can be: each is kept.
    with contextlib.ExitStack() as readers:
        for _ in range(4):
            list(readers.enter_context(history._database.reading())("SELECT 1", ()))
    asked = []
    execute = PostgresConnection.execute

    def lost(connection, query, *values):
        if query == "SELECT 1":
            asked.append(connection)
            raise psycopg.OperationalError("PostgreSQL did not answer")
        return execute(connection, query, *values)

    monkeypatch.setattr(PostgresConnection, "execute", lost)
    assert steps(history) == [1], "by a new connection"
    assert len(asked) == 1
    history.close()


def test_a_dump_delays_only_the_dropping_of_partitions(postgres):
    history, made = postgres.store(), fleet()
    keep(history, made, step(1))
    with postgres.cluster.connect(postgres.database) as dump:
        dump.execute("BEGIN")
        dump.execute("LOCK TABLE step_rows, phase_rows, event_rows IN ACCESS SHARE MODE")
        keep(history, made, step(1, job="new"), now_s=9 * DAY_S)
        expire(history, 9)
        assert history.healthy
        assert partitions(postgres) == ["20231114", "20231123"]
        dump.execute("COMMIT")
    expire(history, 9)
    assert partitions(postgres) == ["20231123"]
    history.close()


def test_a_restored_dump_is_a_usable_history(postgres, tmp_path):
    history, made = postgres.store(), fleet()
    keep(history, made, *(step(number) for number in range(1, 50)))
    dump = tmp_path / "history.dump"
    postgres.cluster.program("pg_dump", "-Fc", "-f", dump, postgres.database)
    history.close()
    restored = PostgresLocation(postgres.cluster)
    postgres.cluster.program("pg_restore", "-d", restored.database, dump)
    again = restored.store()
    assert steps(again) == list(range(1, 50))
    keep(again, fleet(), step(50))
    assert steps(again)[-1] == 50
    again.close()


# Programs


def test_the_newest_revision_is_the_one_that_the_program_wants():
    folder = schema_version.__file__.replace("schema_version.py", "migrations")
    script = ScriptDirectory(folder)
    assert script.get_current_head() == schema_version.SCHEMA_REVISION
    assert {one.revision for one in script.walk_revisions()} == schema_version._KNOWN


def test_doctor_says_whether_the_database_can_be_used(postgres):
    postgres.store().close()
    found = probe_history(postgres.config).server
    assert (found.error, found.schema, found.encrypted) == ("", "0001", False)
    assert found.version.split(".")[0].isdecimal()
    empty = PostgresLocation(postgres.cluster)
    assert probe_history(empty.config).server.schema is None
    missing = probe_history(HistoryConfig(url=postgres.cluster.url_of("missing"))).server
    assert 'database "missing" does not exist' in missing.error


def test_a_run_keeps_its_history_in_a_configured_database(postgres, tmp_path):
    config = tmp_path / "perfd.yaml"
    config.write_text(json.dumps({"aggregator": {"history": {"url": postgres.config.url}}}))
    job = "for step in range(1, 4): print('step', step, 'loss 1.5', flush=True)"
    options = ("--config", config, "--no-nsys", "--job", "mine", "--out", tmp_path / "out")
    command = [sys.executable, "-m", "perfd", "run", *options, "--", sys.executable, "-c", job]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert ended.returncode == 0, ended.stderr
    assert postgres.sql("SELECT step FROM step_rows WHERE job = 'mine' ORDER BY step") == [(1,), (2,), (3,)]


def test_synchronous_commit_cannot_be_off(cluster, postgres):
    cluster.sql(f"ALTER DATABASE {postgres.database} SET synchronous_commit = off")
    database = PostgresDatabase(postgres.config, start_wait_s=0.0)
    database.open()
    assert database._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    database.close()


def test_a_holder_whose_lease_is_over_does_not_wait_for_a_later_one(cluster, postgres):
    """Other partitions of its aggregator start after it."""

    def partition(epoch: int, *, held: bool) -> Partition:
        return Partition(number=1, count=2, epoch=epoch, held=lambda: held, serves=lambda: held)

    config = HistoryConfig(url=cluster.url_of(postgres.database))
    later = PostgresDatabase(config, start_wait_s=0.0, partition=partition(7, held=True))
    later.open()
    try:
        with pytest.raises(PerfdError, match="lease 7"):
            PostgresDatabase(config, start_wait_s=1e6, partition=partition(5, held=False)).open()
    finally:
        later.close()


def lease(epoch: int, *, held: bool = True) -> Partition:
    return Partition(number=1, count=2, epoch=epoch, held=lambda: held, serves=lambda: held)


def test_who_is_taken_for_dead_and_lives_stores_nothing_once_the_next_holder_has_read(cluster, postgres):
    """Whatever it believes of its lease: what it does not store, it does not acknowledge."""
    config = HistoryConfig(url=cluster.url_of(postgres.database))
    earlier = PostgresDatabase(config, start_wait_s=0.0, partition=lease(5))
    later = PostgresDatabase(config, start_wait_s=0.0, partition=lease(7))
    rows = step_rows(1)
    earlier.open()
    earlier.write([*job_rows("llm", 1, START_S, START_S), *rows])
    later.open()
    try:
        with pytest.raises(PerfdError):
            earlier.write(rows)
        earlier.close()
        with pytest.raises(PerfdError, match="lease 7"):
            earlier.open()
    finally:
        later.close()
    # Also while nobody has it open, as after a restart of PostgreSQL.
    with pytest.raises(PerfdError, match="Another aggregator has written"):
        earlier.open()


def test_a_holder_whose_lease_is_over_does_not_come_before_the_next_one_that_lost_its_connection(
    cluster, postgres
):
    config = HistoryConfig(url=cluster.url_of(postgres.database))
    later = PostgresDatabase(config, start_wait_s=0.0, partition=lease(7))
    later.open()
    cluster.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%lease 7 %'"
    )
    with pytest.raises(PerfdError, match="lease of this partition has ended"):
        PostgresDatabase(config, start_wait_s=0.0, partition=lease(5, held=False)).open()
    later.close()
    later.open()
    later.close()


def test_a_history_that_another_one_wrote_to_says_so(cluster, postgres):
    history = postgres.store()
    postgres.sql("UPDATE writer SET generation = generation + 1")
    cluster.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'perfd agg%'"
    )
    history.submit(list(job_rows("llm", 1, START_S, START_S)))
    until(lambda: history.superseded)
    assert history.superseded
    history.close(0.0)
