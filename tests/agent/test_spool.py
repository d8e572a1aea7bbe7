from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from perfd.agent.spool.spool import Spool
from perfd.agent.spool.spool_identity import machine_fingerprint
from perfd.errors import SpoolError, WireError
from tests.support.examples import examples

Open = Callable[..., Spool]


@pytest.fixture
def open_spool(tmp_path: Path) -> Iterator[Open]:
    opened: list[Spool] = []

    def opener(*, max_bytes: int = 1 << 20, directory: Path = tmp_path) -> Spool:
        opened.append(Spool(directory, max_bytes=max_bytes))
        return opened[-1]

    yield opener
    for spool in opened:
        spool.close()


def payload(sequence: int, size: int = 100) -> bytes:
    return f"{sequence}:".encode().ljust(size, b".")


def fill(spool: Spool, count: int, *, size: int = 100, records: int = 1) -> None:
    for _ in range(count):
        spool.append(lambda sequence: payload(sequence, size), records=records)


def sequences(spool: Spool) -> list[int]:
    return [batch.sequence for batch in spool.read_after(0, limit=1000)]


def renumbered(_payload: bytes, sequence: int) -> bytes:
    return payload(sequence)


def test_sequences_count_from_one_without_gaps(open_spool: Open) -> None:
    spool = open_spool()
    fill(spool, 3)
    assert sequences(spool) == [1, 2, 3]
    assert [batch.payload for batch in spool.read_after(1, limit=1)] == [payload(2)]


def test_bookmarks_survive_with_the_newest_of_each_collector(open_spool: Open) -> None:
    spool = open_spool()
    spool.append(payload, records=1, bookmarks={"log": "line 1", "nccl": "a"})
    spool.append(payload, records=1, bookmarks={"log": "line 2"})
    spool.acknowledge(2)
    spool.close()
    assert open_spool().bookmarks() == {"log": "line 2", "nccl": "a"}


def test_a_spool_of_a_perfd_without_bookmarks_is_taken_over(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool()
    fill(spool, 2)
    identity = spool.agent_id
    spool.close()
    with sqlite3.connect(tmp_path / "spool.sqlite") as database:
        database.execute("DROP TABLE bookmark")
    database.close()
    taken_over = open_spool()
    assert (taken_over.agent_id, sequences(taken_over)) == (identity, [1, 2])
    assert taken_over.bookmarks() == {}


def test_what_was_acknowledged_is_forgotten(open_spool: Open) -> None:
    spool = open_spool()
    fill(spool, 5)
    spool.acknowledge(3)
    assert sequences(spool) == [4, 5]
    assert (spool.stats().batches, spool.stats().payload_bytes) == (2, 200)
    assert spool.first_sequence == 4


def test_identity_and_sequences_survive_a_restart(open_spool: Open) -> None:
    spool = open_spool()
    fill(spool, 3)
    spool.acknowledge(3)
    agent_id = spool.agent_id
    spool.close()
    again = open_spool()
    assert again.agent_id == agent_id
    assert (again.last_sequence, again.first_sequence) == (3, 4)
    fill(again, 1)
    assert sequences(again) == [4]


def test_the_oldest_batches_go_when_the_spool_is_full_and_are_counted(
    open_spool: Open, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool(max_bytes=1000)
    with caplog.at_level(logging.INFO, logger="perfd"):
        fill(spool, 25, records=7)
    stats = spool.stats()
    assert sequences(spool) == list(range(16, 26))
    assert (stats.batches, stats.payload_bytes) == (10, 1000)
    assert (stats.dropped_batches, stats.dropped_records) == (15, 105)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_file_stays_near_its_bound(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool(max_bytes=1 << 20)
    fill(spool, 500, size=10_000)
    spool.close()
    assert (tmp_path / "spool.sqlite").stat().st_size < 1.5 * (1 << 20)


def test_what_an_encoder_raises_uses_up_no_number(open_spool: Open) -> None:
    spool = open_spool()

    def refuse(_sequence: int) -> bytes:
        raise WireError("too long")

    with pytest.raises(WireError, match="too long"):
        spool.append(refuse, records=1)
    fill(spool, 1)
    assert sequences(spool) == [1]


def test_two_agents_cannot_share_a_spool(open_spool: Open, tmp_path: Path) -> None:
    first = open_spool()
    with pytest.raises(
        SpoolError, match=rf"Another agent \(process \d+\) uses the spool in {tmp_path}: stop it"
    ):
        open_spool()
    first.close()
    open_spool()


@pytest.mark.parametrize("damage", [b"this is no database" * 200, b"SQLite format 3\0" + b"\xff" * 8192])
def test_a_damaged_spool_is_set_aside_and_a_new_identity_begins(
    open_spool: Open, tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool()
    fill(spool, 3)
    agent_id = spool.agent_id
    spool.close()
    (tmp_path / "spool.sqlite").write_bytes(damage)
    with caplog.at_level(logging.INFO, logger="perfd"):
        fresh = open_spool()
    assert fresh.agent_id != agent_id
    assert fresh.last_sequence == 0
    assert (tmp_path / "spool.damaged.sqlite").read_bytes() == damage
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_spool_that_is_damaged_inside_is_set_aside(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool()
    fill(spool, 50, size=5000)
    spool.close()
    path = tmp_path / "spool.sqlite"
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 4] = b"\xa5" * 4096
    path.write_bytes(content)
    assert open_spool().last_sequence == 0


def damage(path: Path, statement: str) -> None:
    database = sqlite3.connect(path / "spool.sqlite")
    database.execute(statement)
    database.commit()
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE batch SET payload = CAST(replace(payload, '2:', '3:') AS BLOB) WHERE sequence = 2",
        "UPDATE batch SET payload = 'text' WHERE sequence = 2",
        "UPDATE batch SET payload = CAST(x'ff' AS TEXT) WHERE sequence = 2",
        "UPDATE batch SET records = -5 WHERE sequence = 2",
        "UPDATE batch SET records = CAST(x'ff' AS TEXT) WHERE sequence = 2",
        "UPDATE batch SET crc32 = crc32 + 1 WHERE sequence = 2",
        "UPDATE batch SET crc32 = CAST(x'ff' AS TEXT) WHERE sequence = 2",
    ],
)
def test_a_damaged_batch_is_skipped_and_counted_and_the_others_are_sent(
    open_spool: Open, tmp_path: Path, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool()
    fill(spool, 3, records=7)
    spool.close()
    damage(tmp_path, statement)
    spool = open_spool()
    with caplog.at_level(logging.WARNING, logger="perfd"):
        assert [batch.sequence for batch in spool.read_after(1, limit=1)] == [3]
        assert sequences(spool) == [1, 3]
    stats = spool.stats()
    assert (stats.batches, stats.dropped_batches) == (2, 1)
    assert 0 <= stats.dropped_records <= 7
    (record,) = caplog.records
    assert record.sequence == 2  # type: ignore[attr-defined]
    spool.acknowledge(3)
    assert spool.stats().batches == 0


def test_a_damaged_batch_at_the_front_is_not_offered_to_the_aggregator(
    open_spool: Open, tmp_path: Path
) -> None:
    spool = open_spool()
    fill(spool, 3)
    spool.close()
    damage(tmp_path, "UPDATE batch SET payload = x'00' WHERE sequence = 1")
    assert open_spool().first_sequence == 2


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM identity",
        "INSERT INTO identity SELECT * FROM identity",
        "UPDATE identity SET agent_id = CAST(x'ff00' AS TEXT)",
        "UPDATE identity SET last_sequence = 'x'",
        "UPDATE identity SET last_sequence = 1",
        "UPDATE identity SET last_sequence = 1 << 60",
        "DROP TABLE batch",
        "DROP TABLE identity",
        "ALTER TABLE batch RENAME COLUMN payload TO paylaod",
        "ALTER TABLE batch DROP COLUMN crc32",
        "ALTER TABLE bookmark RENAME COLUMN text TO txet",
        "INSERT INTO bookmark VALUES ('log', CAST(x'ff' AS TEXT))",
    ],
)
def test_a_spool_whose_tables_cannot_be_what_was_written_is_set_aside(
    open_spool: Open, tmp_path: Path, statement: str
) -> None:
    spool = open_spool()
    fill(spool, 2)
    spool.close()
    damage(tmp_path, statement)
    fresh = open_spool()
    fill(fresh, 1)
    assert sequences(fresh) == [1]
    assert (tmp_path / "spool.damaged.sqlite").exists()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
# This one makes SQLite read the last column, the checksum, as NULL.
@example(place=0.984769752077021, bit=7)
# And this one all sequences, as it is within the text of the schema.
@example(place=0.09164792862919491, bit=0)
def test_one_flipped_bit_loses_at_most_its_batch_or_sets_the_spool_aside(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory, max_bytes=1 << 20)
    fill(spool, 40, size=300)
    spool.close()
    file = directory / "spool.sqlite"
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    file.write_bytes(content)
    spool = Spool(directory, max_bytes=1 << 20)
    fill(spool, 1, size=300)
    found = spool.read_after(0, limit=99)
    assert all(batch.payload == payload(batch.sequence, 300) for batch in found)
    lost = spool.last_sequence - len(found)
    assert lost == spool.stats().dropped_batches
    assert lost <= 1
    spool.acknowledge(spool.last_sequence)
    assert spool.stats().batches == 0
    spool.close()


def test_a_spool_of_a_newer_version_is_left_alone(open_spool: Open, tmp_path: Path) -> None:
    open_spool().close()
    database = sqlite3.connect(tmp_path / "spool.sqlite")
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(SpoolError, match="newer perfd: upgrade this one"):
        open_spool()


def test_a_directory_that_cannot_be_used_is_a_sentence(open_spool: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"cannot be opened.*Set spool\.directory"):
        open_spool(directory=tmp_path / "file")


def test_a_new_identity_keeps_the_batches_of_this_life_under_new_numbers(open_spool: Open) -> None:
    spool = open_spool()
    fill(spool, 3)
    spool.close()
    again = open_spool()
    fill(again, 2)
    before = again.agent_id
    again.renew(renumbered)
    assert again.agent_id != before
    assert [(batch.sequence, batch.payload) for batch in again.read_after(0, limit=9)] == [
        (1, payload(1)),
        (2, payload(2)),
    ]
    agent_id = again.agent_id
    again.close()
    assert open_spool().agent_id == agent_id


def test_a_spool_that_was_copied_to_another_machine_takes_an_identity_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original = Spool(tmp_path / "a", max_bytes=1 << 20, machine="m1")
    fill(original, 3)
    original.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    again = Spool(tmp_path / "a", max_bytes=1 << 20, machine="m1")
    copy = Spool(tmp_path / "b", max_bytes=1 << 20, machine="m2")
    fill(copy, 1)
    assert (again.agent_id, sequences(again)) == (original.agent_id, [1, 2, 3])
    assert copy.agent_id != original.agent_id
    assert (sequences(copy), copy.stats().batches) == ([1], 1)
    assert set(copy.epochs).isdisjoint(filter(None, again.epochs))
    assert "written on another machine" in caplog.text
    copy.close()
    again.close()


def test_each_life_that_an_aggregator_welcomed_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    seen = []
    for welcomed in (False, True, False, True):
        spool = Spool(tmp_path, max_bytes=1 << 20, machine="m1")
        seen.append(spool.epochs)
        if welcomed:
            spool.welcomed()
            assert spool.epochs == (seen[-1][0],) * 2
        spool.close()
    first, second = seen[0][0], seen[2][0]
    assert seen == [(first, ""), (first, ""), (second, first), (second, first)]
    assert first != second


@pytest.mark.parametrize(
    "statement", ["UPDATE life SET machine = 'm2'", "DELETE FROM life", "DROP TABLE life"]
)
def test_a_damaged_note_of_the_machine_does_not_make_a_spool_a_copy(tmp_path: Path, statement: str) -> None:
    spool = Spool(tmp_path, max_bytes=1 << 20, machine="m1")
    fill(spool, 2)
    spool.close()
    damage(tmp_path, statement)
    again = Spool(tmp_path, max_bytes=1 << 20, machine="m1")
    assert (again.agent_id, sequences(again)) == (spool.agent_id, [1, 2])
    again.close()


def test_an_identity_that_another_spool_has_is_renewed_without_a_loss(open_spool: Open) -> None:
    spool = open_spool()
    fill(spool, 3)
    identity = spool.agent_id
    spool.close()
    again = open_spool()
    fill(again, 2)
    again.renew(renumbered, all_batches=True)
    assert sequences(again) == [1, 2, 3, 4, 5]
    assert again.agent_id != identity


@pytest.mark.parametrize(("content", "empty"), [("4f2d\n", False), ("", True), (None, True)])
def test_the_fingerprint_of_a_machine_hides_its_id(tmp_path: Path, content: str | None, empty: bool) -> None:
    file = tmp_path / "machine-id"
    if content is not None:
        file.write_text(content)
    fingerprint = machine_fingerprint(file)
    assert (fingerprint == "") is empty
    assert "4f2d" not in fingerprint


class SpoolMachine(RuleBasedStateMachine):
    """A spool beside a plain list that does the same; restarts come at any time."""

    directory: Path

    @initialize()
    def begin(self) -> None:
        self.place = self.directory / str(len(list(self.directory.iterdir())))
        self.spool = Spool(self.place, max_bytes=1000)
        self.held: list[tuple[int, int]] = []
        self.last = 0
        self.dropped = 0

    @rule(size=st.integers(1, 600))
    def append(self, size: int) -> None:
        self.last += 1
        assert self.spool.append(lambda _: b"x" * size, records=1) == self.last
        while self.held and sum(length for _, length in self.held) + size > 1000:
            self.held.pop(0)
            self.dropped += 1
        self.held.append((self.last, size))

    @rule(behind=st.integers(-2, 10))
    def acknowledge(self, behind: int) -> None:
        self.spool.acknowledge(self.last - behind)
        self.held = [batch for batch in self.held if batch[0] > self.last - behind]

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.spool = Spool(self.place, max_bytes=1000)
        self.dropped = 0

    @invariant()
    def they_agree(self) -> None:
        stats = self.spool.stats()
        found = [(batch.sequence, len(batch.payload)) for batch in self.spool.read_after(0, limit=1000)]
        assert found == self.held
        assert stats.batches == len(self.held)
        assert stats.payload_bytes == sum(length for _, length in self.held)
        assert stats.dropped_batches == self.dropped
        assert self.spool.last_sequence == self.last
        assert self.spool.first_sequence == (self.held[0][0] if self.held else self.last + 1)

    def teardown(self) -> None:
        self.spool.close()


def test_a_spool_always_holds_exactly_what_it_should(tmp_path: Path) -> None:
    SpoolMachine.directory = tmp_path
    machine = SpoolMachine.TestCase
    machine.settings = settings(
        max_examples=25,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    machine("runTest").runTest()
