"""Which nodes are of a job, and so may describe, end, restart and place it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from perfd.model import JobOrigin

SILENT_AFTER_S = 60.0
"""A node that is silent for this long blocks no other. An agent sends once a second."""
HELD_S = 75.0
"""A rank stays this long on the node that reported it last: placements are repeated twice in this time."""


class JobOwnership:
    """Decides from the first owner on. Times are monotonic.

    Where the scheduler's nodes are known, these are of the job and no others. Otherwise these are: the first
    node that reports it, the first with its steps or its description, and each with a rank that no other node
    has; if the job's cluster, namespace or user is known, the last two must have reported the same before.
    A rank beyond the job's world size does not count. When all nodes of the job are silent, the next one to
    report it is a node of the job.
    """

    def __init__(self, any_job: Collection[str] = ()) -> None:
        self.origin: JobOrigin | None = None
        self.het_groups: dict[str, int] = {}
        """Each node's group in a heterogeneous job."""
        self._any_job = any_job
        self._members: dict[str, None] = {}
        self._reporter: str | None = None
        self._agreeing: set[str] = set()
        """Nodes that are not of the job, and report the same origin of it."""
        self.world_size: int | None = None
        """The job's number of ranks, as its launcher set it in their environment."""
        self._holders: dict[int, tuple[str, float]] = {}

    def claims(self, origin: JobOrigin, node: str) -> None:
        """Take in what a node that is of the job says of its origin."""
        known = self.origin
        self.groups(origin, node)
        origin = replace(origin, het_group=None)
        if origin.nodes and not _listed(node, origin.nodes):
            # The scheduler calls its nodes otherwise than their agents do.
            origin = replace(origin, nodes=())
        if known is None:
            self.origin = origin
            return
        requeued = (origin.scheduler_restarts or 0) > (known.scheduler_restarts or 0)
        if requeued:
            self.het_groups = {one: group for one, group in self.het_groups.items() if one == node}
        self.origin = replace(
            known,
            cluster=known.cluster or origin.cluster,
            namespace=known.namespace or origin.namespace,
            owner=known.owner or origin.owner,
            user=known.user or origin.user,
            account=known.account or origin.account,
            partition=known.partition or origin.partition,
            title=known.title or origin.title,
            array_job=known.array_job or origin.array_job,
            array_task=known.array_task or origin.array_task,
            nodes=origin.nodes if requeued or not known.nodes else known.nodes,
            scheduler_restarts=_newest(known.scheduler_restarts, origin.scheduler_restarts),
            launcher_restarts=(
                origin.launcher_restarts
                if requeued
                else _newest(known.launcher_restarts, origin.launcher_restarts)
            ),
        )

    def groups(self, origin: JobOrigin, node: str) -> None:
        """Note which group of a heterogeneous job a node belongs to."""
        if origin.het_group is not None:
            self.het_groups[node] = origin.het_group

    def begins_anew(self, origin: JobOrigin) -> bool:
        """Whether an origin is that of a later start of the job than the one that is known."""
        known = self.origin
        if known is None:
            return False
        before = (known.scheduler_restarts or 0, known.launcher_restarts or 0)
        requeued = (origin.scheduler_restarts or 0) > before[0]
        known_before = known.launcher_restarts is not None
        return requeued or (known_before and (origin.launcher_restarts or 0) > before[1])

    def excludes(self, node: str, namespace: str | None) -> bool:
        """Whether a node is surely none of the job's; `namespace` is that of its credential."""
        origin = self.origin
        if origin is None or node in self._any_job:
            return False
        if namespace is not None and origin.namespace and namespace != origin.namespace:
            return True
        return bool(origin.nodes) and not _listed(node, origin.nodes)

    def admits(self, node: str) -> bool:
        """Whether a node is of the job."""
        origin = self.origin
        listed = origin is not None and bool(origin.nodes) and _listed(node, origin.nodes)
        return listed or node in self._members or node in self._any_job

    def silent(self, received_s: Mapping[str, float], now_s: float) -> bool:
        """Whether all nodes of the job are silent for a while; `received_s` has when each last sent."""
        silent_s = (now_s - received_s.get(node, -math.inf) for node in self._members)
        return all(one > SILENT_AFTER_S for one in silent_s)

    def joins(self, node: str) -> None:
        """A node is of the job from now on."""
        self._members[node] = None

    def vacate(self) -> None:
        """The job is over, and the next start of it may be anywhere."""
        if self.origin is not None:
            self.origin = replace(self.origin, nodes=())
        self.het_groups.clear()
        self._members.clear()
        self._holders.clear()
        self._agreeing.clear()
        self.world_size = None

    def agrees(self, node: str) -> None:
        """A node that is not of the job reported the same origin; a separate rank then makes it join."""
        self._agreeing.add(node)

    def reports(self, node: str) -> None:
        """A node has the job's steps or its description; the first one that has is of the job."""
        if self._reporter is None and self._may_join(node):
            self._reporter = node
            self._members[node] = None

    def places(self, node: str, rank: int, now_s: float, world_size: int | None = None) -> bool:
        """Whether a rank may be on a node now: no other one has reported it for a while."""
        holder, held_s = self._holders.get(rank, (node, now_s))
        if holder != node and now_s - held_s <= HELD_S:
            return False
        own = self.admits(node)
        beyond = self.world_size is not None and rank >= self.world_size
        if not own and (beyond or not self._may_join(node)):
            return False
        if own or self.world_size is None:
            self.world_size = world_size or self.world_size
        self._holders[rank] = node, now_s
        self._members[node] = None
        return True

    def _may_join(self, node: str) -> bool:
        """Whether a node can be of the job: the first one, and, if its owner is known, any that agrees."""
        origin = self.origin
        owned = origin is not None and any((origin.cluster, origin.namespace, origin.owner))
        return not self._members or not owned or node in self._agreeing or self.admits(node)

    def holder(self, rank: int) -> str | None:
        """The node that has a rank, or had it last."""
        held = self._holders.get(rank)
        return None if held is None else held[0]

    def leaves(self, node: str) -> None:
        """The agent of a node said goodbye."""
        self.ranks_gone(node)
        self._members.pop(node, None)

    def ranks_gone(self, node: str) -> None:
        """No rank of the job is on a node any more."""
        self._holders = {rank: held for rank, held in self._holders.items() if held[0] != node}


def _listed(node: str, nodes: Collection[str]) -> bool:
    """Whether a node is among them, in full or up to the first dot."""
    # Of two live agents with one name, the second one is called NODE~ID.
    name = node.partition("~")[0]
    return name in nodes or name.partition(".")[0] in {one.partition(".")[0] for one in nodes}


def _newest(known: int | None, other: int | None) -> int | None:
    return other if known is None else max(known, other or 0)
