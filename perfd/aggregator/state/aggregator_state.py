"""The shared state of an aggregator: jobs, nodes, agents and counters behind one lock."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from perfd.aggregator.state.agent_registry import Agents
from perfd.aggregator.state.fleet import Fleet
from perfd.aggregator.state.limits import Counters, Limits


@dataclass(frozen=True, slots=True)
class State:
    """The shared state of an aggregator, and the lock that is held around every use of it."""

    fleet: Fleet
    agents: Agents
    counters: Counters
    lock: threading.RLock

    @classmethod
    def empty(cls, limits: Limits) -> State:
        """A state that knows nothing yet."""
        counters = Counters()
        return cls(Fleet(limits, counters), Agents(limits), counters, threading.RLock())
