"""What history does not take is kept in NATS by the present holder of a partition only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from jetstream.support import WAIT_S, until

from perfd.aggregator.group.unstored_rows_bucket import SpareBucket
from perfd.config import NatsListenConfig
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.system


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as running:
        yield running


@contextlib.contextmanager
def spare(server: NatsServer) -> Iterator[SpareBucket]:
    one = SpareBucket(NatsListenConfig(servers=[server.address]))
    one.start()
    try:
        # Making the bucket may take longer than a takeover waits.
        assert until(lambda: one._worked, WAIT_S)
        yield one
    finally:
        one.stop()


def keeps(one: SpareBucket, body: bytes | None) -> bool:
    """Whether a value is kept, once it is known that all that was to be written before was tried."""
    kept = threading.Event()
    one.put(1, body, kept.set)
    assert until(lambda: not one._pending, WAIT_S)
    return kept.is_set()


def test_what_an_earlier_holder_writes_is_refused_once_the_next_one_has_read(server: NatsServer) -> None:
    with spare(server) as earlier, spare(server) as later:
        assert earlier.get(1) is None
        assert keeps(earlier, b"a")
        assert keeps(earlier, b"b")
        assert later.get(1) == b"b"
        # It may not know that it is no holder any more, as after a pause.
        assert not keeps(earlier, b"c")
        assert not keeps(earlier, None)
        assert keeps(later, b"d")
        assert earlier.get(1) == b"d"
        assert keeps(earlier, None)
        assert not keeps(later, b"e")
        assert later.get(1) is None


def test_a_write_whose_answer_was_lost_does_not_keep_its_holder_out(server: NatsServer) -> None:
    with spare(server) as holder:
        assert holder.get(1) is None
        assert keeps(holder, b"a")
        reader, revision = holder._values._readers["1"]
        assert keeps(holder, b"b")
        holder._values._readers["1"] = reader, revision
        assert keeps(holder, b"c")
        assert holder.get(1) == b"c"
