"""What a damaged history file gives back: all rows but those on damaged pages, and none that were deleted."""

import contextlib
import logging
import resource
import shutil
import sqlite3
import struct
from random import Random

import pytest
from aggregator.support import aggregator, values
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.history_repair import fill, repair
from perfd.aggregator.history.database import HistoryUnavailableError
from perfd.aggregator.history.history_rows import RowKind
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.history.sqlite.page_format import MAX_ROW_BYTES, DatabasePages, page_layout
from perfd.aggregator.history.sqlite.salvaged_rows import DamagedFile, salvaged_pages
from perfd.aggregator.history.sqlite.sqlite_tables import SCHEMA, SCHEMA_VERSION, WRITES
from perfd.cli import main
from perfd.config import HistoryConfig
from tests.support.examples import examples

PAGE = 4096
ROWS = 8_061
LEAF_INDEX, INNER_INDEX = 10, 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A history of `ROWS` rows: enough for inner pages in the largest tables."""
    path = tmp_path_factory.mktemp("whole") / "h.sqlite"
    fill(path, 1, one_in=4)
    return path


@pytest.fixture
def path(tmp_path, whole):
    return shutil.copy(whole, tmp_path / "history.sqlite")


def contents(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {(table, *row) for table in tables for row in connection.execute(f"SELECT * FROM {table}")}


def repaired(path):
    database = SqliteDatabase(path)
    database.open()
    database.repair()
    database.close()
    return database


def pages_of(path, table, kind):
    """The numbers of the pages of a table that are of a kind."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    data, found, left = path.read_bytes(), [], [root]
    while left:
        number = left.pop()
        page = data[(number - 1) * PAGE : number * PAGE]
        if page[0] == kind:
            found.append(number)
        if page[0] == INNER_INDEX:
            pointers = struct.unpack_from(f">{int.from_bytes(page[3:5])}H", page, 12)
            left += [int.from_bytes(page[at : at + 4]) for at in (*pointers, 8)]
    return found


def overwritten(path, number, begin, content):
    data = bytearray(path.read_bytes())
    at = (number - 1) * PAGE + begin
    data[at : at + len(content)] = content
    path.write_bytes(data)


def test_a_sound_file_gives_back_every_row(path):
    before = contents(path)
    database = repaired(path)
    assert contents(path) == before
    assert (database.lost_rows, database.unreadable_pages) == (0, 0)


def test_a_page_that_is_overwritten_costs_its_own_rows(path):
    before = contents(path)
    number = pages_of(path, "steps", LEAF_INDEX)[40]
    overwritten(path, number, 0, b"\xff" * PAGE)
    database = repaired(path)
    lost = before - contents(path)
    assert 0 < len(lost) <= PAGE // 40
    assert {table for table, *_ in lost} == {"steps"}
    assert contents(path) <= before
    assert database.unreadable_pages == 1


@pytest.mark.parametrize("table", ["steps", "phases", "alerts"])
def test_what_is_below_an_inner_page_that_is_overwritten_is_kept(path, table):
    before = contents(path)
    inner = pages_of(path, table, INNER_INDEX)
    rows_there = {(page.table, *row) for page in salvaged(path) if page.table == table for row in page.rows}
    overwritten(path, inner[0], 0, bytes(PAGE))
    repaired(path)
    lost = before - contents(path)
    assert 0 < len(lost) < PAGE // 30
    assert lost <= rows_there


def salvaged(path):
    with DamagedFile(path) as file:
        return list(file.salvage())


def test_a_cell_that_cannot_be_read_costs_itself_and_is_counted(path, caplog):
    before = contents(path)
    number = pages_of(path, "steps", LEAF_INDEX)[3]
    # The place of its first row.
    overwritten(path, number, 8, b"\xff\xff")
    with caplog.at_level(logging.ERROR):
        database = repaired(path)
    assert len(before - contents(path)) == 1
    assert database.lost_rows == 1
    assert f"{ROWS - 1:,} rows saved; lost rows: 1 of steps" in caplog.records[0].repair


@pytest.mark.parametrize("kind", [0x0B, 0x08, 0x4A, INNER_INDEX])
def test_a_flipped_kind_of_a_page_costs_nothing(path, kind):
    before = contents(path)
    overwritten(path, pages_of(path, "phases", LEAF_INDEX)[5], 0, bytes([kind]))
    repaired(path)
    assert contents(path) == before


def test_rows_that_were_deleted_stay_deleted(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("DELETE FROM steps WHERE job = 'b'")
        connection.execute("DELETE FROM captures")
        connection.commit()
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 100
    before = contents(path)
    overwritten(path, pages_of(path, "phases", LEAF_INDEX)[5], 0, b"\xff" * PAGE)
    repaired(path)
    assert contents(path) < before


def test_if_the_list_of_free_pages_is_damaged_too_rows_that_were_deleted_stay_deleted(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        # Debian's SQLite overwrites what it deletes, and any SQLite what it deletes row by row.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("DELETE FROM captures")
        connection.commit()
    before = contents(path)
    overwritten(path, 1, 32, struct.pack(">I", 0))
    repaired(path)
    assert contents(path) == before


def test_what_is_in_the_log_only_is_saved_and_a_damaged_frame_costs_itself(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        for step in range(50):
            connection.execute(
                WRITES[RowKind.STEP], ("new", 1, step, 1.5, 1.0, 1, 0, None, None, None, 8, "{}")
            )
            connection.commit()
        before = contents(path)
        killed = path.with_name("killed.sqlite")
        shutil.copy(path, killed)
        shutil.copy(path.with_name(path.name + "-wal"), killed.with_name("killed.sqlite-wal"))
    assert {("new", step) for step in range(50)} <= {row[:2] for row in new_steps(killed)}
    log = killed.with_name("killed.sqlite-wal")
    data = bytearray(log.read_bytes())
    # The tenth of at least fifty frames; SQLite stops there.
    data[32 + 9 * (24 + PAGE) + 2_000] ^= 1
    log.write_bytes(data)
    assert {("new", step) for step in range(50)} <= {row[:2] for row in new_steps(killed)}
    # A bit of the last frame: its transaction was never complete.
    data[-2_000] ^= 1
    log.write_bytes(data)
    assert {row[1] for row in new_steps(killed)} == set(range(49))
    assert len(before) == ROWS + 50


def new_steps(path):
    return [
        (row[0], row[2])
        for page in salvaged(path)
        if page.table == "steps"
        for row in page.rows
        if row[0] == "new"
    ]


def test_rows_of_an_older_perfd_get_the_columns_that_they_lack(tmp_path):
    path = tmp_path / "h.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        older = SCHEMA.replace(", epoch TEXT NOT NULL DEFAULT ''", "").replace(
            "changed_unix_s REAL NOT NULL, body BLOB", "changed_unix_s REAL NOT NULL"
        )
        assert len(older) < len(SCHEMA) - 20
        connection.executescript(f"PRAGMA user_version = 1; {older}")
        connection.execute("INSERT INTO agents VALUES ('a', 'n', 5, 7.0)")
        connection.execute("INSERT INTO alerts VALUES ('j', 'n', '{}', 'firing', NULL, 1.5, 2)")
        connection.execute("INSERT INTO node_facts VALUES ('n', 'gpu', '0', 1.0, '{}')")
        connection.commit()
        connection.executescript(
            "DROP TABLE IF EXISTS node_memory; ALTER TABLE alerts ADD COLUMN body BLOB;"
            "ALTER TABLE agents ADD COLUMN epoch TEXT NOT NULL DEFAULT '';"
            f"{SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};"
        )
        connection.execute("INSERT INTO node_memory VALUES ('n', 'drain', '0', 1.0, '{}')")
        connection.commit()
    before = contents(path)
    assert len(before) == 4
    repaired(path)
    assert contents(path) == before


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE steps SET attempt = 'x' WHERE job = 'a' AND step = 5",
        "UPDATE steps SET losses = x'00' WHERE job = 'a' AND step = 5",
        "UPDATE steps SET losses = CAST(x'ff' AS TEXT) WHERE job = 'a' AND step = 5",
        "UPDATE captures SET requested_unix_s = 'x' WHERE capture_id = 'capture5'",
        "UPDATE node_facts SET kind = 'gpv' WHERE node = 'node5'",
        "PRAGMA ignore_check_constraints = ON; UPDATE retention SET id = 2",
    ],
)
def test_a_row_that_no_aggregator_writes_is_not_taken(path, sql):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)
    database = repaired(path)
    assert len(contents(path)) == ROWS - 1
    assert database.lost_rows == 1


@pytest.mark.parametrize("name", [b"exporter TEXT", b"received_unix_s REAL", b"CREATE TABLE steps"])
def test_a_schema_that_is_not_text_costs_no_row(path, name):
    before = contents(path)
    data = path.read_bytes()
    assert name in data
    path.write_bytes(data.replace(name, b"\xff" + name[1:]))
    database = SqliteDatabase(path)
    database.open()
    database.close()
    assert contents(path) == before


def test_a_pointer_to_another_page_of_the_table_is_noticed_at_the_start(path):
    """SQLite reads one page twice and the other one never, and sees no error."""
    before = contents(path)
    inner = next(
        number
        for number in pages_of(path, "phases", INNER_INDEX)
        if path.read_bytes()[(number - 1) * PAGE + 3 : (number - 1) * PAGE + 5] > b"\0\2"
    )
    page = path.read_bytes()[(inner - 1) * PAGE : inner * PAGE]
    first, second = struct.unpack_from(">2H", page, 12)
    overwritten(path, inner, second, page[first : first + 4])
    database = SqliteDatabase(path)
    database.open()
    database.close()
    assert contents(path) == before


def test_a_repair_that_was_interrupted_is_completed_at_the_next_start(path):
    before = contents(path)
    # The log of the damaged file must not be taken for one of the repaired file.
    path.with_name("history.sqlite.repairing").write_bytes(b"half of it")
    shutil.copy(path, path.with_name("history.sqlite.repaired"))
    path.with_name("history.sqlite-wal").write_bytes(b"a log of the damaged file")
    overwritten(path, 1, 0, b"damaged")
    repaired(path)
    assert contents(path) == before
    assert not list(path.parent.glob("*.repair*"))


def test_a_disk_without_room_for_a_repair_keeps_the_damaged_file(path):
    before = contents(path)
    overwritten(path, 1, 0, b"damaged")
    damaged = path.read_bytes()
    database = SqliteDatabase(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(HistoryUnavailableError):
            database.open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == damaged
    assert not list(path.parent.glob("*.repair*"))
    repaired(path)
    assert contents(path) == before


def test_what_was_lost_is_on_the_page_of_metrics_and_in_doctor(path, capsys):
    number = pages_of(path, "steps", LEAF_INDEX)[3]
    overwritten(path, number, 8, b"\xff\xff")
    overwritten(path, pages_of(path, "phases", LEAF_INDEX)[5], 0, b"\xff" * PAGE)
    with aggregator(history=HistoryConfig(path=str(path))) as running:
        running.tick()
        page = values(running.page())
    assert page["perfd_history_lost_rows_total"] == 1
    assert page["perfd_history_unreadable_pages_total"] == 1
    config = path.with_name("aggregator.yaml")
    config.write_text(f"history: {{path: {path}, max_bytes: 1}}\n")
    main(["doctor", "--aggregator-config", str(config)])
    shown = capsys.readouterr().out
    assert "rows saved; lost rows: 1 of steps; pages that cannot be read: 1" in shown


def test_of_files_with_33_flipped_bits_nearly_all_rows_are_saved():
    result = repair(seed=6, flips=33)
    assert result.rows == 32_013
    assert result.saved + result.changed >= 0.98 * result.rows


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.sampled_from([1, 50, 2_000]), cut=st.booleans())
def test_any_bytes_give_rows_of_the_right_types_or_nothing(whole, seed, flips, cut):
    chance = Random(seed)
    everything = whole.read_bytes()
    begin = chance.randrange(len(everything) // PAGE - 12) * PAGE
    data = bytearray(everything[:PAGE] + everything[begin : begin + 12 * PAGE])
    for _ in range(flips):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if cut:
        del data[chance.randrange(len(data)) :]
    size, usable = page_layout(bytes(data[:100]))
    reader = DatabasePages(
        lambda number: bytes(data[(number - 1) * size : number * size]), len(data) // size, size, usable
    )
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        for page in salvaged_pages(reader):
            for row in page.rows:
                connection.execute(
                    f"INSERT OR IGNORE INTO {page.table} VALUES ({', '.join('?' * len(row))})", row
                )


def test_a_chain_of_pages_that_ends_nowhere_is_read_once():
    """Each of many rows says that it goes on in the same chain, for as much as a row may have."""
    cell = b"\x84\x80\x80\x00" + b"\x03\x81\x01" + bytes(1_800)
    leaf = bytearray(PAGE)
    leaf[0] = LEAF_INDEX
    leaf[3:5] = (200).to_bytes(2, "big")
    for place in range(200):
        leaf[8 + 2 * place : 10 + 2 * place] = (1_000).to_bytes(2, "big")
    leaf[1_000 : 1_000 + len(cell)] = cell
    reads = []

    def read(number):
        reads.append(number)
        return bytes(leaf) if number == 1 else struct.pack(">I", number % 3_000 + 2) + bytes(PAGE - 4)

    reader = DatabasePages(read, 3_000, PAGE, PAGE)
    reader.rows(1)
    assert len(reads) < 3_500
    assert MAX_ROW_BYTES == 64 << 20
