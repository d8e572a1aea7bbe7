"""The state of all jobs, nodes and agents, filled from records and read by the analysis."""

from perfd.aggregator.state.agent_registry import AgentState
from perfd.aggregator.state.aggregator_state import AggregatorState
from perfd.aggregator.state.alike_tables import alike_tables
from perfd.aggregator.state.batch_repeats import BatchVerdict
from perfd.aggregator.state.derived_numbers import Derived, JobNumbers, StateKey, job_data, state_key
from perfd.aggregator.state.durable_records import Durable
from perfd.aggregator.state.fleet import Fleet
from perfd.aggregator.state.gpu_owners import gpu_owners
from perfd.aggregator.state.gpu_samples import all_compute
from perfd.aggregator.state.node_state import NodeState

__all__ = [
    "AgentState",
    "AggregatorState",
    "BatchVerdict",
    "Derived",
    "Durable",
    "Fleet",
    "JobNumbers",
    "NodeState",
    "StateKey",
    "alike_tables",
    "all_compute",
    "gpu_owners",
    "job_data",
    "state_key",
]
