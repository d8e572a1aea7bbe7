"""One style of numbers: what people read in a terminal is what they read on the page."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfd import formatting

PAGE = Path(__file__).parents[1] / "perfd" / "web" / "static" / "format.js"
JAVASCRIPT = {
    "percent": "percent",
    "signed_percent": "signedPercent",
    "duration": "duration",
    "data_size": "dataSize",
    "bandwidth": "bandwidth",
    "flops": "flops",
    "flops_per_s": "flopsPerS",
    "power": "power",
    "count": "count",
}
EDGES = (
    0, 0.0625, 0.3125, -0.0625, 0.5, 1.5, 2.5, 0.15, 1.005, 5e-9, 9.99e-8, 1e-7, 9.9994e-4, 9.9996e-4, 1e-3,
    9.99994, 9.99996, 10, 599.94, 599.96, 35_999, 36_000, 999, 999.96, 999_949, 999_951, 1e9, 18e9,
    1.979e15, 5e16,
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.62e-5, "36.2 µs"), (0.2979, "297.9 ms"), (9.9999, "9999.9 ms"), (9.99996, "10.0 s"),
        (12.34, "12.3 s"), (599.9, "599.9 s"), (600, "10.0 min"), (750, "12.5 min"), (36_000, "10.0 h"),
        (5e-8, "50.0 ns"),        (0, "0 s"), (None, "-"), (math.nan, "-"),
    ],
)  # fmt: skip
def test_a_duration_has_one_decimal_in_the_unit_of_its_length(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_quantities_have_decimal_units_and_one_decimal() -> None:
    assert formatting.percent(0.28) == "28.0%"
    assert formatting.signed_percent(0.035) == "+3.5%"
    assert formatting.data_size(18e9) == "18.0 GB"
    assert formatting.data_size(999) == "999 B"
    assert formatting.data_size(999_951) == "1.0 MB"
    assert formatting.bandwidth(60e9) == "60.0 GB/s"
    assert formatting.flops_per_s(113.4e12) == "113.4 TFLOP/s"
    assert formatting.flops_per_s(1.979e15) == "1,979.0 TFLOP/s"
    assert formatting.count(55_008.4) == "55,008"
    assert formatting.power(698.2) == "698 W"


def test_unknown_is_a_dash_and_never_a_zero() -> None:
    for name in JAVASCRIPT:
        assert {getattr(formatting, name)(value) for value in (None, math.nan)} == {"-"}


def test_many_ranks_are_named_by_the_first_eight() -> None:
    assert formatting.rank_names([3]) == "rank 3"
    assert formatting.rank_names(range(8)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert formatting.rank_names(range(9)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"


@pytest.mark.skipif(shutil.which("node") is None and not os.environ.get("CI"), reason="needs Node.js")
def test_the_page_writes_numbers_as_the_terminal_does() -> None:
    chance = random.Random(14)
    values = [*EDGES, *(chance.uniform(0, 1) * 10 ** chance.uniform(-9, 12) for _ in range(2000))]
    values += [-value for value in values[::10]]
    calls: list[tuple[str, Any]] = [(name, value) for name in JAVASCRIPT for value in [*values, None]]
    calls += [("rank_names", list(range(size))) for size in (1, 2, 8, 9, 1000)]
    names = JAVASCRIPT | {"rank_names": "rankNames"}
    script = (
        f"import * as page from {json.dumps(PAGE.as_uri())};"
        'import { readFileSync } from "node:fs";'
        'const calls = JSON.parse(readFileSync(0, "utf8"));'
        "console.log(JSON.stringify(calls.map(([name, value]) => page[name](value))));"
    )
    answer = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        input=json.dumps([[names[name], value] for name, value in calls]),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )

    ours = [getattr(formatting, name)(value) for name, value in calls]
    differing = [
        (call, python, page)
        for call, python, page in zip(calls, ours, json.loads(answer.stdout), strict=True)
        if python != page
    ]
    assert differing == []


def test_controls_of_a_document_are_escaped_and_its_layout_stays() -> None:
    kept = "1\u202f000\u00a0ms\t\u00e9\n"
    assert formatting.escaped_controls(kept) == kept
    assert formatting.escaped_controls("\x1b[2J\x00\x7f\x85\u2066") == r"\x1b[2J\x00\x7f\x85\u2066"
