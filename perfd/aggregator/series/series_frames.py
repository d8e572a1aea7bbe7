"""All series of a round, in groups: what changes its set of series in one does not disturb the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfd.aggregator.captures import CaptureService
from perfd.aggregator.history import HistoryStore
from perfd.aggregator.series.job_series import Block, Blocks, LiveFacts, job_values, node_block
from perfd.aggregator.series.metric_names import MetricNames
from perfd.aggregator.series.self_metrics import (
    agent_values,
    aggregator_values,
    exporter_values,
    node_values,
    server_values,
    webhook_values,
)
from perfd.aggregator.series.summary_cache import Derived
from perfd.aggregator.state import AggregatorState
from perfd.aggregator.web_api import Webhook
from perfd.exporters.exporter_runner import ExporterStatus
from perfd.metrics.series import SeriesFrame

BlockName = tuple[str, ...]


class SeriesFrames:
    """Makes the frames `jobs` (derived), `nodes` (raw readings) and `self`. One thread at a time."""

    def __init__(
        self,
        state: AggregatorState,
        history: HistoryStore | None,
        captures: CaptureService,
        names: MetricNames,
        webhook: Webhook,
        *,
        forgotten_after_s: float,
    ) -> None:
        self._state = state
        self._history = history
        self._captures = captures
        self._names = names
        self._webhook = webhook
        self._forgotten_after_s = forgotten_after_s
        self._blocks = Blocks(label_chars=state.fleet.limits.name_chars)

    def make(
        self,
        now_unix_s: float,
        now_s: float,
        derived: Mapping[str, Derived],
        facts: Mapping[str, LiveFacts],
        exporters: Sequence[ExporterStatus] = (),
    ) -> dict[str, SeriesFrame]:
        """The frames of one instant."""
        # What it says about itself comes first: it tells what is left out.
        groups = self._bounded(
            {
                "self": self._self(now_s, exporters),
                "jobs": self._jobs(derived, facts),
                "nodes": self._nodes(now_s),
            }
        )
        self._blocks.keep(name for blocks in groups.values() for name in blocks)
        return {
            group: self._blocks.frame(group, now_unix_s, list(blocks.values()))
            for group, blocks in groups.items()
        }

    def _bounded(self, groups: Mapping[str, dict[BlockName, Block]]) -> dict[str, dict[BlockName, Block]]:
        """The groups without the blocks that are one too many, which are counted."""
        left, refused = self._state.fleet.limits.series, 0
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
        return {
            ("job", name): self._blocks.block(
                ("job", name), job_values(found.data, found.summary, facts[name])
            )
            for name, found in derived.items()
        }

    def _nodes(self, now_s: float) -> dict[BlockName, Block]:
        with self._state.lock:
            fleet = self._state.fleet
            stale_after_s = fleet.limits.stale_after_s
            blocks = {}
            for node in fleet.nodes.values():
                fresh = {
                    scope: readings.fresh(now_s, stale_after_s) for scope, readings in node.readings.items()
                }
                name, block = node_block(self._blocks, self._names, node, fleet.owners, fresh)
                blocks[name] = block
            return blocks

    def _self(self, now_s: float, exporters: Sequence[ExporterStatus]) -> dict[BlockName, Block]:
        outcomes = self._captures.outcomes()
        with self._state.lock:
            nodes = self._state.fleet.nodes.values()
            stale_after_s = self._state.fleet.limits.stale_after_s
            values = [
                *(value for node in nodes for value in node_values(node)),
                *(value for node in nodes for value in server_values(node, now_s, stale_after_s)),
                *agent_values(list(self._state.agents), now_s, self._forgotten_after_s),
                *aggregator_values(self._state, self._history, outcomes),
                *exporter_values(exporters),
                *webhook_values(self._webhook.requests(), self._webhook.alerts()),
            ]
        return {("self",): self._blocks.block(("self",), values)}
