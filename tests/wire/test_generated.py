from __future__ import annotations

import pytest

from perfd.wire import regenerate


def test_the_checked_in_code_is_what_the_proto_says() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")
    assert regenerate.drifted() == []
