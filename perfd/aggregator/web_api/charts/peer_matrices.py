"""Matrices of ranks: which waits for which, and the bandwidth of the links between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from perfd.analysis.data.robust_stats import highest

_MOST_RANKS = 12
"""In larger jobs, those with the slowest links."""
_FEWEST_ALIKE = 4
"""Groups of the same size, dimension and operation; a median of fewer is not meaningful."""


def peer_matrices(job: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of schema perfd.peers/1 for an entry of perfd.jobs/2 or perfd.summary/2."""
    nccl = job.get("nccl") or {}
    waits, links = nccl.get("peer_waits") or {}, _links(nccl.get("groups") or ())
    shown = {*waits.get("waiting", ()), *waits.get("last", ()), *(links["ranks"] if links else ())}
    nodes = {gpu["rank"]: gpu["node"] for gpu in job.get("gpus") or () if gpu.get("rank") in shown}
    return {
        "source": nccl.get("source"),
        "waits": waits if waits.get("waiting") else None,
        "links": links,
        "nodes": {str(rank): node for rank, node in sorted(nodes.items())},
        "missing_ranks": nccl.get("missing_ranks") or [],
    }


def _links(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """For each pair of ranks, the slowest group that includes both; None if no group can be judged."""
    judged = [
        (group, *found)
        for group, alike in _with_groups_alike(groups)
        if (found := _reference(group, alike)) is not None
    ]
    if not judged:
        return None
    ranks = _slowest([(group["ranks"], group["bus_bytes_per_s"] / expected) for group, expected, _ in judged])
    place = {rank: index for index, rank in enumerate(ranks)}
    ratios: list[list[float | None]] = [[None] * len(ranks) for _ in ranks]
    places: list[list[int | None]] = [[None] * len(ranks) for _ in ranks]
    named: list[dict[str, Any]] = []
    # Slowest first: a later group does not overwrite a cell.
    judged.sort(key=lambda one: one[0]["bus_bytes_per_s"] / one[1])
    for group, expected, reference in judged:
        ratio, filled = group["bus_bytes_per_s"] / expected, False
        members = [place[rank] for rank in group["ranks"] if rank in place]
        for a, b in combinations(members, 2):
            if ratios[a][b] is None:
                ratios[a][b] = ratios[b][a] = ratio
                places[a][b] = places[b][a] = len(named)
                filled = True
        if filled:
            kept = {name: group[name] for name in ("communicator", "group", "operation", "bus_bytes_per_s")}
            named.append(
                {
                    **kept,
                    "rank_count": len(group["ranks"]),
                    "expected_bus_bytes_per_s": expected,
                    "reference": reference,
                }
            )
    return {"ranks": ranks, "bus_ratios": ratios, "group_index": places, "groups": named} if named else None


def _with_groups_alike(
    groups: Sequence[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    alike: defaultdict[tuple[Any, Any, int], list[Mapping[str, Any]]] = defaultdict(list)
    useful = [one for one in groups if one.get("bus_bytes_per_s") and not one.get("latency_bound")]
    for one in useful:
        alike[one.get("group"), one["operation"], len(one["ranks"])].append(one)
    return [(one, alike[one.get("group"), one["operation"], len(one["ranks"])]) for one in useful]


def _reference(group: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> tuple[float, str] | None:
    """The bus bandwidth that a group should have, and its source."""
    if expected := group.get("expected_bus_bytes_per_s"):
        return expected, group.get("expected_source") or "links"
    if len(alike) >= _FEWEST_ALIKE:
        return float(np.median([one["bus_bytes_per_s"] for one in alike])), "median of similar groups"
    return None


def _slowest(groups: Sequence[tuple[Sequence[int], float]]) -> list[int]:
    """Ranks in numerical order; if there are many, those whose groups lack the most bandwidth.

    A rank with a slow link is in several slow groups, its peers in one each.
    """
    members = np.concatenate([np.asarray(ranks, dtype=np.int64) for ranks, _ in groups])
    lacking = np.repeat([max(0.0, 1 - ratio) for _, ratio in groups], [len(ranks) for ranks, _ in groups])
    ranks, place = np.unique(members, return_inverse=True)
    chosen = highest(np.bincount(place, lacking).astype(np.float64), _MOST_RANKS)
    return [int(rank) for rank in np.sort(ranks[chosen])]
