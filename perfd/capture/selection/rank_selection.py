"""Selects the ranks of a capture: by list, role, alert or slowness, with a peer for comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import median

from perfd.capture.expected_job_end import Pace
from perfd.capture.selection.rank_conditions import PLACE, ROLE, coordinate, in_pod, parse_conditions
from perfd.errors import CaptureError
from perfd.model import CaptureTool, ParallelLayout

_SLOWEST = re.compile(r"slowest:(\d{1,4})")
_MOST_NAMED = 8
"""Known names in an error; the others are counted."""
_LABELED_ROLES = ("stage", "tp", "dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank in the aggregator's current state."""

    rank: int
    node: str
    gpu: int | None = None
    pod_uid: str | None = None
    """The UID of its Kubernetes pod."""
    pod_name: str | None = None
    compute_s: float | None = None
    """This rank's compute time per step, without waiting for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The state of a job for decisions about captures."""

    job: str
    nodes: Sequence[str]
    """Nodes of the job whose agents are connected."""
    ranks: Sequence[RankView] = ()
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    culprits: Sequence[int] = ()
    """The culprits of the analysis."""
    server: bool = False
    """Whether it is a serving engine, which is captured as a whole."""
    tool: CaptureTool | None = CaptureTool.NSYS
    """The tool if a profile names none; None if the server's engine is unknown."""
    pace: Pace = field(default_factory=Pace)
    """The sources of its end."""
    object_folder: str = ""
    """Where its captures are in object storage, below the configured URL."""

    @property
    def kind(self) -> str:
        """Its name in a sentence."""
        return "server" if self.server else "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSelection:
    """Ranks by node; an empty tuple means every rank of the job there."""

    by_node: Mapping[str, tuple[int, ...]]
    refused: Mapping[int, str] = field(default_factory=dict)
    """Requested ranks that cannot be reached, with the reason."""


def select(selector: str, view: JobView, labels: Mapping[str, str] | None = None) -> RankSelection:
    """The ranks of a selector, by node.

    Terms joined by `+` are united. A term is `all`, a list (`0,3,8-11`), conditions that must all hold
    (`stage=last,tp=0`, `node=n7,gpu=3`, `pod=train-*`), `alert` (what the alert's labels name),
    `slowest:N`, `culprits`, or `peer` (for each rank of the other terms, a healthy one of the same stage
    and role).
    A server is captured as a whole. Raises `CaptureError` with the reason if the selector is wrong or
    matches nothing.
    """
    if view.server:
        return _server(view)
    terms = [term.strip() for term in selector.split("+")]
    wants_peer = "peer" in terms
    terms = [term for term in terms if term != "peer"]
    if not terms:
        raise CaptureError("`peer` compares with other ranks; name those too, for example alert+peer.")
    if not view.ranks:
        return _without_placements(terms, view, labels or {})
    chosen: set[int] = set()
    for term in terms:
        chosen.update(_term(term, view, labels or {}))
    if wants_peer:
        chosen.update(_peers(chosen, view))
    if not chosen:
        raise CaptureError(f"No rank of job {view.job} matches {selector!r}{_hint(terms, view)}.")
    return _place(chosen, view)


def slow_rank_of(labels: Mapping[str, str]) -> int | None:
    """The rank that an alert's labels name, about which its captures answer; None where they name none."""
    rank = labels.get("rank", "")
    return int(rank) if rank.isdecimal() else None


def by_hand(selector: str, labels: Mapping[str, str]) -> str:
    """The same selection without an alert: `alert` becomes what its labels name, by place, not by pod."""
    return "+".join(
        _named_by(labels) if term == "alert" else term for term in map(str.strip, selector.split("+"))
    )


def _named_by(labels: Mapping[str, str]) -> str:
    if (rank := slow_rank_of(labels)) is not None:
        return str(rank)
    names = ("node", "gpu") if labels.get("gpu") else ("node", *_LABELED_ROLES)
    parts = [f"{name}={labels[name]}" for name in names if labels.get(name)]
    return ",".join(part for part in parts if PLACE.fullmatch(part) or ROLE.fullmatch(part)) or "all"


def check_selector(selector: str) -> None:
    """Raise `CaptureError` if a selector is invalid for any job; for configurations."""
    for term in (part.strip() for part in selector.split("+")):
        if term not in ("all", "alert", "culprits", "peer") and not _SLOWEST.fullmatch(term):
            parse_conditions(term)


def _hint(terms: Sequence[str], view: JobView) -> str:
    """What is available, or why nothing matches."""
    if "culprits" in terms:
        return "; the analysis currently names no culprits"
    for place, names in (
        ("node=", {rank.node for rank in view.ranks}),
        ("pod=", {rank.pod_name or rank.pod_uid for rank in view.ranks if rank.pod_name or rank.pod_uid}),
    ):
        if any(place in term for term in terms):
            listed = sorted(str(name) for name in names)
            more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
            what = f"{', '.join(listed[:_MOST_NAMED])}{more}" if listed else "no known one"
            return f"; its ranks are in {what}" if place == "pod=" else f"; its ranks are on {what}"
    return ""


def _server(view: JobView) -> RankSelection:
    if not view.nodes:
        raise CaptureError(f"The agent of the node of server {view.job} is not connected.")
    return RankSelection(by_node=dict.fromkeys(view.nodes, ()))


def _term(term: str, view: JobView, labels: Mapping[str, str]) -> set[int]:
    everything = {rank.rank for rank in view.ranks}
    if term == "all":
        return everything
    if term == "alert":
        return _from_labels(view, labels)
    if term == "culprits":
        return set(view.culprits)
    if slowest := _SLOWEST.fullmatch(term):
        return _slowest(int(slowest[1]), view)
    conditions = parse_conditions(term)
    if isinstance(conditions, set):
        return conditions
    return {rank.rank for rank in view.ranks if all(condition(rank, view.layout) for condition in conditions)}


def _from_labels(view: JobView, labels: Mapping[str, str]) -> set[int]:
    """The narrowest match of an alert's labels: a rank, roles, a GPU, a node, otherwise the job."""
    if labels.get("rank", "").isdecimal():
        return {int(labels["rank"])}
    if pod := {rank.rank for rank in view.ranks if rank.pod_uid and labels.get("uid") == rank.pod_uid}:
        return pod
    near = _near(view, labels)
    if gpu := labels.get("gpu", ""):
        return {rank.rank for rank in near if str(rank.gpu) == gpu}
    roles = [(name, labels[name]) for name in _LABELED_ROLES if labels.get(name, "").isdecimal()]
    return {
        rank.rank
        for rank in near
        if all(coordinate(rank.rank, name, view.layout) == int(value) for name, value in roles)
    }


def _near(view: JobView, labels: Mapping[str, str]) -> Sequence[RankView]:
    """The ranks on the node and in the pod of the labels; all without a node, or with another job's pod."""
    node, pod = labels.get("node", ""), labels.get("pod", "")
    on_node = [rank for rank in view.ranks if node in ("", rank.node)]
    return [rank for rank in on_node if in_pod(rank, pod)] or on_node


def _slowest(count: int, view: JobView) -> set[int]:
    timed = [(rank.compute_s, rank.rank) for rank in view.ranks if rank.compute_s is not None]
    if not timed:
        raise CaptureError(
            f"The slowest ranks of job {view.job} are unknown: neither its log by rank, nor NCCL's plugin."
        )
    return {rank for _, rank in sorted(timed, key=lambda pair: (-pair[0], pair[1]))[:count]}


def _peers(chosen: set[int], view: JobView) -> set[int]:
    """For each chosen rank the most typical other one of its stage, tp and cp index, if there is one."""
    blamed = chosen | set(view.culprits)
    times = {rank.rank: rank.compute_s for rank in view.ranks}
    peers: set[int] = set()
    for rank in sorted(chosen):
        role = _role(rank, view.layout)
        alike = [
            other for other in sorted(times) if other not in blamed and _role(other, view.layout) == role
        ]
        if not alike:
            continue
        known = [time for other in alike if (time := times[other]) is not None]
        middle = median(known) if known else 0.0
        peers.add(min(alike, key=lambda other: (abs((times[other] or 0.0) - middle), other)))
    return peers


def _role(rank: int, layout: ParallelLayout) -> tuple[int, ...]:
    """A rank's position in every dimension except data parallelism; unknown sizes count as 1."""
    return tuple(
        coordinate(rank, dimension, layout)
        for dimension, size in (("stage", layout.pp), ("tp", layout.tp), ("cp", layout.cp))
        if size and layout.world_size
    )


def _place(chosen: set[int], view: JobView) -> RankSelection:
    nodes = {rank.rank: rank.node for rank in view.ranks}
    by_node: dict[str, list[int]] = {}
    refused: dict[int, str] = {}
    for rank in sorted(chosen):
        node = nodes.get(rank)
        if node is None:
            refused[rank] = f"Job {view.job} has no rank {rank}, or its node is unknown."
        elif node not in view.nodes:
            refused[rank] = f"The agent of node {node} is not connected."
        else:
            by_node.setdefault(node, []).append(rank)
    return RankSelection(by_node={node: tuple(ranks) for node, ranks in by_node.items()}, refused=refused)


def _without_placements(terms: Sequence[str], view: JobView, labels: Mapping[str, str]) -> RankSelection:
    """If the placement of ranks is unknown: whole nodes, or named ranks if their node is clear."""
    if not view.nodes:
        raise CaptureError(f"No agent of job {view.job} is connected.")
    named = [labels["node"]] if labels.get("node") in view.nodes else list(view.nodes)
    rank = labels.get("rank", "")
    whole: set[str] = set()
    ranks: dict[str, set[int]] = {}
    for term in terms:
        if term == "all":
            whole.update(view.nodes)
        elif term == "alert" and rank.isdecimal() and len(named) == 1:
            ranks.setdefault(named[0], set()).add(int(rank))
        elif term == "alert":
            whole.update(named)
        elif on := _nodes_named(term, view):
            whole.update(on)
        elif (listed := _listed(term, view)) and len(view.nodes) == 1:
            ranks.setdefault(view.nodes[0], set()).update(listed)
        else:
            raise CaptureError(
                f"The nodes of the ranks of job {view.job} are unknown; choose `all` or node=NAME."
            )
    return RankSelection(
        by_node={
            node: () if node in whole else tuple(sorted(ranks[node]))
            for node in view.nodes
            if node in whole or node in ranks
        }
    )


def _nodes_named(term: str, view: JobView) -> list[str]:
    """The nodes that a term names alone; a sidecar agent has the pod's name."""
    place = PLACE.fullmatch(term)
    wanted = place[2] if place and place[1] != "gpu" else ""
    return [node for node in view.nodes if fnmatchcase(node, wanted)]


def _listed(term: str, view: JobView) -> set[int]:
    """The ranks that a term names by number; empty for the other kinds of terms."""
    if term == "culprits":
        return set(view.culprits)
    ranks = None if _SLOWEST.fullmatch(term) else parse_conditions(term)
    return ranks if isinstance(ranks, set) else set()
