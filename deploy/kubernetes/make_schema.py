"""Writes what the chart's schema says of perfd's own configuration, from the types that perfd reads it with.

    python deploy/kubernetes/make_schema.py [--check]

Everything else in values.schema.json is written by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from perfd.config import AgentConfig, AggregatorConfig

SCHEMA = Path(__file__).parent / "perfd" / "values.schema.json"


def definitions() -> dict[str, Any]:
    """The configuration of both roles, each type under its own name."""
    _, found = msgspec.json.schema_components([AgentConfig, AggregatorConfig], ref_template="#/$defs/{name}")
    return dict(sorted(found.items()))


def main(arguments: list[str]) -> int:
    """Write the file, or say that it would change."""
    before = SCHEMA.read_text(encoding="utf-8")
    after = json.dumps({**json.loads(before), "$defs": definitions()}, indent=2) + "\n"
    if arguments == ["--check"]:
        if before != after:
            print(f"{SCHEMA.name} is stale: run {Path(__file__).name}.")  # noqa: T201  (a script)
        return int(before != after)
    SCHEMA.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
