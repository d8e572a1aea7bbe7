"""How much one aggregator holds at most, and the counters of what it did and gave up."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the state. What is beyond a bound is refused or forgotten, and counted by its name."""

    agents: int = 20_000
    """Streams of one address are at most three quarters of it."""
    streams_without_hello: int = 2_048
    """Of all addresses, and three quarters of it of one. An agent's Hello follows at once, so that these are
    many only when thousands of agents connect in the same moment; those beyond come back after a pause."""
    hello_within_s: float = 15.0
    """For how long a stream may stay without a Hello, and a connection without its handshake or a stream. An
    agent does all of it at once."""
    token_reviews: int = 64
    """Tokens of agents that the Kubernetes API server reviews, or that wait for it; of one address three
    quarters of it."""
    nodes: int = 20_000
    jobs: int = 256
    """Set by `AggregatorConfig.max_jobs`."""
    jobs_per_node: int = 64
    """Jobs that go on and that only this node reports."""
    nodes_per_job: int = 8_192
    ranks_per_job: int = 65_536
    steps_per_job: int = 50_000
    """Progress lines, and steps with phase timers, in memory; history keeps the rest."""
    phase_cells_per_job: int = 8_000_000
    """Rows times ranks of all phase timers in memory."""
    phases_per_job: int = 256
    events_per_job: int = 1_000
    memory_reports_per_job: int = 65_536
    streams_per_job: int = 65_536
    metrics_per_scope: int = 128
    """Distinct column names of one scope on one node."""
    entities_per_scope: int = 256
    """GPUs, interfaces, disks or ranks of one node."""
    series_per_scope: int = 8_192
    """Entities times metrics of one scope on one node."""
    sample_ahead_s: float = 10.0
    """How far the time of a sample may be ahead of when its batch was sent, both by the agent's clock. It is
    read before that: only a clock that is set back between the two loses samples."""
    series: int = 2_000_000
    """All series of a round. Jobs and nodes that came last are left out beyond it."""
    name_chars: int = 256
    """Of what becomes the value of a label: names of nodes, jobs, entities, and all else."""
    members_per_job: int = 1_048_576
    """Members of all communicators of a job, each list of them once."""
    large_message_bytes: int = 16_384
    """Messages above it are decoded and applied by a thread beside the one that serves all agents."""
    held_message_bytes: int = 268_435_456
    """Large messages that wait for that thread, of all agents, and three quarters of it of one address. The
    stream beyond it is closed, and its agent sends again."""
    history_bytes_per_agent_and_day: int = 2_147_483_648
    """Rows that one agent may write to history in a day; what is beyond is live only."""
    collectors_per_node: int = 64
    communicators_per_job: int = 32_768
    """Communicators, and pairs of ranks that send to each other, each with its operations."""
    communicator_ranks_per_job: int = 1_048_576
    """Ranks of all communicators together: each has its newest windows, even with few operations."""
    progress_per_job: int = 262_144
    """Ranks times their communicators, of which it is known how far each is."""
    fewest_operations_per_communicator: int = 1_024
    operations_per_communicator: int = 16_384
    """Newest operations of a communicator in memory: some dozens of steps, so that a rank that is late in a
    few is not taken for one that always is. A few operations per layer make thousands."""
    operation_cells_per_communicator: int = 2_097_152
    """Operations times ranks; a larger communicator keeps fewer operations."""
    operation_cells_per_job: int = 4_194_304
    """The same over all communicators of a job, which share it; but each keeps the fewest all the same."""
    gpu_history_s: float = 300.0
    gpu_history_rows: int = 1_200
    stale_after_s: float = 30.0
    """A reading older than this, and than three of its own intervals, leaves /metrics."""
    ended_series_s: float = 900.0
    """How long the series of a job stay after its end: the alert about how it ended fires meanwhile."""
    sequence_jump: int = 4_096
    """Batches that may be missing in a stream. An agent that gave up more reports it in its next Hello."""
    hello_jump: int = 1_000_000_000
    """Batches that an agent may have given up between two streams: a thousand a second in eleven days."""
    missing_sequences: int = 4_096
    """Gaps remembered per agent, to distinguish a late batch from a repeat."""


_SETTINGS = {"jobs": "max_jobs"}
"""What raises a bound, where the configuration can."""


class _Rejected(Counter[str]):
    """Logs the first of each bound."""

    def __setitem__(self, bound: str, count: int) -> None:
        if count > 0 and not self[bound]:
            setting = {"setting": _SETTINGS[bound]} if bound in _SETTINGS else {}
            log.warning(
                "Data beyond a limit is left out; perfd_rejected_total counts it.",
                extra={"bound": bound, **setting},
            )
        super().__setitem__(bound, count)


@dataclass(slots=True)
class AggregatorCounters:
    """What happened since the start. Written under the aggregator's state lock only."""

    batches: int = 0
    samples: int = 0
    records: int = 0
    repeated_batches: int = 0
    resent_batches: int = 0
    late_batches: int = 0
    lost_batches: int = 0
    malformed_messages: int = 0
    ticks: int = 0
    failed_ticks: int = 0
    round_unix_s: float | None = None
    """When the newest round was finished; None before the first."""
    tick_s: float = 0.0
    ingest_s: float = 0.0
    rule_evaluation_s: float = 0.0
    rejected: Counter[str] = field(default_factory=_Rejected)
    """By the name of the bound in `Limits` that refused something."""


@dataclass(slots=True, kw_only=True)
class NatsProgress:
    """How reading goes; written by the thread that reads."""

    reading: bool = False
    waiting_messages: int = 0
    """In the stream, and not read yet."""
    unsettled_messages: int = 0
    """Read, and not stored yet."""
    lag_s: float = 0.0
    """For how long the newest message that was read had been in the stream."""
    received_messages: int = 0
    refused_messages: int = 0
    interruptions: int = 0
    """How often reading ended, and began again or waits to."""
    delivered_s: float = float("-inf")
    """When the stream delivered a message last, monotonic."""
    direct_messages: int = 0
    """Taken from agents without the stream."""
    took_directly_s: float = float("-inf")
    """When that was last, monotonic."""
    stream_problem: str | None = None
    """That the stream takes or delivers nothing for longer than an election, in a sentence."""
    _undelivered_since_s: float = float("inf")

    def take_directly(self, messages: int, now_s: float) -> None:
        """Count messages that agents sent, and that did not come through the stream."""
        self.direct_messages += messages
        if self._undelivered_since_s < self.delivered_s or self._undelivered_since_s > now_s:
            self._undelivered_since_s = now_s
        self.took_directly_s = now_s

    def undelivered_for_s(self, now_s: float) -> float:
        """For how long agents have sent messages of which none came through the stream; 0 if one did."""
        since_s = self._undelivered_since_s
        return 0.0 if self.delivered_s >= since_s else max(0.0, now_s - since_s)
