"""All that is known of one node: its GPUs, what its collectors read, and whom its GPUs serve."""

from __future__ import annotations

import dataclasses
import math

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.limits.plausible_values import plausible_gpu, plausible_layout, plausible_placement
from perfd.aggregator.state.node_samples import NodeReadings
from perfd.model import (
    CollectorHealth,
    Event,
    GpuAllocation,
    GpuAllocations,
    GpuInfo,
    RankPlacement,
    ServerInfo,
)

_PLACEMENT_STALE_S = 75.0
"""Chosen: agents repeat placements every 30 s, and one repeat may be lost."""


class NodeState:
    """One node, by the name that is unique among live agents.

    `version` counts up when its set of series may have changed: new readings, other placements.
    """

    __slots__ = (
        "_counters",
        "_limits",
        "_owners",
        "_placed",
        "_uuids",
        "allocations",
        "gpu_infos",
        "hardware_errors",
        "health",
        "left",
        "name",
        "placements",
        "readings",
        "received_s",
        "server_infos",
        "version",
    )

    def __init__(self, name: str, limits: Limits, counters: AggregatorCounters) -> None:
        self.name = name
        self.version = 0
        self.received_s = 0.0
        self.left = False
        """Its agent said goodbye: nothing is known of it any more, and that is all right."""
        self.readings = NodeReadings(limits, counters)
        self.gpu_infos: dict[int, GpuInfo] = {}
        self.allocations: dict[str, GpuAllocation] = {}
        """By the GPU's uuid; what the kubelet said last."""
        self._uuids: dict[str, str] = {}
        """By entity."""
        self.server_infos: dict[str, ServerInfo] = {}
        """By the server's name; the one reported longest ago goes first."""
        self.placements: dict[tuple[str, int], RankPlacement] = {}
        self._owners: tuple[int, dict[str, dict[str, int | None]]] = -1, {}
        """What `placed_owners` returns, with the version that it is of."""
        self._placed: dict[str, tuple[str, float]] = {}
        """By job: which agent last placed one of its ranks here, and when."""
        self.hardware_errors: dict[tuple[str, str, str], int] = {}
        """By job (empty when none is known), GPU and code."""
        self.health: dict[str, CollectorHealth] = {}
        self._limits = limits
        self._counters = counters

    def gpu_info(self, info: GpuInfo) -> bool:
        """Know a GPU; returns whether that is news."""
        info = plausible_gpu(info)
        self._know_uuid(info)
        if self.gpu_infos.get(info.index) == info:
            return False
        if len(self.gpu_infos) >= self._limits.entities_per_scope:
            self._counters.rejected["entities_per_scope"] += 1
            return False
        self.gpu_infos[info.index] = info
        self.version += 1
        return True

    def _know_uuid(self, info: GpuInfo) -> None:
        fits = info.entity in self._uuids or len(self._uuids) < self._limits.entities_per_scope
        if info.uuid is not None and fits and self._uuids.get(info.entity) != info.uuid:
            self._uuids[info.entity] = info.uuid
            self.version += 1

    def allocated(self, allocations: GpuAllocations) -> None:
        """Know which containers have which GPUs now."""
        devices = allocations.devices
        if len(devices) > self._limits.entities_per_scope:
            self._counters.rejected["entities_per_scope"] += 1
            return
        fitting = [device for device in devices if self._fits(device)]
        self._counters.rejected["name_chars"] += len(devices) - len(fitting)
        by_uuid = {device.uuid: device for device in fitting}
        if by_uuid != self.allocations:
            self.allocations = by_uuid
            self.version += 1

    def _fits(self, device: GpuAllocation) -> bool:
        texts = (device.uuid, device.namespace, device.pod, device.container)
        return all(len(text) <= self._limits.name_chars for text in texts)

    def container_of(self, entity: str) -> GpuAllocation | None:
        """The container that has a GPU or MIG slice; None when the kubelet said of none."""
        uuid = self._uuids.get(entity)
        return None if uuid is None else self.allocations.get(uuid)

    def server_info(self, info: ServerInfo) -> bool:
        """Know what a server is; returns whether that is news.

        Beyond the limit, the server reported longest ago is forgotten: ports change from one start to the
        next.
        """
        if len(info.server) > self._limits.name_chars or len(info.engine) > self._limits.name_chars:
            self._counters.rejected["name_chars"] += 1
            return False
        info = self._with_short_names(info)
        known = self.server_infos.pop(info.server, None)
        while len(self.server_infos) >= self._limits.entities_per_scope:
            self._counters.rejected["entities_per_scope"] += 1
            del self.server_infos[next(iter(self.server_infos))]
        self.server_infos[info.server] = info
        return known != info

    def _with_short_names(self, info: ServerInfo) -> ServerInfo:
        """Without the texts that are too long to be the value of a label."""
        return dataclasses.replace(
            info,
            version=self._short(info.version),
            model=self._short(info.model),
            parallel=plausible_layout(info.parallel),
        )

    def _short(self, text: str | None) -> str | None:
        if text is None or len(text) <= self._limits.name_chars:
            return text
        self._counters.rejected["name_chars"] += 1
        return None

    def place(self, placement: RankPlacement, agent_id: str = "", now_s: float = -math.inf) -> bool:
        """Note which of the node's processes and GPUs a rank has; returns whether that is news.

        A GPU serves the job that came last, and those with which it shares the GPU: whose placements the
        same agent still repeats. Placements restored from history, by no agent, share nothing.
        """
        placement = plausible_placement(placement)
        key = (placement.job, placement.rank)
        if placement.rank >= self._limits.ranks_per_job:
            self._counters.rejected["ranks_per_job"] += 1
            return False
        self._placed[placement.job] = agent_id, now_s
        left = {
            known
            for known, other in self.placements.items()
            if other.gpu == placement.gpu is not None
            and other.job != placement.job
            and not self._repeats(other.job, agent_id, now_s)
        }
        if not left and self.placements.get(key) == placement:
            return False
        self.placements = {known: kept for known, kept in self.placements.items() if known not in left}
        self.placements[key] = placement
        self.version += 1
        return True

    def placed_owners(self) -> dict[str, dict[str, int | None]]:
        """By GPU, the jobs that placements name, with the rank of each; not to be changed."""
        version, owners = self._owners
        if version != self.version:
            owners = {}
            for (job, rank), placement in self.placements.items():
                if placement.gpu is not None:
                    owners.setdefault(str(placement.gpu), {})[job] = rank
            self._owners = self.version, owners
        return owners

    def _repeats(self, job: str, agent_id: str, now_s: float) -> bool:
        by, placed_s = self._placed.get(job, ("", -math.inf))
        return by == agent_id and now_s - placed_s <= _PLACEMENT_STALE_S

    def ranks_gone(self, job: str) -> None:
        """No rank of a job is here any more: the GPUs that it shared serve the others alone."""
        self._placed.pop(job, None)
        shared = {one.gpu for one in self.placements.values() if one.job != job} - {None}
        kept = {key: one for key, one in self.placements.items() if one.job != job or one.gpu not in shared}
        if len(kept) < len(self.placements):
            self.placements = kept
            self.version += 1

    def comes_back(self) -> None:
        """Its agent reports; after a goodbye, what was counted before is another agent's story."""
        if self.left:
            self.left = False
            self.version += 1
            self.health.clear()
            self.hardware_errors.clear()

    def forget_job(self, job: str) -> None:
        """Drop the placements of a job that is gone."""
        self._placed.pop(job, None)
        self.placements = {key: kept for key, kept in self.placements.items() if key[0] != job}
        self.version += 1

    def forget_rank(self, job: str, rank: int) -> None:
        """Drop the placement of a rank that is on another node now."""
        if self.placements.pop((job, rank), None) is not None:
            self.version += 1

    def hardware_error(self, event: Event, job: str) -> None:
        """Count an XID, an ECC error or a lost GPU."""
        key = (
            job,
            "" if event.gpu is None else str(event.gpu),
            "" if event.code is None else str(event.code),
        )
        if key not in self.hardware_errors and len(self.hardware_errors) >= self._limits.entities_per_scope:
            self._counters.rejected["entities_per_scope"] += 1
            return
        self.hardware_errors[key] = self.hardware_errors.get(key, 0) + 1

    def collector_health(self, health: CollectorHealth) -> None:
        """Keep the newest verdict on a collector."""
        if health.collector not in self.health:
            if len(self.health) >= self._limits.collectors_per_node:
                self._counters.rejected["collectors_per_node"] += 1
                return
            if len(health.collector) > self._limits.name_chars:
                self._counters.rejected["name_chars"] += 1
                return
            self.version += 1
        self.health[health.collector] = health
