"""Writes dashboards/*.json; with `--check` says which of them are not what the code makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from perfd_dashboards import aggregator, fleet, job, node, pods, serving
from perfd_dashboards.marks import marks

FOLDER = Path(__file__).parents[1] / "dashboards"
DASHBOARDS: Mapping[str, Callable[[], Dashboard]] = {
    "aggregator": aggregator.dashboard,
    "fleet": fleet.dashboard,
    "job": job.dashboard,
    "node": node.dashboard,
    "pods": pods.dashboard,
    "serving": serving.dashboard,
}


def main() -> int:
    """0, or with `--check` 1 when a file is not what the code makes."""
    made = {FOLDER / f"{name}.json": text(name, make) for name, make in DASHBOARDS.items()}
    if sys.argv[1:] != ["--check"]:
        for path, content in made.items():
            path.write_text(content, encoding="utf-8")
        return 0
    stale = [
        path
        for path in sorted({*made, *FOLDER.glob("*.json")})
        if not path.exists() or path.read_text(encoding="utf-8") != made.get(path)
    ]
    for path in stale:
        sys.stderr.write(f"{path} is not what the code makes: run `make dashboards`.\n")
    return 1 if stale else 0


def text(name: str, make: Callable[[], Dashboard]) -> str:
    """The JSON of one dashboard, as it is checked in."""
    plain = _without_nulls(json.loads(JSONEncoder().encode(make().build())))
    for variable in plain["templating"]["list"]:
        # The SDK writes the keys of an interval's variable for every kind.
        for key in ("auto", "auto_count", "auto_min"):
            variable.pop(key, None)
    for number, panel in enumerate(plain["panels"], start=1):
        panel["id"] = number
    if name == "job":
        plain["annotations"] = {"list": marks()}
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def _without_nulls(value: Any) -> Any:  # noqa: ANN401  JSON.
    """Grafana's own types know no null, except for the threshold from which on everything is."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {
            key: _without_nulls(item)
            for key, item in value.items()
            if item is not None or (key == "value" and "color" in value)
        }
    return value


if __name__ == "__main__":
    sys.exit(main())
