"""Reports to agents what changes how often they send batches: new findings, and that all is calm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from perfd.aggregator.notices.batch_intervals import BatchIntervals, NodesOfJob
from perfd.aggregator.notices.finding_news import FindingNews
from perfd.aggregator.state import AggregatorState
from perfd.analysis.diagnosis import JobSummary
from perfd.model import Alert, BatchInterval, NewFinding, NodeMessage

Notify = Callable[[str, NodeMessage], None]
"""Sends a message to the agent of a node, at once."""


class AgentNotices:
    """Sends what `FindingNews` and `BatchIntervals` decide. One thread at a time."""

    def __init__(self, state: AggregatorState, notify: Notify, *, of_partition: bool) -> None:
        """Each aggregator of a group knows only the jobs of its partition, and asks no agent for anything."""
        self._state = state
        self._notify = notify
        self._news = FindingNews()
        self._intervals = None if of_partition else BatchIntervals()

    def findings(self, summaries: Mapping[str, JobSummary], now_s: float) -> None:
        """Have the agents of jobs with a new finding send batches more often."""
        kinds = {name: {finding.kind for finding in one.findings} for name, one in summaries.items()}
        for name in self._news.take(kinds, now_s):
            with self._state.lock:
                job = self._state.fleet.jobs.get(name)
                nodes = () if job is None else tuple(job.nodes)
            for node in nodes:
                self._notify(node, NewFinding(job=name))

    def intervals(self, calm: Collection[str], alerts: Iterable[Alert], now_s: float) -> None:
        """Have the agents of nodes with `calm` jobs only send fewer batches, until that is over."""
        if self._intervals is None:
            return
        pending = [alert for alert in alerts if not alert.firing]
        alerted = {node for alert in pending if (node := alert.labels.get("node"))}
        with self._state.lock:
            fleet = self._state.fleet
            streams = {one.node: one.stream for one in self._state.agents if one.stream is not None}
            for alert in pending:
                if (known := fleet.jobs.get(alert.job)) is not None:
                    alerted |= known.nodes.keys()
            jobs = [NodesOfJob(job.nodes, name in calm) for name, job in fleet.jobs.items() if not job.ended]
            changes = self._intervals.take(jobs, streams, alerted, now_s)
        for node, quiet_s in changes.items():
            self._notify(node, BatchInterval(quiet_s=quiet_s))
