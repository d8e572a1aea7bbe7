from __future__ import annotations

import runpy
from pathlib import Path

import pytest


def test_the_checked_in_code_is_what_the_proto_says() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")
    made = runpy.run_path(str(Path(__file__).parents[2] / "deploy/reference/make_wire_code.py"))
    assert made["drifted"]() == []
