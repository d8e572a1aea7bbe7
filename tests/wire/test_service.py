"""What both ends of a stream agree on."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc._cython import cygrpc

from perfd.wire.service import CLIENT_OPTIONS, SERVER_OPTIONS


@pytest.mark.parametrize("name", sorted({name for name, _ in (*CLIENT_OPTIONS, *SERVER_OPTIONS)}))
def test_an_option_is_one_that_grpc_knows(name: str) -> None:
    # A name that it does not know is ignored without a word.
    known = name.encode() + b"\0" in Path(cygrpc.__file__).read_bytes()
    assert known
