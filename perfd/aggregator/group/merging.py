"""Merges the answers of all partitions into one document: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfd.aggregator.web_api import fleet_page

Document = Mapping[str, Any]
_KEYS = {"agents": "agent_id", "nodes": "node", "servers": "name"}
"""Keys that identify an entry. Several partitions list a node that runs jobs of each."""
_ORDERS: Mapping[str, tuple[Callable[[Document], Any], bool]] = {
    "alerts": (lambda one: one.get("fired_at_unix_s") or 0.0, True),
    "captures": (lambda one: one.get("requested_unix_s") or 0.0, False),
}


def merged(name: str, documents: Sequence[Document], missing: Sequence[int]) -> dict[str, Any]:
    """The merged documents; `name` is the key of their lists, `missing` the partitions without an answer."""
    rows = [row for document in documents for row in document[name]]
    if key := _KEYS.get(name):
        # Keep the entry with the newest message, which is last.
        rows.sort(key=lambda row: row.get("silent_s") or 0.0, reverse=True)
        rows = list({row.get(key): row for row in rows}.values())
        rows.sort(key=lambda row: str(row.get("node") or row.get(key)))
    elif name in _ORDERS:
        order, newest_first = _ORDERS[name]
        rows.sort(key=order, reverse=newest_first)
    counts = {"count": sum(one["count"] for one in documents)} if name == "alerts" else {}
    first = documents[0] if documents else {}
    return {**first, name: rows, **counts, **without(missing)}


def merged_fleet(
    documents: Sequence[Document], query: Mapping[str, str], missing: Sequence[int]
) -> dict[str, Any]:
    """The page of all jobs that a query asks for; raises `PerfdError` if the query is wrong."""

    def sums(part: str, keys: Sequence[str]) -> dict[str, int]:
        return {key: sum(document[part][key] for document in documents) for key in keys}

    fleet = {
        "jobs": [row for document in documents for row in document["jobs"]],
        "alerts": [alert for document in documents for alert in document["alerts"]],
        "agents": sums("agents", ("count", "connected")),
        "servers": sums("servers", ("count", "up")),
    }
    return {"schema": "perfd.fleet/2", **fleet_page(fleet, query), **without(missing)}


def without(missing: Sequence[int]) -> dict[str, Any]:
    """The `missing_partitions` of a list; empty if all partitions answered."""
    return {"missing_partitions": sorted(missing)} if missing else {}


def missing_sentence(missing: Sequence[int]) -> str | None:
    """The same as a sentence; None if all partitions answered."""
    if not missing:
        return None
    names = ", ".join(map(str, sorted(missing)))
    return f"No aggregator holds partitions {names} now: their jobs are missing from lists."
