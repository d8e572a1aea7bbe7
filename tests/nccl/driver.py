"""Builds the NCCL plugin and drives it by a program that plays NCCL's part."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from perfd_collectors.nccl.segments.segment import Segment
from perfd_collectors.nccl.segments.segment_discovery import find_segments

PLUGIN = Path(__file__).parents[2] / "collectors" / "nccl_plugin"
DRIVER = Path(__file__).with_name("driver.c")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-pthread", f"-I{PLUGIN}"]
SOURCES = [str(PLUGIN / name) for name in ("plugin.c", "operations.c", "segment.c")]
VERSIONS = [1, 2, 3, 4, 5, 6]

NEEDS_GCC = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="building the plugin needs gcc: apt-get install gcc"
)


@contextmanager
def driving(
    built: Path, directory: Path, version: int, *scenario: object, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [built / "driver", built / "libnccl-profiler-perfd.so", str(version), *map(str, scenario)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PERFD_NCCL_DIR": str(directory), "RANK": "3", "WORLD_SIZE": "8", **environment},
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()


def wait_for(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        if line.strip() == word:
            return lines
        lines.append(line.strip())
    raise AssertionError(f"the driver ended before {word!r} with {process.wait()}")


def go_on(process: subprocess.Popen[str]) -> None:
    """Let the driver begin its next phase."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@contextmanager
def only_segment(directory: Path) -> Iterator[Segment]:
    (path,) = find_segments(directory)
    segment = Segment(path)
    try:
        yield segment
    finally:
        segment.close()
