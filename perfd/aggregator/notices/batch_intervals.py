"""Decides which agents may send fewer batches, because all is calm where they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from perfd.aggregator.job_changes import CALM_AFTER_S
from perfd.aggregator.summary_turns import NODES_IN_EACH_ROUND

QUIET_INTERVAL_S = 3.0
"""Asked of agents whose nodes are calm. Chosen: it saves two of three messages, and what only samples show is
at most 2 s older. With 5 s alerts about that would not come within 5 s."""


@dataclass(frozen=True, slots=True)
class NodesOfJob:
    """Where a job that goes on runs."""

    nodes: Collection[str]
    calm: bool
    """Whether its steps would show a change soon, and have shown none for a while."""


class BatchIntervals:
    """Remembers what it requested of each agent. Without a clock; one thread at a time."""

    def __init__(self) -> None:
        self._quiet: dict[str, int] = {}
        """The nodes that were asked to send seldom, with the stream over which they were."""
        self._alerted_s: dict[str, float] = {}
        """When an alert of a node was pending last."""

    def take(
        self,
        jobs: Iterable[NodesOfJob],
        streams: Mapping[str, int],
        alerted: Collection[str],
        now_s: float,
    ) -> dict[str, float]:
        """The nodes whose agents are to get another quiet interval, with it in seconds; 0 takes it back.

        `streams` has the number of each connected node's stream: what was requested of an agent ends with it.
        A node is asked while all of its jobs are calm, and none of its alerts was pending for as long.
        """
        self._alerted_s |= dict.fromkeys(alerted, now_s)
        self._alerted_s = {
            node: last_s for node, last_s in self._alerted_s.items() if now_s - last_s < CALM_AFTER_S
        }
        quiet = set() if len(streams) <= NODES_IN_EACH_ROUND else _calm_nodes(jobs) - self._alerted_s.keys()
        before = {node for node, stream in self._quiet.items() if streams.get(node) == stream}
        wanted = quiet & streams.keys()
        self._quiet = {node: streams[node] for node in wanted}
        return dict.fromkeys(sorted(wanted - before), QUIET_INTERVAL_S) | dict.fromkeys(
            sorted(before - wanted), 0.0
        )


def _calm_nodes(jobs: Iterable[NodesOfJob]) -> set[str]:
    calm: set[str] = set()
    others: set[str] = set()
    for job in jobs:
        (calm if job.calm else others).update(job.nodes)
    return calm - others
