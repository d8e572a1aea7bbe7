"""How much of a damaged history file its repair saves.

    python -m benchmarks.history_repair [--seeds 11] [--flips 33] [--json]

For each seed: a file of 32,013 rows in which so many bits flip at random places, as a bad disk or bad memory
does it. It is opened as at a start of the aggregator. A row is saved if it is in the repaired file as it was.
A row that came back changed is counted apart: it has a flipped bit and looks sound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.history.sqlite.sqlite_tables import SCHEMA, SCHEMA_VERSION

_PAGE_BYTES = 4096
_SKIPPED_BYTES = 100
"""The header of the file is checked at each start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What became of the rows of one file."""

    seed: int
    rows: int
    saved: int
    changed: int
    """In the repaired file and not in the one before: a bit of them flipped, and they look sound."""
    seconds: float
    pages: int
    flipped_pages: int


def fill(path: Path, seed: int, *, one_in: int = 1) -> None:
    """Write a history of 32,013 rows, of which 2,000 have been deleted before, or of one in so many."""
    chance = Random(seed)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA user_version = {SCHEMA_VERSION}; {SCHEMA}"
        )
        for table, rows in _rows(chance, one_in):
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows[0])
            connection.executemany(
                f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})",
                rows[1:],
            )
        connection.execute("DELETE FROM steps WHERE job = 'expired'")
        connection.commit()


def _rows(chance: Random, one_in: int) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    def steps(job: str, count: int) -> Iterator[tuple[Any, ...]]:
        for step in range(count):
            losses = json.dumps({"loss": chance.random()})
            yield (job, 1, step, 1e9 + step, chance.random(), 1, 0, 1e14, 1e5, None, 512, losses)

    def body(size: int) -> str:
        return json.dumps({"value": chance.random(), "text": "x" * chance.randrange(size)})

    yield (
        "steps",
        [*steps("expired", 2_000 // one_in), *(row for job in "abc" for row in steps(job, 4_000 // one_in))],
    )
    yield (
        "phases",
        [(job, 1, step, 1e9 + step, body(60)) for job in ("a", "b", "c") for step in range(4_000 // one_in)],
    )
    yield (
        "events",
        [("a", 1, f"node{n % 64}", 1e9 + n, "checkpoint", body(400)) for n in range(2_000 // one_in)],
    )
    yield (
        "alerts",
        [
            ("a", "PerfdSlow", f'{{"n": {n}}}', "firing", n, 1e9 + n, 1e9, body(900).encode())
            for n in range(2_000 // one_in)
        ],
    )
    # Some do not fit in a page.
    yield (
        "captures",
        [(f"capture{n}", 1e9 + n, body(9_000 if n % 20 == 0 else 300)) for n in range(2_000 // one_in)],
    )
    yield (
        "node_memory",
        [(f"node{n % 64}", "incident", f"k{n}", 1e9 + n, body(200)) for n in range(1_936 // one_in)],
    )
    yield "node_facts", [(f"node{n}", "gpu", "0", 1e9 + n, body(100)) for n in range(64)]
    yield "jobs", [(job, 1, 1e9, 1e9 + 5, body(500), body(2_000)) for job in ("a", "b", "c")]
    yield "agents", [(f"agent{n}", f"node{n}", n, 1e9 + n, "") for n in range(7)]
    yield "engine", [(1, b"e" * 20_000)]
    yield "exporters", [("wandb", b"w" * 100)]
    yield "retention", [(1, 1e9 + 7)]


def repair(seed: int, flips: int) -> Repair:
    """Flip bits of a file and have it repaired."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        fill(path, seed)
        before = _contents(path)
        data, chance = bytearray(path.read_bytes()), Random(seed)
        places = [chance.randrange(_SKIPPED_BYTES, len(data)) for _ in range(flips)]
        for place in places:
            data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        database = SqliteDatabase(path)
        begin_s = time.monotonic()
        # Whatever flipped, the start notices.
        database.open()
        seconds = time.monotonic() - begin_s
        database.close()
        after = _contents(path)
        return Repair(
            seed=seed,
            rows=len(before),
            saved=len(before & after),
            changed=len(after - before),
            seconds=seconds,
            pages=len(data) // _PAGE_BYTES,
            flipped_pages=len({place // _PAGE_BYTES for place in places}),
        )


def _contents(path: Path) -> set[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {(table, *row) for table in tables for row in connection.execute(f"SELECT * FROM {table}")}


def main() -> int:
    """Print what was saved of each file and of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=11)
    parser.add_argument("--flips", type=int, default=33)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    repairs = [repair(seed, args.flips) for seed in range(1, args.seeds + 1)]
    if args.json:
        print(json.dumps([asdict(one) for one in repairs]))
        return 0
    for one in repairs:
        print(
            f"seed {one.seed}: {one.saved:,} of {one.rows:,} rows saved, {one.changed} changed, "
            f"{one.flipped_pages} of {one.pages:,} pages flipped, {one.seconds:.2f} s"
        )
    saved, rows = sum(one.saved for one in repairs), sum(one.rows for one in repairs)
    print(f"{saved:,} of {rows:,} rows saved ({saved / rows:.2%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
