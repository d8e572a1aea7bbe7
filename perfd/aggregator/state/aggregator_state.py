"""The shared state of an aggregator: jobs, nodes, agents and counters behind one lock."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from perfd.aggregator.audit import AuditLog
from perfd.aggregator.failures import Failures
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.agent_registry import AgentRegistry
from perfd.aggregator.state.fleet import Fleet


@dataclass(frozen=True, slots=True)
class AggregatorState:
    """The shared state of an aggregator, and the lock that is held around every use of it."""

    fleet: Fleet
    agents: AgentRegistry
    counters: AggregatorCounters
    lock: threading.RLock
    failures: Failures
    """Has its own lock."""
    audit: AuditLog
    """Has its own lock."""

    @classmethod
    def empty(
        cls, limits: Limits, audit: AuditLog | None = None, any_job: Collection[str] = ()
    ) -> AggregatorState:
        """A state that knows nothing yet; nodes in `any_job` may report every job."""
        counters, failures, audit = AggregatorCounters(), Failures(), audit or AuditLog()
        fleet = Fleet(limits, counters, failures, audit, any_job)
        return cls(fleet, AgentRegistry(limits), counters, threading.RLock(), failures, audit)
