"""One look at a serving engine: SGLang's and vLLM's names of every version in one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from perfd.analysis.serving.histograms import Distribution, Histogram


class Engine(StrEnum):
    """Which engine serves."""

    SGLANG = "sglang"
    VLLM = "vllm"
    MINI_SGLANG = "mini-sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """One data-parallel rank or engine of a server, at an instant."""

    replica: str
    running_requests: float | None = None
    queued_requests: float | None = None
    kv_cache_used_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a server said at one instant: sums over its replicas. Counters and histograms are since its start.

    None is what it did not say, and what cannot be trusted: the gauges that SGLang writes only when it
    logs keep their last value in an idle server.
    """

    engine: Engine
    version: str | None = None
    model: str | None = None
    roles: Sequence[str] = ()
    """`unified`, `prefill`, `decode`, if the server reports it."""
    replicas: Sequence[ReplicaLoad] = ()
    running_requests: float | None = None
    queued_requests: float | None = None
    max_running_requests: float | None = None
    """The server's own limit, over its replicas."""
    kv_cache_used_ratio: float | None = None
    """Mean over replicas of the fullest of each one's pools."""
    kv_used_tokens: float | None = None
    kv_total_tokens: float | None = None
    """Capacity in tokens over all replicas."""
    reported_generation_tokens_per_s: float | None = None
    """The server's own figure, for as long as it is fresh."""
    reported_prompt_tokens_per_s: float | None = None
    reported_prefix_hit_ratio: float | None = None
    """The server's own figure of its newest prefills."""
    reported_flops_per_s_per_gpu: float | None = None
    """The server's own estimate in its log, as the one below."""
    reported_read_bytes_per_s_per_gpu: float | None = None
    spec_accept_length: float | None = None
    """Tokens per verification step, the bonus token included; None without speculative decoding."""
    spec_accept_ratio: float | None = None
    cuda_graph_ratio: float | None = None
    """Share of replicas whose newest batch ran as a CUDA graph."""
    forward_occupancy_ratio: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    """By the names in `Counter`."""
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """By the names in `Latency` and `Length`."""
    latencies: Mapping[str, Distribution] = field(default_factory=dict)
    """By the names in `Latency`, where the server states quantiles and no histograms."""
    reports_rates: bool = False
    """The reported rates were counted over an interval, as in a log, and need no second look."""
    notes: Sequence[str] = ()
    """What is wrong with what was read, as sentences."""

    @property
    def idle(self) -> bool:
        """Whether the server says that it has nothing to do."""
        return self.running_requests == 0 and not self.queued_requests


class Counter(StrEnum):
    """Counters of a snapshot."""

    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    LIVE_GENERATION_TOKENS = "live_generation_tokens"
    """As tokens are made, not as requests end."""
    LIVE_PROMPT_TOKENS = "live_prompt_tokens"
    """Prompt tokens as they are computed, without those from the cache."""
    REQUESTS = "requests"
    ABORTED_REQUESTS = "aborted_requests"
    CACHE_HIT_TOKENS = "cache_hit_tokens"
    CACHE_QUERY_TOKENS = "cache_query_tokens"
    PREEMPTIONS = "preemptions"
    """Requests that were retracted or preempted for want of KV cache."""
    SPEC_DRAFTS = "spec_drafts"
    SPEC_DRAFT_TOKENS = "spec_draft_tokens"
    SPEC_ACCEPTED_TOKENS = "spec_accepted_tokens"
    GRAPH_PASSES = "graph_passes"
    EAGER_PASSES = "eager_passes"
    FORWARD_S = "forward_s"
    """Time that the GPU ran forward passes, summed over replicas."""
    IDLE_S = "idle_s"
    """Time that the scheduler had no work, summed over replicas."""
    ESTIMATED_FLOPS = "estimated_flops"
    """The server's own count, per GPU, mean over replicas."""
    ESTIMATED_READ_BYTES = "estimated_read_bytes"


class Latency(StrEnum):
    """Latency histograms of a snapshot, in seconds."""

    TTFT = "ttft"
    ITL = "itl"
    """Between two tokens of a stream."""
    TPOT = "tpot"
    """Mean of a request over its tokens."""
    E2E = "e2e"
    QUEUE = "queue"


class Length(StrEnum):
    """Histograms of lengths of a snapshot, in tokens."""

    PROMPT = "prompt_length"
    GENERATION = "generation_length"
