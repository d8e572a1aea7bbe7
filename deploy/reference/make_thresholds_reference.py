"""Writes the table of thresholds into docs/analysis-thresholds.md from `perfd/data/thresholds.toml`.

    python deploy/reference/make_thresholds_reference.py [--check]

`--check` writes nothing and fails when the table is not what it would be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from perfd.thresholds import Threshold, threshold_rows

PAGE = Path(__file__).parents[2] / "docs" / "analysis-thresholds.md"
_BEGIN = "<!-- Made by `make docs` from perfd/data/thresholds.toml; do not edit. -->\n"
_END = "<!-- End of the table. -->\n"


def with_table(page: str) -> str:
    """The page with its table of thresholds replaced by the current one."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{_table()}{_END}{after}"


def _table() -> str:
    rows = "".join(_row(name, row) for name, row in threshold_rows().items())
    return f"| threshold | value | unit | meaning | source | rules |\n|---|---|---|---|---|---|\n{rows}"


def _row(name: str, row: Threshold) -> str:
    rules = ", ".join(f"`{rule}`" for rule in row.rules)
    return f"| `{name}` | {row.value:,.15g} | {row.unit} | {row.meaning} | {row.source} | {rules} |\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or compare it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the page is out of date")
    args = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    if not args.check:
        PAGE.write_text(with_table(page), encoding="utf-8")
        return 0
    if page != with_table(page):
        sys.stderr.write("The thresholds of docs/analysis-thresholds.md are out of date: run `make docs`.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
