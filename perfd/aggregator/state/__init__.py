"""The state of jobs and nodes, filled from records and read by the analysis."""

from perfd.aggregator.state.agent_registry import AgentState, BatchVerdict
from perfd.aggregator.state.aggregator_state import AggregatorState
from perfd.aggregator.state.fleet import Durable, Fleet
from perfd.aggregator.state.job_lifetime import JobEnd
from perfd.aggregator.state.job_snapshot import job_data
from perfd.aggregator.state.job_state import JobState, RecordSource
from perfd.aggregator.state.node_state import NodeState
from perfd.aggregator.state.step_chart import progress_columns

__all__ = [
    "AgentState",
    "AggregatorState",
    "BatchVerdict",
    "Durable",
    "Fleet",
    "JobEnd",
    "JobState",
    "NodeState",
    "RecordSource",
    "job_data",
    "progress_columns",
]
