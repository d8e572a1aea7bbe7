"""What one or two looks at a server amount to: rates, quantiles and ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfd.analysis.serving.engine_snapshot import Counter, Engine, Latency, Length, Snapshot
from perfd.analysis.serving.histograms import Distribution, Histogram, distribution, increase


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRates:
    """Derived numbers of a server; None is unknown.

    Rates need two looks. Latencies are of the time between the looks, or of all time since the server
    started when there is one look.
    """

    now: Snapshot
    span_s: float | None = None
    """Between the looks; None with one, or when the server restarted or changed its model between them."""
    generation_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    """Prompt tokens that were not in the prefix cache."""
    requests_per_s: float | None = None
    preemptions_per_s: float | None = None
    prefix_hit_ratio: float | None = None
    spec_accept_length: float | None = None
    spec_accept_ratio: float | None = None
    cuda_graph_ratio: float | None = None
    gpu_busy_ratio: float | None = None
    """Share of the time of the schedulers that had work in which a forward pass ran."""
    estimated_flops_per_s_per_gpu: float | None = None
    estimated_read_bytes_per_s_per_gpu: float | None = None
    latencies: Mapping[str, Distribution] = field(default_factory=dict)
    """By the names in `Latency`, only those with observations."""
    mean_prompt_tokens: float | None = None
    mean_generation_tokens: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def computes_no_prompt(self) -> bool:
        """Whether the engine counts prompt tokens as it computes them, and counted none in that time."""
        live = self.now.engine is Engine.VLLM or Counter.LIVE_PROMPT_TOKENS in self.now.counters
        return live and self.computed_prompt_tokens_per_s == 0

    @property
    def tpot(self) -> Distribution:
        """Time per output token: between tokens where the server measures that, else over requests."""
        return self.latencies.get(Latency.ITL) or self.latencies.get(Latency.TPOT) or Distribution()


def measure(now: Snapshot, before: Snapshot | None = None, span_s: float | None = None) -> ServerRates:
    """Derive the numbers of a server from one look, or of the time between two looks `span_s` apart."""
    notes = list(now.notes)
    if before is not None and _other_server(before, now):
        notes.append("The server restarted or changed its model between the two looks; rates are unknown.")
        before = None
    two = before is not None and span_s is not None and span_s > 0
    gains = _gains(before, now) if before is not None and two else {}
    since = gains if two else now.counters
    histograms = _observed(before, now) if before is not None and two else now.histograms
    rate = {key: value / span_s for key, value in gains.items()} if span_s else {}
    return ServerRates(
        now=now,
        span_s=span_s if two else None,
        generation_tokens_per_s=now.reported_generation_tokens_per_s
        if now.reports_rates
        else _first(rate, Counter.LIVE_GENERATION_TOKENS, Counter.GENERATION_TOKENS),
        prompt_tokens_per_s=now.reported_prompt_tokens_per_s
        if now.reports_rates
        else rate.get(Counter.PROMPT_TOKENS),
        computed_prompt_tokens_per_s=_computed(rate),
        requests_per_s=rate.get(Counter.REQUESTS),
        preemptions_per_s=rate.get(Counter.PREEMPTIONS),
        prefix_hit_ratio=_hit_ratio(gains, now),
        spec_accept_length=_accept_length(since) or now.spec_accept_length,
        spec_accept_ratio=_known(
            _share(since, Counter.SPEC_ACCEPTED_TOKENS, Counter.SPEC_DRAFT_TOKENS), now.spec_accept_ratio
        ),
        cuda_graph_ratio=_graph_ratio(since, now),
        gpu_busy_ratio=_busy(gains, now, span_s) if two else now.forward_occupancy_ratio,
        estimated_flops_per_s_per_gpu=rate.get(Counter.ESTIMATED_FLOPS) or now.reported_flops_per_s_per_gpu,
        estimated_read_bytes_per_s_per_gpu=rate.get(Counter.ESTIMATED_READ_BYTES)
        or now.reported_read_bytes_per_s_per_gpu,
        latencies={
            **now.latencies,
            **{
                name: distribution(histograms[name])
                for name in Latency
                if name in histograms and histograms[name].count > 0
            },
        },
        mean_prompt_tokens=distribution(histograms.get(Length.PROMPT)).mean,
        mean_generation_tokens=distribution(histograms.get(Length.GENERATION)).mean,
        notes=tuple(notes),
    )


def _other_server(before: Snapshot, now: Snapshot) -> bool:
    if (before.engine, before.model) != (now.engine, now.model):
        return True
    steady = (Counter.REQUESTS, Counter.GENERATION_TOKENS, Counter.PROMPT_TOKENS)
    return any(now.counters.get(name, math.inf) < before.counters.get(name, -math.inf) for name in steady)


def _gains(before: Snapshot, now: Snapshot) -> Mapping[str, float]:
    """How far each counter rose; one that is new, gone or went back is left out."""
    gains = {
        name: value - before.counters[name] for name, value in now.counters.items() if name in before.counters
    }
    return {name: gain for name, gain in gains.items() if gain >= 0}


def _observed(before: Snapshot, now: Snapshot) -> Mapping[str, Histogram]:
    found = {name: increase(before.histograms.get(name), value) for name, value in now.histograms.items()}
    return {name: value for name, value in found.items() if value is not None}


def _known(measured: float | None, otherwise: float | None) -> float | None:
    return otherwise if measured is None else measured


def _first(values: Mapping[str, float], *names: str) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _computed(rate: Mapping[str, float]) -> float | None:
    if Counter.LIVE_PROMPT_TOKENS in rate:
        return rate[Counter.LIVE_PROMPT_TOKENS]
    if Counter.PROMPT_TOKENS not in rate:
        return None
    return max(0.0, rate[Counter.PROMPT_TOKENS] - rate.get(Counter.CACHE_HIT_TOKENS, 0.0))


def _hit_ratio(gains: Mapping[str, float], now: Snapshot) -> float | None:
    """Between the looks, else what the server says of its newest prefills, else of all since its start."""
    between = _share(gains, Counter.CACHE_HIT_TOKENS, Counter.CACHE_QUERY_TOKENS)
    if between is not None:
        return between
    if now.reported_prefix_hit_ratio is not None:
        return now.reported_prefix_hit_ratio
    return _share(now.counters, Counter.CACHE_HIT_TOKENS, Counter.CACHE_QUERY_TOKENS)


def _share(values: Mapping[str, float], part: str, whole: str) -> float | None:
    if part not in values or not values.get(whole):
        return None
    return min(1.0, values[part] / values[whole])


def _accept_length(since: Mapping[str, float]) -> float | None:
    """Accepted tokens per draft, and the bonus token that each verification adds."""
    drafts = since.get(Counter.SPEC_DRAFTS)
    if not drafts or Counter.SPEC_ACCEPTED_TOKENS not in since:
        return None
    return 1 + since[Counter.SPEC_ACCEPTED_TOKENS] / drafts


def _graph_ratio(since: Mapping[str, float], now: Snapshot) -> float | None:
    graph, eager = since.get(Counter.GRAPH_PASSES, 0.0), since.get(Counter.EAGER_PASSES, 0.0)
    return graph / (graph + eager) if graph + eager > 0 else now.cuda_graph_ratio


def _busy(gains: Mapping[str, float], now: Snapshot, span_s: float | None) -> float | None:
    if Counter.FORWARD_S not in gains or not span_s:
        return now.forward_occupancy_ratio
    working_s = span_s * max(1, len(now.replicas)) - gains.get(Counter.IDLE_S, 0.0)
    return min(1.0, gains[Counter.FORWARD_S] / working_s) if working_s > 0 else None
