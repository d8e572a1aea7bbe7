"""All series of a round, in groups: what changes its set of series in one does not disturb the others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry

from perfd.aggregator.failures import Part
from perfd.aggregator.jobs import JobRegistry
from perfd.aggregator.live_facts import LiveFacts
from perfd.aggregator.series.job_series import derived_from, derived_values, identity_values
from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.series.self_metrics import (
    agent_keys,
    agent_values,
    collector_keys,
    collector_values,
    error_values,
    reported_agents,
    server_values,
)
from perfd.aggregator.series.series_blocks import Block, Blocks
from perfd.aggregator.state import AggregatorState, Derived, NodeState
from perfd.aggregator.state.gpu_owners import exported_gpu_owners, gpu_labels
from perfd.aggregator.summary_turns import NODES_IN_EACH_ROUND
from perfd.analysis.data.job_data import Floats
from perfd.metrics.catalog import Value
from perfd.metrics.exposition import entity_labels
from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.model import Scope
from perfd.rules.series_store import SeriesStore

BlockName = tuple[str, ...]
_OTHERWISE_EVERY_S = 5.0
"""Of more nodes, those series that no rule reads in between: as often as the shipped rules about nodes."""
SELF = "self"
"""The group of what the aggregator exports of itself."""
_GROUPS = (SELF, "agents", "jobs", "nodes")
_EARLY_S = 0.25
"""A timer that jitters would skip rounds otherwise."""


class SeriesFrames:
    """Makes the frames `jobs` (derived), `nodes` (raw), `agents` and `self`. One thread at a time.

    Each frame goes to the `store` that the rules read.
    """

    def __init__(
        self,
        state: AggregatorState,
        names: MetricNames,
        registry: CollectorRegistry,
        store: SeriesStore,
        *,
        forgotten_after_s: float,
    ) -> None:
        self._state = state
        self._names = names
        self._registry = registry
        self._forgotten_after_s = forgotten_after_s
        self._store = store
        self._made: Mapping[str, SeriesFrame] = {}
        self._fleet_made_s = -math.inf
        self._left_out = 0
        """Series of nodes beyond the limit, of this round."""
        self.newest: Mapping[str, SeriesFrame] = {}
        """All series of the newest round by group, those of rules too; no name is in two groups."""
        self._derived: dict[str, tuple[Derived, tuple[object, ...], Block]] = {}
        """By job, what its derived series were made of, and these."""
        self._blocks = Blocks(label_chars=state.fleet.limits.name_chars)

    def make(
        self,
        now_unix_s: float,
        now_s: float,
        derived: Mapping[str, Derived],
        facts: Mapping[str, LiveFacts],
        *,
        all_read: bool = True,
    ) -> None:
        """Make the frames of one instant, for the rules; the page shows them once they are published.

        A job or node whose series cannot be made is left out. Where not `all_read`, those of the nodes and
        agents of a large fleet, and the aggregator's own, may be some seconds old.
        """
        whole = all_read or self._fleet_due(now_s)
        left = self._state.fleet.limits.series
        jobs = self._jobs(derived, facts)
        groups = {"jobs": jobs}
        if whole:
            self._fleet_made_s = now_s
            # The aggregator's own series come first: they count what is left out.
            groups = {SELF: self._self(), "agents": self._agents(now_s), "jobs": jobs}
            groups["nodes"] = self._nodes(now_s, left - _count(groups))
        others = 0 if whole else sum(len(self._made[group].keys) for group in (SELF, "agents"))
        groups = self._bounded(groups, left - others)
        if whole:
            self._blocks.keep(name for blocks in groups.values() for name in blocks)
        new = {group: self._frame(group, now_unix_s, blocks) for group, blocks in groups.items()}
        self._made = {group: new[group] if group in new else self._made[group] for group in _GROUPS}
        self._append(new)

    def publish(self, recorded: SeriesFrame | None) -> None:
        """Show what was made last, with what the rules recorded of it."""
        self.newest = {**self._made, "rules": recorded} if recorded is not None else self._made

    def _fleet_due(self, now_s: float) -> bool:
        with self._state.lock:
            few = len(self._state.fleet.nodes) <= NODES_IN_EACH_ROUND
        return few or not 0 <= now_s - self._fleet_made_s < _OTHERWISE_EVERY_S - _EARLY_S

    def _append(self, made: Mapping[str, SeriesFrame]) -> None:
        started_s = time.perf_counter()
        with self._state.failures.contained(Part.RULES):
            for group, frame in made.items():
                self._store.append(frame, source=group)
        with self._state.lock:
            self._state.counters.rule_evaluation_s += time.perf_counter() - started_s

    def _frame(self, group: str, now_unix_s: float, blocks: Mapping[BlockName, Block]) -> SeriesFrame:
        keys = self._blocks.joined(group, [block.keys for block in blocks.values()])
        return SeriesFrame(now_unix_s, keys, _joined([block.values for block in blocks.values()]))

    def _bounded(
        self, groups: Mapping[str, dict[BlockName, Block]], left: int
    ) -> dict[str, dict[BlockName, Block]]:
        """The groups without the blocks that are beyond the series that are `left`, which are counted."""
        refused, self._left_out = self._left_out, 0
        bounded: dict[str, dict[BlockName, Block]] = {}
        for group, blocks in groups.items():
            bounded[group] = {}
            for name, block in blocks.items():
                if len(block.keys) > left:
                    refused += len(block.keys)
                    continue
                left -= len(block.keys)
                bounded[group][name] = block
        with self._state.lock:
            rejected = self._state.counters.rejected
            rejected["series"] += refused
            rejected["name_chars"] += self._blocks.refused
        self._blocks.refused = 0
        return bounded

    def _jobs(self, derived: Mapping[str, Derived], facts: Mapping[str, LiveFacts]) -> dict[BlockName, Block]:
        blocks: dict[BlockName, Block] = {}
        for name, found in derived.items():
            if not facts[name].exported:
                continue
            with self._state.failures.contained(Part.SERIES, job=name):
                identity = identity_values(found.data, facts[name])
                blocks["job", name] = self._blocks.block(("job", name), identity)
                blocks["derived", name] = self._derived_block(name, found, facts[name])
        self._derived = {name: known for name, known in self._derived.items() if name in derived}
        return blocks

    def _derived_block(self, name: str, found: Derived, facts: LiveFacts) -> Block:
        """Made again only where its job's numbers are."""
        known, depends = self._derived.get(name), derived_from(facts)
        if known is not None and known[0] is found and known[1] == depends:
            return known[2]
        block = self._blocks.block(("derived", name), derived_values(found.data, found.summary, facts))
        self._derived[name] = found, depends, block
        return block

    def _nodes(self, now_s: float, left: int) -> dict[BlockName, Block]:
        """Those of the nodes that fit into the series that are `left`; keys of others are not even made."""
        blocks: dict[BlockName, Block] = {}
        with self._state.lock:
            fleet = self._state.fleet
            stale_after_s = fleet.limits.stale_after_s
            for node in fleet.nodes.values():
                if node.left:
                    continue
                with self._state.failures.contained(Part.NODE, node=node.name):
                    fresh = [one.fresh(now_s, stale_after_s).ravel() for one in node.readings.values()]
                    count = sum(map(len, fresh))
                    if count > left:
                        self._left_out += count
                        continue
                    left -= count
                    name = ("node", node.name, str(node.version))
                    keys = self._blocks.keys(name, partial(_node_keys, self._names, node, fleet.jobs))
                    blocks[name] = Block(keys, _joined(fresh))
        return blocks

    def _agents(self, now_s: float) -> dict[BlockName, Block]:
        values: list[Value] = []
        keys: dict[BlockName, Sequence[SeriesKey]] = {}
        numbers: list[float] = []
        with self._state.lock:
            stale_after_s = self._state.fleet.limits.stale_after_s
            for node in self._state.fleet.nodes.values():
                if node.left:
                    continue
                with self._state.failures.contained(Part.NODE, node=node.name):
                    if node.hardware_errors:
                        values += error_values(node, self._state.fleet.jobs)
                    if node.server_infos:
                        values += server_values(node, now_s, stale_after_s)
                    name = ("collectors", node.name, str(node.version))
                    found = collector_values(node)
                    keys[name] = self._blocks.keys(name, partial(collector_keys, node))
                    numbers += found
            for agent in reported_agents(self._state.agents, now_s, self._forgotten_after_s):
                name = ("agent", agent.node, agent.perfd_version)
                keys[name] = self._blocks.keys(name, partial(agent_keys, agent))
                numbers += agent_values(agent, now_s)
        blocks: dict[BlockName, Block] = {("agents",): self._blocks.block(("agents",), values)}
        of_all, end = np.array(numbers), 0
        for of, some in keys.items():
            blocks[of] = Block(some, of_all[end : (end := end + len(some))])
        return blocks

    def _self(self) -> dict[BlockName, Block]:
        values = [
            (sample.name, sample.labels, sample.value)
            for family in self._registry.collect()
            for sample in family.samples
        ]
        return {(SELF,): self._blocks.block((SELF,), values)}


def _count(groups: Mapping[str, Mapping[BlockName, Block]]) -> int:
    return sum(len(block.keys) for blocks in groups.values() for block in blocks.values())


def _joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _node_keys(names: MetricNames, node: NodeState, jobs: JobRegistry) -> Iterable[SeriesKey]:
    """The series of one node's readings: by scope, then by entity, then by metric."""
    owners = exported_gpu_owners(node, jobs)
    for scope, readings in node.readings.items():
        exported = [names.exported(scope, column) for column in readings.layout.metrics.known]
        for entity in readings.layout.entities.known:
            labels = entity_labels(scope, entity, node.name)
            if scope is Scope.GPU:
                labels |= gpu_labels(node, entity, owners.get(entity, {}), jobs)
            elif scope is Scope.RANK:
                labels |= jobs.labels(entity.rpartition("/")[0])
            # The labels are sorted once for an entity, not once for each of its metrics.
            sorted_labels = SeriesKey.of("", labels).labels
            for name in exported:
                yield SeriesKey(name, sorted_labels)
