"""Child processes for tests of the spool: one to be killed, one whose disk is full."""

from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path

from perfd.agent.spool.spool import Spool


def payload(sequence: int) -> bytes:
    return f"{sequence}:".encode() * 100


def large_payload(sequence: int) -> bytes:
    return payload(sequence).ljust(50_000, b".")


def append_until_killed(directory: Path) -> None:
    """Append and acknowledge for ever; each line of output is a sequence that `append` returned."""
    spool = Spool(directory, max_bytes=100_000)
    while True:
        sequence = spool.append(payload, records=1)
        if sequence % 7 == 0:
            spool.acknowledge(sequence - 40)
        sys.stdout.write(f"{sequence}\n")
        sys.stdout.flush()


def fill_a_full_disk(directory: Path) -> None:
    """Append far beyond what the file may grow to, then lift the limit; prints what happened."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s", level=logging.INFO)
    spool = Spool(directory, max_bytes=1 << 30)
    spool.append(payload, records=1)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    for _ in range(500):
        spool.append(large_payload, records=3)
    full = spool.stats()
    readable = [batch.sequence for batch in spool.read_after(0, limit=1 << 30)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    spool.append(payload, records=1)
    recovered = spool.stats()
    sys.stdout.write(
        json.dumps(
            {
                "last": spool.last_sequence,
                "readable": len(readable),
                "newest": readable[-1],
                "dropped_batches": full.dropped_batches,
                "dropped_records": full.dropped_records,
                "writable": full.writable,
                "writable_again": recovered.writable,
                "dropped_again": recovered.dropped_batches,
            }
        )
    )
    spool.close()


def start_on_a_full_disk(directory: Path) -> None:
    """Open a spool where no file may grow; prints what still works."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s", level=logging.INFO)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    spool = Spool(directory, max_bytes=1 << 30)
    spool.append(payload, records=1)
    full = spool.stats().writable
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for _ in range(9):
        spool.append(payload, records=1)
    found = {
        "agent_id": spool.agent_id,
        "writable": [full, spool.stats().writable],
        "readable": [batch.sequence for batch in spool.read_after(0, limit=99)],
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
