"""The shape `perfd.serving/2`: what `perfd serving --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfd.analysis.findings import Finding, finding_json
from perfd.analysis.serving.engine_snapshot import Latency
from perfd.analysis.serving.histograms import Distribution
from perfd.analysis.serving.server_rates import ServerRates
from perfd.analysis.serving.serving_theory import DecodeStep
from perfd.analysis.serving.theory_comparison import TheoryComparison

SCHEMA = "perfd.serving/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDocument:
    """One server as it is shown."""

    source: str
    measured: ServerRates
    comparison: TheoryComparison | None = None
    findings: Sequence[Finding] = ()


def to_json(servers: Sequence[ServerDocument]) -> dict[str, Any]:
    """The document; unknown is null."""
    return {"schema": SCHEMA, "servers": [_server(server) for server in servers]}


def _server(server: ServerDocument) -> dict[str, Any]:
    measured, now = server.measured, server.measured.now
    return {
        "source": server.source,
        "engine": now.engine.value,
        "version": now.version,
        "model": now.model,
        "running_requests": now.running_requests,
        "queued_requests": now.queued_requests,
        "max_running_requests": now.max_running_requests,
        "kv_cache_used_ratio": now.kv_cache_used_ratio,
        "prefix_hit_ratio": measured.prefix_hit_ratio,
        "generation_tokens_per_s": measured.generation_tokens_per_s,
        "prompt_tokens_per_s": measured.prompt_tokens_per_s,
        "ttft_s": distribution_json(measured.latencies.get(Latency.TTFT)),
        "tpot_s": distribution_json(measured.tpot),
        "e2e_s": distribution_json(measured.latencies.get(Latency.E2E)),
        "theory": None if server.comparison is None else theory_json(server.comparison),
        "findings": [finding_json(finding) for finding in server.findings],
    }


def theory_json(comparison: TheoryComparison) -> dict[str, Any]:
    """What theory says, and measured over it."""
    theory, step = comparison.theory, comparison.step
    return {
        "gpu": theory.gpu.name,
        "gpus": theory.layout.gpus,
        "tp": theory.layout.tp,
        "pp": theory.layout.pp,
        "dp": theory.layout.dp,
        "precision": theory.model.precision,
        "weight_bits": theory.model.weight_bits,
        "kv_bytes_per_token": theory.model.kv_bytes_per_token,
        "tpot_floor_s": comparison.tpot_floor_s,
        "ttft_floor_s": comparison.ttft_floor_s,
        "ttft_prompt_tokens": comparison.prompt_tokens,
        "critical_batch": theory.critical_batch,
        "decode_step": None if step is None else _step(step),
        "tpot_over_floor_ratio": comparison.tpot_over_floor_ratio,
        "tpot_over_step_ratio": comparison.tpot_over_step_ratio,
        "ttft_over_floor_ratio": comparison.ttft_over_floor_ratio,
        "mbu_ratio": comparison.mbu_ratio,
        "prefill_mfu_ratio": comparison.prefill_mfu_ratio,
        "estimated_mfu_ratio": comparison.estimated_mfu_ratio,
        "estimated_mbu_ratio": comparison.estimated_mbu_ratio,
        "generation_tokens_per_s_per_gpu": comparison.generation_tokens_per_s_per_gpu,
    }


def _step(step: DecodeStep) -> Mapping[str, Any]:
    return {
        "batch": step.batch,
        "context_tokens": step.context_tokens,
        "weights_s": step.weights_s,
        "kv_s": step.kv_s,
        "compute_s": step.compute_s,
        "all_reduce_s": step.all_reduce_s,
        "total_s": step.total_s,
    }


def distribution_json(found: Distribution | None) -> Mapping[str, float | None]:
    """The quantiles and the mean, null without a distribution."""
    known = found or Distribution()
    return {"p50": known.p50, "p90": known.p90, "p99": known.p99, "mean": known.mean}
