"""The captures of a real job, where they are there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SharedTraces:
    """Where the captures are."""

    kineto: list[Path]
    nsys: Path
    samples: Path


@pytest.fixture
def shared() -> SharedTraces:
    """The captures under PERFD_SHARED; the test is skipped without them."""
    named = os.environ.get("PERFD_SHARED")
    if not named or not Path(named, "traces").is_dir():
        pytest.skip("PERFD_SHARED does not name the directory with the captures of a real job")
    traces = Path(named, "traces")
    return SharedTraces(
        kineto=sorted((traces / "kineto-pp4_few").glob("*.json.gz")),
        nsys=traces / "nsys-pp2dp2.sqlite.gz",
        samples=Path(named, "samples"),
    )
